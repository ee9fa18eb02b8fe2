"""Task files: JSON Lines, one task a line. Every problem is reported with its line and field."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from protocol.encodable import MAX_DEPTH, nests_too_deep, unencodable
from protocol.messages import Task
from protocol.recipe import explain

_MAX_PROBLEMS = 20


class TaskFileError(ValueError):
    """A task file that cannot be used; ``problems`` has one entry per wrong line."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


def parse_tasks(lines: Iterable[str]) -> tuple[Task, ...]:
    """Parse the lines of a task file; blank lines are skipped.

    Raises:
        TaskFileError: naming the line, the field and the remedy of up to 20 problems.
    """
    tasks: list[Task] = []
    problems: list[str] = []
    first_line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = _parse_task(line)
        except ValueError as error:
            problems += [f"line {number}: {problem}" for problem in str(error).splitlines()]
            continue
        if (earlier := first_line_of.setdefault(task.id, number)) != number:
            problems.append(f"line {number}: id: {task.id!r} is taken by line {earlier}")
        tasks.append(task)
    if not tasks and not problems:
        problems.append("line 1: the file holds no task")
    if problems:
        raise TaskFileError(problems[:_MAX_PROBLEMS])
    return tuple(tasks)


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Read a task file.

    Raises:
        TaskFileError: as `parse_tasks`, or if the file is missing or not UTF-8.
    """
    try:
        return parse_tasks(path.read_text(encoding="utf-8-sig").split("\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise TaskFileError([f"{path}: {error}"]) from error


def _parse_task(line: str) -> Task:
    if nests_too_deep(line.encode(errors="replace")):
        raise ValueError(f"not valid JSON: nested too deeply, over {MAX_DEPTH} levels")
    try:
        data = json.loads(line, parse_constant=_finite, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError("a task must be a JSON object: {...}")
    # A file's text is sound, so only an escape can bring in what is not.
    if "\\u" in line and (faults := list(unencodable(data))):
        raise ValueError("\n".join(faults))
    try:
        return Task.model_validate(data)
    except ValidationError as error:
        raise ValueError(explain(error, whole="task")) from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"not valid JSON: {text} is not a finite number")
    return number
