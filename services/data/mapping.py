"""A row of a dataset as the fields of a task."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from answers import last_boxed

from services.data.presets import Preset, Taken

Row = dict[str, Any]

_HASHES = "####"
_TURN = "role", "content"
_MISSING = {Taken.COLUMN: "answer", Taken.BOX: "box", Taken.HASHES: _HASHES}


class RefusedError(ValueError):
    """The command cannot do its work; the text says what to change."""


class Dropped(ValueError):
    """A row that makes no task; the text is the reason, the same for all of its kind."""


def flat(row: Row, before: str = "") -> Row:
    """A row that also has the fields of its structs, by names with dots."""
    found: Row = {}
    for name, value in row.items():
        found[f"{before}{name}"] = value
        if isinstance(value, dict):
            found |= flat(value, f"{before}{name}.")
    return found


def resolved(preset: Preset, there: set[str]) -> Preset:
    """The preset with those of its columns that are there.

    Raises:
        RefusedError: naming the column that is not there, and those that are.
    """
    taken = dict(preset.answer)
    problem = _one_of("the problem", preset.problem, there)
    answer = _one_of("the answer", tuple(taken), there)
    for name in sorted(preset.required):
        _one_of("what was asked for", (name,), there)
    return replace(
        preset,
        problem=(problem,),
        answer=((answer, taken[answer]),),
        solution=tuple(name for name in preset.solution if name in there)[:1],
        id=tuple(name for name in preset.id if name in there)[:1],
        only={name: values for name, values in preset.only.items() if name in there},
    )


def task_fields(preset: Preset, row: Row) -> dict[str, Any]:
    """The fields of a task by a resolved preset; no ``id`` where the dataset has none.

    Raises:
        Dropped: if the row makes no task.
        RefusedError: if it is not known what the author wrote in a cell.
    """
    for name, wanted in preset.only.items():
        if _as_text(row.get(name)) not in wanted:
            raise Dropped(f"{name} is not {' or '.join(value or 'empty' for value in wanted)}")
    for name, unwanted in preset.never.items():
        if (text := _as_text(row.get(name))) in unwanted:
            raise Dropped(f"{name} is {text}")
    own_id = _text(row, *preset.id) if preset.id else ""
    fields: dict[str, Any] = {"id": own_id} if own_id else {}
    fields |= {**_problem(preset, row), "answer": _answer(preset, row)}
    if solution := _solution(preset, row):
        fields["solution"] = solution
    metadata = {name: row[name] for name in preset.keep if _text(row, name)}
    return fields | ({"metadata": metadata} if metadata else {})


def _problem(preset: Preset, row: Row) -> dict[str, Any]:
    (name,) = preset.problem
    turns = _cell(row, name)
    if not (isinstance(turns, list) and turns and isinstance(turns[0], dict)):
        turns = [{"role": "user", "content": _text(row, name)}]
    if any(turn.get(key) is None for turn in turns for key in _TURN):
        raise Dropped(f"a turn without {' or '.join(_TURN)} in {name!r}")
    content = turns[0]["content"]
    if [turn["role"] for turn in turns] != ["user"] or not isinstance(content, str):
        return {"messages": [{key: turn[key] for key in _TURN} for turn in turns]}
    head, tail = preset.wrapping
    problem = content.strip().removeprefix(head).removesuffix(tail).strip()
    if not problem:
        raise Dropped(f"no problem in {name!r}")
    context = _text(row, preset.context)
    return {"prompt": f"{context}\n\n{problem}" if context else problem}


def _answer(preset: Preset, row: Row) -> str:
    [(name, taken)] = preset.answer
    text = _text(row, name)
    if taken is Taken.BOX:
        text = (last_boxed(text) or "").strip()
    elif taken is Taken.HASHES:
        text = text.rpartition(_HASHES)[2].strip() if _HASHES in text else ""
    if not text:
        raise Dropped(f"no {_MISSING[taken]} in {name!r}")
    unit = _text(row, preset.unit)
    return text + (rf"\text{{ {unit}}}" if unit[:1].isalpha() else unit)


def _solution(preset: Preset, row: Row) -> str:
    """The first of several; only what is before the answer, if that stands behind it."""
    if not preset.solution:
        return ""
    (name,) = preset.solution
    value = _cell(row, name)
    text = _as_text(value[0] if isinstance(value, list) and value else value)
    if preset.answer == ((name, Taken.HASHES),):
        text = text.rpartition(_HASHES)[0].strip()
    return re.sub(preset.noise, "", text)


def _one_of(part: str, names: Sequence[str], there: set[str]) -> str:
    for name in names:
        if name in there:
            return name
    wanted = " or ".join(map(repr, names))
    raise RefusedError(f"no column {wanted} for {part}; there are: {', '.join(sorted(there))}")


def _text(row: Row, name: str) -> str:
    return _as_text(_cell(row, name))


def _cell(row: Row, name: str) -> Any:
    value = row.get(name) if name else None  # a column of a CSV may have no name
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        remedy = "what its author wrote cannot be told; store it as text in UTF-8"
        raise RefusedError(f"column {name!r}: {remedy}") from error
    return value


def _as_text(value: Any) -> str:
    """A number as it is, a list of plain values with commas, all else as JSON."""
    if value is None:
        return ""
    if isinstance(value, list) and not any(isinstance(part, dict | list) for part in value):
        return ", ".join(filter(None, map(_as_text, value)))
    if isinstance(value, bool | dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value).strip()
