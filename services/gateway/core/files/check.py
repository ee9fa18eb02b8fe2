"""Checks of task files, in worker processes: a file may take long, or much memory."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.messages import Task
from protocol.tasks import TaskFileError, raw_lines, valid_tasks

from services.chassis.pool import Failed, Pool

MAX_CHECKS = 2  # at once
CPU_LIMIT_S = 600.0
MAX_COLUMNS = 100
NICENESS = 5  # requests come first
MESSAGES = "(messages)"  # no column: a template reads them as the prompt


@dataclass(frozen=True)
class Contents:
    """The tasks of a file, and how many have each column; None if there are too many columns."""

    tasks: int
    columns: dict[str, int] | None


async def check_file(pool: Pool, path: Path, cpu_limit_s: float = CPU_LIMIT_S) -> Contents:
    """Read all tasks of a file.

    Raises:
        TaskFileError: naming the wrong lines and fields.
    """
    result: Any = await pool.run(f"{__name__}:read_contents", str(path), deadline_s=cpu_limit_s)
    if isinstance(result, Failed):
        raise TaskFileError(["file: the check took too long, or too much memory; split the file"])
    if "problems" in result.value:
        raise TaskFileError(result.value["problems"])
    return Contents(**result.value)


def read_contents(path: str) -> dict[str, Any]:
    """Return the fields of `Contents`, or ``problems``. Runs in a worker process."""
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    num_tasks = 0
    columns: Counter[str] | None = Counter()
    try:
        with open(path, "rb") as file:
            for task in valid_tasks(raw_lines(file)):
                num_tasks += 1
                if columns is not None:
                    columns.update(_task_columns(task))
                    columns = columns if len(columns) <= MAX_COLUMNS else None
    except TaskFileError as error:
        return {"problems": error.problems}
    return {"tasks": num_tasks, "columns": columns and dict(columns)}


def _task_columns(task: Task) -> set[str]:
    """Return the names that a template may use as ``{{item.column}}``."""
    fields = ("prompt", "answer", "solution")
    columns = {name for name in fields if getattr(task, name) is not None} | set(task.metadata)
    return columns if task.messages is None else columns | {MESSAGES}
