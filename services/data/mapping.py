"""Map a row of a dataset to the fields of a task."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from answers import last_boxed

from services.data.presets import AnswerPart, Preset

Row = dict[str, Any]

_HASHES = "####"
_TURN_FIELDS = ("role", "content")
_PART_NAMES = {AnswerPart.COLUMN: "answer", AnswerPart.BOX: "box", AnswerPart.HASHES: _HASHES}


class RefusedError(ValueError):
    """The command cannot do its work; the text says what to change."""


class RowSkipped(ValueError):
    """A row that makes no task; the text is the reason, the same for all rows of its kind."""


@dataclass(frozen=True)
class Columns:
    """The columns of a preset that exist in a dataset; "" if there is no such column.

    ``only`` are the preset's conditions on existing columns.
    """

    preset: Preset
    only: Mapping[str, frozenset[str]]
    problem: str
    answer: str
    part: AnswerPart
    solution: str
    id: str


def flatten(row: Row, prefix: str = "") -> Row:
    """Add the fields of a row's structs, by names with dots."""
    flat: Row = {}
    for name, value in row.items():
        flat[f"{prefix}{name}"] = value
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
    return flat


def find_columns(preset: Preset, names: set[str]) -> Columns:
    """Find a preset's columns in a dataset with these columns.

    Raises:
        RefusedError: if one is missing.
    """
    parts = dict(preset.answer)
    problem = _require("the problem", preset.problem, names)
    answer = _require("the answer", parts, names)
    for name in sorted(preset.required):
        _require("an option", [name], names)
    return Columns(
        preset=preset,
        only={name: values for name, values in preset.only.items() if name in names},
        problem=problem,
        answer=answer,
        part=parts[answer],
        solution=_first_existing(preset.solution, names),
        id=_first_existing(preset.id, names),
    )


def _first_existing(candidates: Iterable[str], names: set[str]) -> str:
    return next((name for name in candidates if name in names), "")


def _require(part: str, candidates: Iterable[str], names: set[str]) -> str:
    name = _first_existing(candidates, names)
    if not name:
        missing = " or ".join(map(repr, candidates))
        raise RefusedError(f"no column {missing} for {part}; there are: {', '.join(sorted(names))}")
    return name


def build_fields(columns: Columns, row: Row) -> dict[str, Any]:
    """Return the fields of a task; without ``id`` if the dataset has none.

    Raises:
        RowSkipped: if the row makes no task.
        RefusedError: if the text of a cell cannot be known.
    """
    preset = columns.preset
    _check_conditions(columns, row)
    fields: dict[str, Any] = {}
    row_id = _text(row, columns.id)
    if row_id:
        fields["id"] = row_id
    fields |= _problem(columns, row)
    fields["answer"] = _answer(columns, row)
    solution = _solution(columns, row)
    if solution:
        fields["solution"] = solution
    metadata = {name: row[name] for name in preset.keep if _text(row, name)}
    if metadata:
        fields["metadata"] = metadata
    return fields


def _check_conditions(columns: Columns, row: Row) -> None:
    for name, values in columns.only.items():
        if _to_text(row.get(name)) not in values:
            expected = " or ".join(value or "empty" for value in values)
            raise RowSkipped(f"{name} is not {expected}")
    for name, values in columns.preset.never.items():
        text = _to_text(row.get(name))
        if text in values:
            raise RowSkipped(f"{name} is {text}")


def _problem(columns: Columns, row: Row) -> dict[str, Any]:
    name = columns.problem
    turns = _cell(row, name)
    is_conversation = isinstance(turns, list) and turns and isinstance(turns[0], dict)
    if not is_conversation:
        turns = [{"role": "user", "content": _text(row, name)}]
    messages: list[dict[str, Any]] = []
    for turn in turns:
        message = {key: turn.get(key) for key in _TURN_FIELDS}
        if None in message.values():
            raise RowSkipped(f"a turn without {' or '.join(_TURN_FIELDS)} in {name!r}")
        messages.append(message)
    content = messages[0]["content"]
    has_one_turn = [message["role"] for message in messages] == ["user"]
    if not has_one_turn or not isinstance(content, str):
        return {"messages": messages}
    head, tail = columns.preset.wrapping
    problem = content.strip().removeprefix(head).removesuffix(tail).strip()
    if not problem:
        raise RowSkipped(f"no problem in {name!r}")
    preset = columns.preset
    context = _text(row, preset.context)
    choices = _cell(row, preset.choices) or ()
    lines: list[str] = []
    for letter, choice in zip(string.ascii_uppercase, choices, strict=False):
        lines.append(f"({letter}) {choice}")
    parts = [context, problem, "\n".join(lines)]
    prompt = "\n\n".join(filter(None, parts))
    return {"prompt": prompt}


def _answer(columns: Columns, row: Row) -> str:
    text = _text(row, columns.answer)
    if columns.part is AnswerPart.BOX:
        text = (last_boxed(text) or "").strip()
    elif columns.part is AnswerPart.HASHES:
        _, separator, text = text.rpartition(_HASHES)
        text = text.strip() if separator else ""
    if not text:
        raise RowSkipped(f"no {_PART_NAMES[columns.part]} in {columns.answer!r}")
    unit = _text(row, columns.preset.unit)
    if unit[:1].isalpha():
        unit = rf"\text{{ {unit}}}"
    return text + unit


def _solution(columns: Columns, row: Row) -> str:
    """Return the first of several solutions, without the answer after ####."""
    value = _cell(row, columns.solution)
    if isinstance(value, list) and value:
        value = value[0]
    text = _to_text(value)
    if columns.part is AnswerPart.HASHES and columns.solution == columns.answer:
        text = text.rpartition(_HASHES)[0].strip()
    return re.sub(columns.preset.noise, "", text)


def _text(row: Row, name: str) -> str:
    return _to_text(_cell(row, name))


def _cell(row: Row, name: str) -> Any:
    # A column of a CSV may have the name "", which here means no column.
    value = row.get(name) if name else None
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise RefusedError(
            f"column {name!r}: the text of a cell cannot be known; store it as text in UTF-8"
        ) from error
    return value


def _to_text(value: Any) -> str:
    """Return a list of plain values with commas, other nested values as JSON."""
    if value is None:
        return ""
    if isinstance(value, list) and not any(isinstance(part, dict | list) for part in value):
        return ", ".join(filter(None, map(_to_text, value)))
    if isinstance(value, bool | dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value).strip()
