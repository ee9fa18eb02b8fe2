"""Task files: JSON Lines with one task a line. Problems are reported with line and field.

A line is a `Task`; or, if it has ``messages``, it may have the format of OpenAI's reinforcement
fine-tuning. Then ``reference_answer`` is the answer if there is no ``answer``. Other columns go to
the metadata, where templates find them as ``{{item.column}}``. A line without an id gets one from
the hash of its text.
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
from protocol.recipe_files import explain

MAX_DEPTH = 64  # pydantic fails at 200, and messages nest the data further
MAX_LINE_BYTES = 4 << 20
MAX_TASKS = 1_000_000
_MAX_ENTRIES = 1000  # of a task and of its messages
_MAX_PROBLEMS = 20
_MAX_PROBLEM_CHARS = 500
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TOOLS = ("tools", "functions")
_NO_OBJECT = (
    "a task must be a JSON object {...}: write one a line, or convert a CSV file or a JSON array "
    "with `weir data import FILE OUT --problem COLUMN --answer COLUMN`"
)
_QUOTES = tuple("'‘’‚“”„«»")
_REMEDIES = {  # for messages of Python's parser
    "Extra data": "remove what follows the object",
    "Invalid control character at": r"write \n, \t or \u and four digits instead",
    "Unterminated string starting at": "close this quote",
}


class TaskFileError(ValueError):
    """An invalid task file; ``problems`` has one entry per problem."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


@dataclass(frozen=True)
class Line:
    """A line that is not blank, with its number from 1; ``task`` is None if it is invalid."""

    number: int
    text: str
    task: Task | None
    problems: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        return json.loads(self.text)


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Read a task file, or raise a `TaskFileError` with up to 20 problems."""
    try:
        with path.open("rb") as file:
            return tuple(valid_tasks(raw_lines(file)))
    except OSError as error:
        raise TaskFileError([f"{path}: {error.strerror}"]) from error


def valid_tasks(lines: Iterable[bytes]) -> Iterator[Task]:
    """Yield the valid tasks of a file, with memory for one line and 200 bytes per task.

    A `TaskFileError` with up to 20 problems follows.
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
        problems.append("line 1: the file has no task")
    if problems:
        raise TaskFileError(problems[:_MAX_PROBLEMS])


def parse_lines(lines: Iterable[bytes]) -> Iterator[Line]:
    """Yield every line that is not blank, with its task or its problems."""
    first_lines: dict[int, int] = {}  # by the hash of the id, which may be long
    for number, raw in enumerate(lines, start=1):
        line = _parse_line(number, raw)
        if line is None:
            continue
        if line.task is not None:
            earlier = first_lines.setdefault(hash(line.task.id), number)
            if earlier != number:
                line = _resolve_repetition(line, line.task, earlier)
        yield line


def raw_lines(file: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yield lines without a byte order mark; cut long ones just above ``max_bytes``."""
    raw = file.readline(max_bytes + 1).removeprefix(_BYTE_ORDER_MARK)
    while raw:
        remainder = raw if len(raw) > max_bytes else b""
        while remainder and not remainder.endswith(b"\n"):
            remainder = file.readline(max_bytes)
        yield raw
        raw = file.readline(max_bytes + 1)


def _parse_line(number: int, raw: bytes) -> Line | None:
    if raw.isspace():
        return None
    if len(raw) > MAX_LINE_BYTES:
        problem = f"longer than {MAX_LINE_BYTES >> 20} MiB; split the file"
        return Line(number, "", None, (problem,))
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        problem = (
            f"not UTF-8: byte {error.start + 1} of the line is 0x{raw[error.start]:02x}; "
            "save the file as UTF-8"
        )
        return Line(number, "", None, (problem,))
    if not text.strip():
        return None
    try:
        return Line(number, text, _parse_task(text))
    except ValueError as error:
        problems = str(error).splitlines()
        return Line(number, text, None, tuple(text[:_MAX_PROBLEM_CHARS] for text in problems))


def _resolve_repetition(line: Line, task: Task, earlier: int) -> Line:
    """Give a repeated line without an id another one; report a repeated id."""
    if task.id == _derived_id(line.text):
        return replace(line, task=task.model_copy(update={"id": f"{task.id}-{line.number}"}))
    problem = f"id: {task.id!r}"[:_MAX_PROBLEM_CHARS]
    return replace(line, problems=(f"{problem} is taken by line {earlier}",))


def _derived_id(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]


def _parse_task(text: str) -> Task:
    data = _read_json(text)
    if not isinstance(data, dict):
        raise ValueError(_NO_OBJECT)
    for name, entries in (("task", data), ("messages", data.get("messages"))):
        if isinstance(entries, dict | list) and len(entries) > _MAX_ENTRIES:
            raise ValueError(f"{name}: more than {_MAX_ENTRIES:,} entries; leave some out")
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(data)
    # The file is valid UTF-8, so that only escapes can add lone surrogates.
    problems = list(unencodable(data)) if "\\u" in text else []
    if problems:
        raise ValueError("\n".join(problems))
    fields = _convert_openai(data) if "messages" in data else _convert_plain(data)
    try:
        task = Task.model_validate({"id": _derived_id(text)} | fields)
    except ValidationError as error:
        raise ValueError(explain(error, whole="task")) from error
    if task.prompt is not None and task.answer is None:
        raise ValueError("answer: required, but missing")
    return task


def _read_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise ValueError(_explain_json(text, error.pos, error.msg)) from error
    except RecursionError as error:
        raise ValueError("not valid JSON: nested too deeply") from error


def _explain_json(text: str, position: int, message: str) -> str:
    """Return where a line is no JSON object, and the remedy."""
    if not text.lstrip().startswith("{"):
        return _NO_OBJECT
    if position >= len(text.rstrip()):
        reason = "the line ends too early: write each task on one line"
        return f"not valid JSON: {reason}, and close its quotes and {{}}"
    remedy = _find_remedy(text, position, message)
    return f"not valid JSON at column {position + 1}, {text[position]!r}: {remedy}"


def explain_json(error: json.JSONDecodeError) -> str:
    """Return the place where a text is not valid JSON, and the remedy."""
    place = f"line {error.lineno}, column {error.colno}"
    if error.pos >= len(error.doc.rstrip()):
        return f"not valid JSON: it ends too early, at {place}; close its quotes and brackets"
    remedy = _find_remedy(error.doc, error.pos, error.msg)
    return f"not valid JSON at {place}, {error.doc[error.pos]!r}: {remedy}"


def _find_remedy(text: str, position: int, message: str) -> str:
    """Return the remedy for a character that JSON does not allow, else the parser's message."""
    character = text[position]
    before = text[:position].rstrip()
    if character in _QUOTES or before[-1:] in _QUOTES:
        return 'write straight double quotes (")'
    if before.endswith(",") and character in "}]":
        return f"remove the comma before {character!r}"
    return _REMEDIES.get(message, message)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"not valid JSON: {text} is not a finite number")
    return number


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:  # Python refuses to parse long numbers
        problem = f"a number of {len(text)} digits cannot be read"
        raise ValueError(f"{problem}; write it as text, in quotes, or remove it") from error


def _check_depth(data: dict[str, Any]) -> None:
    for name, value in data.items():
        level = [value]
        for _ in range(MAX_DEPTH):
            level = [part for parent in level for part in _parts(parent)]
        if level:
            raise ValueError(f"{name}: nested more than {MAX_DEPTH} deep; write it flatter")


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _convert_plain(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a task, whose answer may be an integer."""
    answer = data.get("answer")
    if isinstance(answer, float):
        raise ValueError("answer: a number with a point or an exponent; write it in quotes")
    is_integer = isinstance(answer, int) and not isinstance(answer, bool)
    return data | {"answer": str(answer)} if is_integer else data


def _convert_openai(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a task from a line with ``messages``."""
    for name in _TOOLS:
        if name in data:
            raise ValueError(f"{name}: the model gets no tools; remove it")
    columns = {key: value for key, value in data.items() if key not in Task.model_fields}
    fields = {key: data[key] for key in Task.model_fields if data.get(key) is not None}
    metadata = fields.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise ValueError("metadata: must be an object {...}; rename the column")
    repeated = [key for key in columns if key in metadata]
    if repeated:
        raise ValueError(f"{repeated[0]}: is a column and in the metadata; remove one of them")
    if columns.get("reference_answer") not in (None, ""):
        fields.setdefault("answer", columns["reference_answer"])
    texts = {key: as_text(fields[key]) for key in ("id", "answer", "solution") if key in fields}
    return fields | texts | {"metadata": metadata | columns}


def as_text(value: object) -> str:
    """Return a text unchanged, and any other value as JSON, as templates do."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def unencodable(value: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted path and remedy of each value that JSON in UTF-8 cannot represent.

    Python's parser accepts such values: NaN, infinity, and texts with a lone surrogate ("\\ud83d").
    """
    stack = [(path, value)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{escape_surrogates(path)}: must be a finite number"
        elif isinstance(value, str) and not value.isascii() and escape_surrogates(value) != value:
            yield f"{escape_surrogates(path)}: has half a character (a lone surrogate); remove it"
        elif isinstance(value, Mapping):
            for key, child in reversed(list(value.items())):
                child_path = f"{path}.{key}" if path else str(key)
                stack += [(child_path, child), (child_path, key)]
        elif isinstance(value, list | tuple):
            for index in reversed(range(len(value))):
                stack.append((f"{path}.{index}", value[index]))


def escape_surrogates(text: str) -> str:
    """Escape lone surrogates."""
    return text.encode(errors="backslashreplace").decode()
