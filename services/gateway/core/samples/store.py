"""A job's sample store as a table of DuckDB.

The columns of lists and filters are in memory, and grow with the files. Texts and tokens are read
on request. DuckDB can read the job's folder and nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
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
MAX_FILES_PER_QUERY = 100
MAX_SEARCHES = 200  # of one text in one file, whose results stay in memory
MAX_CHARS = 200  # of a text in a list
_LIMITS = {"threads": 2, "memory_limit": "512MB", "temp_directory": ""}
_COLUMNS = {
    **dict.fromkeys(("key", "purpose", "task_id", "fate", "failure"), "VARCHAR"),
    **dict.fromkeys(("index", "number", "step", "attempt", "length"), "BIGINT"),
    **dict.fromkeys(("created_at", "accuracy", "process", "reward"), "DOUBLE"),
    **dict.fromkeys(("advantage", "surprise", "parity_gap"), "DOUBLE"),
    **dict.fromkeys(("truncated", "graded"), "BOOLEAN"),
}
_EXPRESSIONS = {
    "advantage": "coalesce(advantage, token_advantage)",  # with a critic, the mean over tokens
    "graded": "grade IS NOT NULL",
}
_SELECTED = ", ".join(_EXPRESSIONS.get(name, name) for name in _COLUMNS)
_PURPOSE = f"list_position({[purpose.value for purpose in Purpose]}, purpose) - 1"
_PLACE = ("step", _PURPOSE, "number", "coalesce(index, 0)")
_TASK = "json_extract(request, '$.task')"
_TEXTS = (
    f"left(coalesce(prompt, json_extract_string({_TASK}, '$.prompt'), "
    f"json_extract_string({_TASK}, '$.messages[#-1].content')), {MAX_CHARS}), "
    f"left(text, {MAX_CHARS})"
)
_UNREADABLE = (duckdb.Error, UnicodeDecodeError)  # the second: a message quotes raw bytes
_TEMPORARY = (duckdb.IOException, duckdb.OutOfMemoryException)  # perhaps: the file is read again


class Order(StrEnum):
    OLDEST = "oldest"
    NEWEST = "newest"
    WRONG = "wrong"  # of wrong ones, the most confident
    REWARDED = "rewarded"
    SURPRISING = "surprising"
    PARITY = "parity"


# The expressions that each order sorts by. Rows with null in the first one are left out.
RANKS = {
    Order.OLDEST: _PLACE,
    Order.NEWEST: ("0 - step", f"0 - ({_PURPOSE})", "0 - number", "coalesce(index, 0)"),
    Order.WRONG: (f"CASE WHEN accuracy < {RIGHT} THEN surprise END", *_PLACE),
    Order.REWARDED: ("0 - reward", "coalesce(0 - advantage, 'inf'::DOUBLE)", *_PLACE),
    Order.SURPRISING: ("0 - surprise", *_PLACE),
    Order.PARITY: ("0 - parity_gap", *_PLACE),
}
# The expression that each filter compares; null matches nothing.
_FILTERS = {
    **{name: name for name in ("step", "purpose", "key", "fate", "truncated")},
    "task": "task_id",
    "correct": f"accuracy >= {RIGHT}",
    "ungradable": "CASE WHEN graded THEN accuracy IS NULL END",
    "zero_advantage": "advantage = 0",
}


class SampleFilter(BaseModel):
    """Filters for samples. A sample without a value for a filter does not match."""

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
    damaged: dict[str, str] = field(default_factory=dict)  # the reason, by the file's name
    _identities: dict[StepFile, tuple[int, int, int]] = field(default_factory=dict)
    _searches: dict[tuple[str, str], frozenset[tuple[str, int]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
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

    def refresh(self) -> Row:
        """Read new files and forget removed ones; returns counts of the whole store."""
        with self._lock:
            identities = {file: self._identity(file) for file in step_files(self.folder)}
            current = {file: identity for file, identity in identities.items() if identity}
            old = [
                file for file, identity in self._identities.items() if current.get(file) != identity
            ]
            for file in old:
                self._forget(file)
            new = [file for file in current if file not in self._identities]
            for start in range(0, len(new), MAX_FILES_PER_QUERY):
                files = new[start : start + MAX_FILES_PER_QUERY]
                unread = self._read([file.name for file in files])
                self._identities |= {
                    file: current[file] for file in files if file.name not in unread
                }
            if new or old or self._summary is None:
                self._summary = self._count()
            return self._summary

    def _forget(self, file: StepFile) -> None:
        self._searches = {}
        self._database.execute("DELETE FROM samples WHERE file = ?", [file.name])
        self.damaged.pop(file.name, None)
        del self._identities[file]

    def select(
        self, sample_filter: SampleFilter, order: Order, after: Sequence[float] | None, limit: int
    ) -> list[Row]:
        """Return the first matching rows, each with its ``place`` in the order and its ``file``.

        Args:
            after: the place before the first row.
        """
        filters = sample_filter.model_dump(
            include=set(SampleFilter.model_fields), exclude_none=True
        )
        conditions = ["place[1] IS NOT NULL", *(f"({_FILTERS[name]}) = ?" for name in filters)]
        values: list[Any] = list(filters.values())
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

    def search(self, rows: Sequence[Row], text: str) -> list[Row]:
        """Return the rows with a response that contains a text, in any case."""
        files = {row["file"] for row in rows}
        matches = {match for file in files for match in self._search_file(file, text.casefold())}
        return [row for row in rows if (row["key"], row["index"]) in matches]

    def _search_file(self, file: str, text: str) -> frozenset[tuple[str, int]]:
        """Return the key and index of each response of a file that contains a text."""
        matches = self._searches.get((file, text))
        if matches is None:
            query = "SELECT key, index, text FROM read_parquet(?) WHERE text IS NOT NULL"
            try:
                rows = self._database.cursor().execute(query, [self._path(file)]).fetchall()
            except _UNREADABLE:  # removed or damaged
                return frozenset()
            while len(self._searches) >= MAX_SEARCHES:
                self._searches.pop(next(iter(self._searches)), None)
            matches = frozenset(
                (key, index) for key, index, response in rows if text in response.casefold()
            )
            self._searches[file, text] = matches
        return matches

    def add_texts(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with the first characters of their ``prompt`` and ``text``."""
        keys_by_file = defaultdict[str, set[str]](set)
        for row in rows:
            keys_by_file[row["file"]].add(row["key"])
        query = f"SELECT key, index, {_TEXTS} FROM read_parquet(?) WHERE list_contains(?, key)"
        texts: dict[tuple[str, int | None], tuple[Any, Any]] = {}
        for file, keys in keys_by_file.items():
            with suppress(*_UNREADABLE):  # a damaged file is in the summary
                cursor = self._database.cursor().execute(query, [self._path(file), sorted(keys)])
                for key, index, *prompt_and_text in cursor.fetchall():
                    texts[key, index] = tuple(prompt_and_text)
        complete: list[Row] = []
        for row in rows:
            prompt, text = texts.get((row["key"], row["index"]), (None, None))
            complete.append({**row, "prompt": prompt, "text": text})
        return complete

    def read_group(self, key: str) -> list[Row]:
        """Return all columns of a group: a row per response, or one row if it failed.

        Raises:
            Problem: 404 if there is none, or if its file is damaged.
        """
        self.refresh()
        cursor = self._database.cursor()
        query = "SELECT file FROM samples WHERE key = ? LIMIT 1"
        match = cursor.execute(query, [key]).fetchone()
        if match is None:
            raise self._missing(key, "; ".join(self.damaged.values()))
        file = match[0]
        query = "SELECT * FROM read_parquet(?) WHERE key = ? ORDER BY index"
        try:
            columns = cursor.execute(query, [self._path(file), key]).fetchnumpy()
        except _UNREADABLE as error:
            raise self._missing(key, self._describe_damage(file, error)) from error
        return [
            {name: _to_plain(values[index]) for name, values in columns.items()}
            for index in range(len(columns["key"]))
        ]

    def _read(self, names: Sequence[str]) -> set[str]:
        """Read files together, or one by one if one is damaged.

        Returns:
            The names of files to read again, since they may become readable.
        """
        query = f"INSERT INTO samples SELECT {_SELECTED}, parse_filename(filename) "
        paths = [self._path(name) for name in names]
        try:
            self._database.execute(f"{query}FROM read_parquet(?)", [paths])
        except _UNREADABLE as error:
            if len(names) == 1:
                return self._note_damage(names[0], error)
            return {unread for name in names for unread in self._read([name])}
        for name in names:
            self.damaged.pop(name, None)
        return set()

    def _note_damage(self, name: str, error: Exception) -> set[str]:
        reason = self._describe_damage(name, error)
        if not reason:
            return set()
        if self.damaged.get(name) != reason:
            log.warning("samples left out", extra={"why": reason})
        self.damaged[name] = reason
        return {name} if isinstance(error, _TEMPORARY) else set()

    def _count(self) -> Row:
        query = "SELECT count(DISTINCT key), count(index), min(step), max(step) FROM samples"
        counts = self._database.execute(query).fetchall()[0]
        names = ("groups", "responses", "first_step", "last_step")
        return {
            **dict(zip(names, counts, strict=True)),
            "fates": self._count_groups("fate"),
            "purposes": self._count_groups("purpose"),
            "damaged": list(self.damaged.values()),
        }

    def _count_groups(self, column: str) -> dict[str, int]:
        query = f"SELECT {column}, count(DISTINCT key) FROM samples GROUP BY {column}"
        return dict(self._database.execute(query).fetchall())

    def _identity(self, file: StepFile) -> tuple[int, int, int] | None:
        """Return a value that a replaced file does not share; None if it has been removed."""
        try:
            stat = (self.folder / file.name).stat()
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def _path(self, name: str) -> str:
        return str(self.folder / name)

    def _describe_damage(self, name: str, error: Exception) -> str:
        """Describe the fault of a file; empty if it has been removed."""
        if not (self.folder / name).exists():
            return ""
        return f"{name} cannot be read: {str(error).splitlines()[0]}"

    def _missing(self, key: str, damage: str) -> Problem:
        if not damage:
            return not_found("sample", key)
        message = f"there is no sample {key!r} that can be read: {damage}"
        return Problem(404, message, param="key", code="damaged")


def _to_plain(value: Any) -> Any:
    """Return an array of NumPy for a list, None for null."""
    if value is np.ma.masked:
        return None
    return value.item() if isinstance(value, np.generic) else value
