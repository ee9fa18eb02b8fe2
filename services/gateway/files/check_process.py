"""What a process does that is forked to check one task file; it imports next to nothing."""

from __future__ import annotations

import json
import os
import resource
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from protocol.messages import Task
from protocol.tasks import TaskFileError, raw_lines, sound_tasks

from services.chassis.parent import die_with_parent

_MEMORY_BYTES = 1 << 30  # beyond what a new process has
_CPU_S = 600
_MAX_COLUMNS = 100
MESSAGES = "(messages)"  # no column: a template sees them as the prompt


def report(path: str, outcome: Connection) -> None:
    """Send ``tasks`` and ``columns`` of a file, or its ``problems``, as JSON."""
    die_with_parent()
    _limit()
    try:
        found = _contents(Path(path))
    except TaskFileError as error:
        found = {"problems": error.problems}
    except MemoryError:
        found = {"problems": ["line 1: checking the file takes too much memory; split it"]}
    outcome.send_bytes(json.dumps(found).encode())


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * os.sysconf("SC_PAGE_SIZE") + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)


def _contents(path: Path) -> dict[str, Any]:
    num_tasks = 0
    columns: Counter[str] | None = Counter()
    with path.open("rb") as file:
        for task in sound_tasks(raw_lines(file)):
            num_tasks += 1
            if columns is not None:
                columns.update(_columns(task))
                columns = columns if len(columns) <= _MAX_COLUMNS else None
    return {"tasks": num_tasks, "columns": columns}


def _columns(task: Task) -> set[str]:
    """What a template may name of a task as ``{{item.column}}``."""
    own = ("prompt", "answer", "solution")
    named = {name for name in own if getattr(task, name) is not None} | set(task.metadata)
    return named if task.messages is None else named | {MESSAGES}
