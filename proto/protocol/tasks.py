"""Task files: JSON Lines, one task a line. Every problem is reported with its line and field.

A line has Weir's own shape, a `Task`; or, if it has ``messages``, the shape of OpenAI's data for
reinforcement: then ``reference_answer`` is the answer where there is no ``answer``, and any other
column is kept in the metadata, where templates find ``{{item.column}}``. Without an id a line has
one that its text makes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from protocol.messages import Task
from protocol.recipe import explain

MAX_DEPTH = 64  # pydantic's reader gives up at 200, and what comes in travels in other values
MAX_LINE_BYTES = 4 << 20
MAX_TASKS = 1_000_000
_MAX_ENTRIES = 1000  # of a task, and of its messages
_MAX_PROBLEMS = 20
_MAX_PROBLEM_CHARS = 500
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TOOLS = ("tools", "functions")


class TaskFileError(ValueError):
    """A task file that cannot be used; ``problems`` has one entry per wrong line."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


@dataclass(frozen=True)
class Line:
    """One line that is not blank, and its number from 1. ``task`` is None if it cannot be used."""

    number: int
    text: str
    task: Task | None
    problems: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        return json.loads(self.text)


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Read a task file, or raise a `TaskFileError` of up to 20 problems."""
    try:
        with path.open("rb") as file:
            return tuple(sound_tasks(raw_lines(file)))
    except OSError as error:
        raise TaskFileError([f"{path}: {error.strerror}"]) from error


def sound_tasks(lines: Iterable[bytes]) -> Iterator[Task]:
    """The tasks of a file one by one, in the memory of one line and of 200 bytes per task.

    A `TaskFileError` of up to 20 problems comes after the last task or the last of these.
    """
    problems: list[str] = []
    num_tasks = 0
    for line in parse_lines(lines):
        problems += [f"line {line.number}: {problem}" for problem in line.problems]
        num_tasks += 1
        if num_tasks > MAX_TASKS:
            problems.append(f"line {line.number}: over {MAX_TASKS:,} tasks; split the file")
        if len(problems) >= _MAX_PROBLEMS or num_tasks > MAX_TASKS:
            break
        if line.task is not None:
            yield line.task
    if not num_tasks:
        problems.append("line 1: the file holds no task")
    if problems:
        raise TaskFileError(problems[:_MAX_PROBLEMS])


def parse_lines(lines: Iterable[bytes]) -> Iterator[Line]:
    """Every line that is not blank: a task, or what is wrong with it."""
    first_line_of: dict[int, int] = {}  # by the hash of the id, which may be long
    for number, raw in enumerate(lines, start=1):
        if raw.isspace() or (line := _line(number, raw)) is None:
            continue
        if line.task is not None:
            earlier = first_line_of.setdefault(hash(line.task.id), number)
            line = line if earlier == number else _repeated(line, line.task, earlier)
        yield line


def raw_lines(file: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Lines without a byte order mark; of a line that is too long, just over the limit."""
    raw = file.readline(max_bytes + 1).removeprefix(_BYTE_ORDER_MARK)
    while raw:
        rest = raw if len(raw) > max_bytes else b""
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(max_bytes)
        yield raw
        raw = file.readline(max_bytes + 1)


def _line(number: int, raw: bytes) -> Line | None:
    if len(raw) > MAX_LINE_BYTES:
        return Line(number, "", None, (f"longer than {MAX_LINE_BYTES >> 20} MiB; split the file",))
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} of the line is 0x{raw[error.start]:02x}"
        return Line(number, "", None, (f"not UTF-8: {where}; save the file as UTF-8",))
    if not text.strip():
        return None
    try:
        return Line(number, text, _parse_task(text))
    except ValueError as error:
        problems = str(error).splitlines()
        return Line(number, text, None, tuple(text[:_MAX_PROBLEM_CHARS] for text in problems))


def _repeated(line: Line, task: Task, earlier: int) -> Line:
    """A line that has no id of its own may be repeated: its number makes another id."""
    if task.id == _derived_id(line.text):
        return replace(line, task=task.model_copy(update={"id": f"{task.id}-{line.number}"}))
    problem = f"id: {task.id!r}"[:_MAX_PROBLEM_CHARS]
    return replace(line, problems=(f"{problem} is taken by line {earlier}",))


def _derived_id(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]


def _parse_task(text: str) -> Task:
    data = _read_json(text)
    if not isinstance(data, dict):
        raise ValueError("a task must be a JSON object: {...}")
    for name, several in (("task", data), ("messages", data.get("messages"))):
        if isinstance(several, dict | list) and len(several) > _MAX_ENTRIES:
            raise ValueError(f"{name}: more than {_MAX_ENTRIES:,} entries; leave some out")
    if text.count("[") + text.count("{") > MAX_DEPTH and (place := _too_deep(data)) is not None:
        raise ValueError(f"{place}: nested more than {MAX_DEPTH} deep; write it flatter")
    # A file's text is sound, so only an escape can bring in what is not.
    if "\\u" in text and (faults := list(unencodable(data))):
        raise ValueError("\n".join(faults))
    try:
        own = {"id": _derived_id(text)} | (_of_openai(data) if "messages" in data else data)
        task = Task.model_validate(own)
    except ValidationError as error:
        raise ValueError(explain(error, whole="task")) from error
    if task.prompt is not None and task.answer is None:
        raise ValueError("answer: required, but missing")
    return task


def _read_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("not valid JSON: nested too deeply") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"not valid JSON: {text} is not a finite number")
    return number


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:  # Python refuses a long one, because that takes time
        problem = f"a number of {len(text)} digits cannot be read"
        raise ValueError(f"{problem}; write it as text, in quotes, or remove it") from error


def _too_deep(data: dict[str, Any]) -> str | None:
    for name, value in data.items():
        level = [value]
        for _ in range(MAX_DEPTH):
            level = [part for each in level for part in _parts(each)]
        if level:
            return name
    return None


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _of_openai(data: dict[str, Any]) -> dict[str, Any]:
    """A line with ``messages`` as the fields of a task."""
    if wrong := [key for key in _TOOLS if key in data]:
        raise ValueError(f"{wrong[0]}: no tools are offered to the model here; remove it")
    columns = {key: value for key, value in data.items() if key not in Task.model_fields}
    own = {key: data[key] for key in Task.model_fields if data.get(key) is not None}
    metadata = own.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise ValueError("metadata: must be an object {...}; call the column otherwise")
    if twice := [key for key in columns if key in metadata]:
        raise ValueError(f"{twice[0]}: stands in the metadata too; remove one of them")
    if columns.get("reference_answer") not in (None, ""):
        own.setdefault("answer", columns["reference_answer"])
    texts = {key: as_text(own[key]) for key in ("id", "answer", "solution") if key in own}
    return own | texts | {"metadata": metadata | columns}


def as_text(value: object) -> str:
    """How a template shows a value of JSON: a text as it is, else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def unencodable(value: Any, path: str = "") -> Iterator[str]:
    """What JSON in UTF-8 cannot hold, though Python's lets it in: its dotted place, and the remedy.

    That is NaN, infinity, and text with a lone surrogate, which is half a character ("\\ud83d").
    """
    waiting = [(path, value)]
    while waiting:
        place, found = waiting.pop()
        if isinstance(found, float) and not math.isfinite(found):
            yield f"{shown(place)}: must be a finite number"
        elif isinstance(found, str) and not found.isascii() and shown(found) != found:
            yield f"{shown(place)}: holds half a character (a lone surrogate); remove it"
        elif isinstance(found, Mapping):
            for key, item in reversed(list(found.items())):
                below = f"{place}.{key}" if place else str(key)
                waiting += [(below, item), (below, key)]
        elif isinstance(found, list | tuple):
            waiting += [(f"{place}.{index}", found[index]) for index in reversed(range(len(found)))]


def shown(text: str) -> str:
    """The text, with an escape for what UTF-8 cannot hold."""
    return text.encode(errors="backslashreplace").decode()
