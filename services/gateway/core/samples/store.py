"""A job's sample store as tables of DuckDB.

What lists show and filter by is held in memory, and grows with the files; texts and tokens are read
when they are asked for. DuckDB may read the job's folder and nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from protocol.messages import RIGHT
from protocol.recipe import Purpose
from protocol.samples import StepFile, step_files
from pydantic import BaseModel, ConfigDict, Field

from services.gateway.errors import Problem, not_found

Row = dict[str, Any]
log = logging.getLogger(__name__)
_LIMITS = {"threads": 2, "memory_limit": "512MB", "temp_directory": ""}
_FILES_AT_ONCE = 100
_COLUMNS = {
    **dict.fromkeys(("key", "purpose", "task_id", "fate", "failure"), "VARCHAR"),
    **dict.fromkeys(("index", "number", "step", "attempt", "length"), "BIGINT"),
    **dict.fromkeys(("created_at", "accuracy", "process", "reward"), "DOUBLE"),
    **dict.fromkeys(("advantage", "surprise", "parity_gap"), "DOUBLE"),
    **dict.fromkeys(("truncated", "graded"), "BOOLEAN"),
}
_MADE = {
    "advantage": "coalesce(advantage, token_advantage)",  # of a critic the mean over tokens
    "graded": "grade IS NOT NULL",
}
_SELECTED = ", ".join(_MADE.get(name, name) for name in _COLUMNS)
_PURPOSE = f"list_position({[purpose.value for purpose in Purpose]}, purpose) - 1"
_PLACE = ("step", _PURPOSE, "number", "coalesce(index, 0)")
_SHOWN_CHARS = 200
_TASK = "json_extract(request, '$.task')"
_TEXTS = (
    f"left(coalesce(prompt, json_extract_string({_TASK}, '$.prompt'), "
    f"json_extract_string({_TASK}, '$.messages[#-1].content')), {_SHOWN_CHARS}), "
    f"left(text, {_SHOWN_CHARS})"
)
_FOUND_KEPT = 200  # files that a text was looked for in
# DuckDB's own, and that of a message which quotes bytes that are no text.
_UNREADABLE = (duckdb.Error, UnicodeDecodeError)
_PASSING = (duckdb.IOException, duckdb.OutOfMemoryException)  # perhaps: the file is read again


class Order(StrEnum):
    OLDEST = "oldest"
    NEWEST = "newest"
    WRONG = "wrong"  # of wrong ones, the most confident
    REWARDED = "rewarded"
    SURPRISING = "surprising"
    PARITY = "parity"


RANKS = {  # what each order sorts by, most important first; null in the first one: not in it
    Order.OLDEST: _PLACE,
    Order.NEWEST: ("0 - step", f"0 - ({_PURPOSE})", "0 - number", "coalesce(index, 0)"),
    Order.WRONG: (f"CASE WHEN accuracy < {RIGHT} THEN surprise END", *_PLACE),
    Order.REWARDED: ("0 - reward", "coalesce(0 - advantage, 'inf'::DOUBLE)", *_PLACE),
    Order.SURPRISING: ("0 - surprise", *_PLACE),
    Order.PARITY: ("0 - parity_gap", *_PLACE),
}
_ANSWERS = {  # to each filter; null where there is no answer
    **{name: name for name in ("step", "purpose", "key", "fate", "truncated")},
    "task": "task_id",
    "correct": f"accuracy >= {RIGHT}",
    "ungradable": "CASE WHEN graded THEN accuracy IS NULL END",
    "zero_advantage": "advantage = 0",
}


class SampleFilter(BaseModel):
    """Which samples are wanted; one that a filter cannot be answered for is not."""

    model_config = ConfigDict(extra="forbid")

    step: int | None = Field(default=None, ge=0, le=2**63 - 1)
    purpose: Purpose | None = None
    task: str | None = None
    key: str | None = None
    fate: str | None = None
    correct: bool | None = None
    ungradable: bool | None = None
    truncated: bool | None = None
    zero_advantage: bool | None = None


@dataclass
class Store:
    """The samples of one job. Its methods read files, and may be called from any thread."""

    folder: Path
    damaged: dict[str, str] = field(default_factory=dict)  # why, by the file's name
    _known: dict[StepFile, tuple[int, int, int]] = field(default_factory=dict)
    _found: dict[tuple[str, str], frozenset[tuple[str, int]]] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _summary: Row | None = None

    @cached_property
    def _database(self) -> duckdb.DuckDBPyConnection:
        database = duckdb.connect(config=_LIMITS)
        database.execute("SET allowed_directories = ?", [[str(self.folder)]])
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        columns = ", ".join(f"{name} {type_}" for name, type_ in _COLUMNS.items())
        database.execute(f"CREATE TABLE samples ({columns}, file VARCHAR)")
        return database

    def look(self) -> Row:
        """Take in what has come and forget what has gone; returns counts of the whole store."""
        with self._turn:
            found = {file: at for file in step_files(self.folder) if (at := self._identity(file))}
            gone = [file for file, at in self._known.items() if found.get(file) != at]
            if gone:
                self._found = {}
            for file in gone:
                self._database.execute("DELETE FROM samples WHERE file = ?", [file.name])
                self.damaged.pop(file.name, None)
                del self._known[file]
            new = [file for file in found if file not in self._known]
            for first in range(0, len(new), _FILES_AT_ONCE):
                files = new[first : first + _FILES_AT_ONCE]
                passing = self._take_in([file.name for file in files])
                self._known |= {file: found[file] for file in files if file.name not in passing}
            if new or gone or self._summary is None:
                self._summary = self._counted()
            return self._summary

    def select(
        self, wanted: SampleFilter, order: Order, after: Sequence[float] | None, limit: int
    ) -> list[Row]:
        """The first rows that are wanted, each with its ``place`` in the order and its ``file``.

        Args:
            after: the place that they come after.
        """
        given = wanted.model_dump(include=set(SampleFilter.model_fields), exclude_none=True)
        conditions = ["place[1] IS NOT NULL", *(f"({_ANSWERS[name]}) = ?" for name in given)]
        values: list[Any] = list(given.values())
        if after is not None:
            conditions.append("place > ?::DOUBLE[]")
            values.append(list(after))
        cursor = self._database.cursor().execute(
            f"WITH placed AS (SELECT *, [{', '.join(RANKS[order])}]::DOUBLE[] AS place "
            f"FROM samples) SELECT * FROM placed WHERE {' AND '.join(conditions)} "
            "ORDER BY place LIMIT ?",
            [*values, limit],
        )
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def holding(self, rows: Sequence[Row], text: str) -> list[Row]:
        """Those whose response holds a text, in any case; not those that are gone or damaged."""
        files = {row["file"] for row in rows}
        found = {place for file in files for place in self._places(file, text.casefold())}
        return [row for row in rows if (row["key"], row["index"]) in found]

    def with_texts(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with ``prompt`` and ``text``, the first 200 characters of what they hold."""
        wanted: dict[str, set[str]] = {}
        for row in rows:
            wanted.setdefault(row["file"], set()).add(row["key"])
        texts: dict[tuple[str, int | None], Row] = {}
        for file, keys in wanted.items():
            with suppress(*_UNREADABLE):  # it has just gone; what is damaged is told
                query = (
                    f"SELECT key, index, {_TEXTS} FROM read_parquet(?) WHERE list_contains(?, key)"
                )
                found = self._database.cursor().execute(query, [self._path(file), sorted(keys)])
                for key, index, prompt, text in found.fetchall():
                    texts[key, index] = {"prompt": prompt, "text": text}
        nothing = {"prompt": None, "text": None}
        return [row | texts.get((row["key"], row["index"]), nothing) for row in rows]

    def _places(self, file: str, wanted: str) -> frozenset[tuple[str, int]]:
        """The key and index of each response of a file that holds a text."""
        if (places := self._found.get((file, wanted))) is None:
            query = "SELECT key, index, text FROM read_parquet(?) WHERE text IS NOT NULL"
            try:
                texts = self._database.cursor().execute(query, [self._path(file)]).fetchall()
            except _UNREADABLE:
                return frozenset()
            while len(self._found) >= _FOUND_KEPT:
                self._found.pop(next(iter(self._found)), None)
            holding = ((key, index) for key, index, text in texts if wanted in text.casefold())
            self._found[file, wanted] = places = frozenset(holding)
        return places

    def group(self, key: str) -> list[Row]:
        """Everything about a group, in order: a row per response, or one if it failed.

        Raises:
            Problem: 404 if there is none, also if its file is damaged.
        """
        self.look()
        cursor = self._database.cursor()
        query = "SELECT file FROM samples WHERE key = ? LIMIT 1"
        if (place := cursor.execute(query, [key]).fetchone()) is None:
            raise self._missing(key, "; ".join(self.damaged.values()))
        query = "SELECT * FROM read_parquet(?) WHERE key = ? ORDER BY index"
        try:
            columns = cursor.execute(query, [self._path(place[0]), key]).fetchnumpy()
        except _UNREADABLE as error:
            raise self._missing(key, self._why(place[0], error)) from error
        return [
            {name: _plain(values[place]) for name, values in columns.items()}
            for place in range(len(columns["key"]))
        ]

    def _take_in(self, names: Sequence[str]) -> set[str]:
        """Read files together, or one by one if that fails; those that are damaged are told.

        Returns:
            The names of those to be read again, as where no more files could be opened.
        """
        query = f"INSERT INTO samples SELECT {_SELECTED}, parse_filename(filename) "
        try:
            self._database.execute(
                query + "FROM read_parquet(?)", [[self._path(name) for name in names]]
            )
        except _UNREADABLE as error:
            if len(names) > 1:
                return {name for each in names for name in self._take_in([each])}
            if why := self._why(names[0], error):
                if self.damaged.get(names[0]) != why:
                    log.warning("samples left out", extra={"why": why})
                self.damaged[names[0]] = why
                if isinstance(error, _PASSING):
                    return set(names)
            return set()
        for name in names:
            self.damaged.pop(name, None)
        return set()

    def _counted(self) -> Row:
        query = "SELECT count(DISTINCT key), count(index), min(step), max(step) FROM samples"
        counts = self._database.execute(query).fetchall()[0]
        names = ("groups", "responses", "first_step", "last_step")
        return {
            **dict(zip(names, counts, strict=True)),
            **{f"{name}s": self._groups_by(name) for name in ("fate", "purpose")},
            "damaged": list(self.damaged.values()),
        }

    def _groups_by(self, name: str) -> Counter[str]:
        query = f"SELECT {name}, count(DISTINCT key) FROM samples GROUP BY {name}"
        return Counter(dict(self._database.execute(query).fetchall()))

    def _identity(self, file: StepFile) -> tuple[int, int, int] | None:
        """Which file it is that has the name; none if it has just gone."""
        try:
            found = (self.folder / file.name).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _path(self, name: str) -> str:
        return str(self.folder / name)

    def _why(self, name: str, error: Exception) -> str:
        """What is wrong with a file; nothing if it has gone."""
        if not (self.folder / name).exists():
            return ""
        return f"{name} cannot be read: {str(error).splitlines()[0]}"

    def _missing(self, key: str, damage: str) -> Problem:
        if not damage:
            return not_found("sample", key)
        message = f"there is no sample {key!r} that can be read: {damage}"
        return Problem(404, message, param="key", code="damaged")


def _plain(value: Any) -> Any:
    """A value of a column: an array of NumPy if it is a list, None if it is null."""
    if value is np.ma.masked:
        return None
    return value.item() if isinstance(value, np.generic) else value
