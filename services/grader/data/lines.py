"""The lines of a task file, whatever its bytes are: each a task, or what is wrong with it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from protocol.messages import Task
from protocol.tasks import TaskFileError, parse_tasks

MAX_LINE_BYTES = 16 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EMPTY = re.compile(r": (?:String|Tuple) should have at least 1 (?:character|item).*")
_PREFIX = "line 1: "  # `parse_tasks` is given one line at a time


@dataclass(frozen=True)
class Line:
    """One line that is not blank, and its number from 1. ``task`` is None if it cannot be used."""

    number: int
    text: str
    task: Task | None
    problems: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """The JSON object as written, with its own order of keys."""
        return json.loads(self.text)


def read_lines(path: Path) -> Iterator[Line]:
    """Every line of a task file; a file without any task is a problem of line 1.

    Raises:
        OSError: if the file cannot be read.
    """
    first_line_of: dict[str, int] = {}
    is_empty = True
    with path.open("rb") as file:
        for number, raw in enumerate(raw_lines(file), start=1):
            if not raw.decode(errors="replace").strip():
                continue
            is_empty = False
            line = _line(number, raw)
            if line.task and (earlier := first_line_of.setdefault(line.task.id, number)) != number:
                taken = f"id: {line.task.id!r} is taken by line {earlier}"
                line = Line(number, line.text, line.task, (*line.problems, taken))
            yield line
    if is_empty:
        yield Line(1, "", None, ("the file holds no task",))


def raw_lines(file: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Lines without a byte order mark; of a line that is too long, just over the limit."""
    raw = file.readline(max_bytes + 1).removeprefix(_BYTE_ORDER_MARK)
    while raw:
        if len(raw) > max_bytes:
            _skip_line(file, raw, max_bytes)
        yield raw
        raw = file.readline(max_bytes + 1)


def _skip_line(file: BinaryIO, read: bytes, max_bytes: int) -> None:
    while read and not read.endswith(b"\n"):
        read = file.readline(max_bytes)


def _line(number: int, raw: bytes) -> Line:
    if len(raw) > MAX_LINE_BYTES:
        return Line(number, "", None, (f"longer than {MAX_LINE_BYTES >> 20} MiB; split the file",))
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} of the line is 0x{raw[error.start]:02x}"
        return Line(number, "", None, (f"not UTF-8: {where}; save the file as UTF-8",))
    try:
        (task,) = parse_tasks([text])
    except TaskFileError as error:
        found = "\n".join(error.problems).removeprefix(_PREFIX).split("\n" + _PREFIX)
        return Line(number, text, None, tuple(_long_numbers(text)) or tuple(map(_plain, found)))
    return Line(number, text, task, tuple(_blanks(task)))


def _plain(problem: str) -> str:
    """An empty field, in the words of this report instead of the validator's."""
    return _EMPTY.sub(": empty; fill it in, or remove the task", problem)


def _long_numbers(text: str) -> Iterator[str]:
    """Integers that Python refuses to read, because that takes time: each with its field."""
    try:
        fields = json.loads(text, parse_int=_Digits)
    except (ValueError, RecursionError):
        return
    for name, digits in _numbers(fields):
        if len(digits.lstrip("-")) > sys.get_int_max_str_digits() > 0:
            remedy = "write it as text, in quotes, or remove it"
            yield f"{name}: a number of {len(digits.lstrip('-'))} digits cannot be read; {remedy}"


class _Digits(str):
    """An integer as it is written."""


def _numbers(fields: object) -> Iterator[tuple[str, _Digits]]:
    """The dotted names and the digits of all integers in a JSON value, however deep."""
    left: list[tuple[str, object]] = [("", fields)]
    while left:
        name, value = left.pop()
        if isinstance(value, _Digits):
            yield name or "task", value
        parts = enumerate(value) if isinstance(value, list) else ()
        parts = value.items() if isinstance(value, dict) else parts
        left += [(f"{name}.{key}" if name else str(key), part) for key, part in parts]


def _blanks(task: Task) -> Iterator[str]:
    if not task.answer.strip():
        yield "answer: blank; give the answer, or remove the task"
    texts = [task.prompt] if task.messages is None else [turn.content for turn in task.messages]
    if not any((text or "").strip() for text in texts):
        yield "prompt: blank; give the problem, or remove the task"
