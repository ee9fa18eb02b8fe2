"""Checks of task files, each in a process of its own; so this imports next to nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pebble import ProcessExpired, ProcessPool
from protocol.messages import Task
from protocol.tasks import TaskFileError, raw_lines, sound_tasks

from services.chassis.parent import die_with_parent

_AT_ONCE = 2
_MEMORY_BYTES = 1 << 30  # beyond what a new process has
_LONGEST_S = 600.0
_MAX_COLUMNS = 100
# Forked from a server that has imported what a check needs: a new process takes milliseconds.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])
MESSAGES = "(messages)"  # no column: a template sees them as the prompt


@dataclass(frozen=True)
class Contents:
    """The tasks of a file, and how many have each column; None if those are too many."""

    tasks: int
    columns: dict[str, int] | None


class TaskCheck:
    def __init__(self, longest_s: float = _LONGEST_S) -> None:
        self._longest_s = longest_s
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def contents(self, path: Path) -> Contents:
        """Raises TaskFileError, naming the wrong lines and fields; two files at once, more wait."""
        try:
            async with self._turns:
                found = await asyncio.to_thread(self._found, path)
        except (TimeoutError, ProcessExpired, MemoryError) as error:
            problem = "file: checking it took too long, or too much memory; split it"
            raise TaskFileError([problem]) from error
        if isinstance(found, Contents):
            return found
        raise TaskFileError(found)

    def _found(self, path: Path) -> Contents | list[str]:
        # A pool of its own: one whose process could not start would fail every later check, too.
        with ProcessPool(1, max_tasks=1, initializer=_limit, context=_PROCESSES) as pool:
            return pool.schedule(_contents, [path], timeout=self._longest_s).result()


def _limit() -> None:
    die_with_parent()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * os.sysconf("SC_PAGE_SIZE") + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)


def _contents(path: Path) -> Contents | list[str]:
    num_tasks = 0
    columns: Counter[str] | None = Counter()
    try:
        with path.open("rb") as file:
            for task in sound_tasks(raw_lines(file)):
                num_tasks += 1
                if columns is not None:
                    columns.update(_columns(task))
                    columns = columns if len(columns) <= _MAX_COLUMNS else None
    except TaskFileError as error:
        return error.problems
    return Contents(num_tasks, columns and dict(columns))


def _columns(task: Task) -> set[str]:
    """What a template may name of a task as ``{{item.column}}``."""
    own = ("prompt", "answer", "solution")
    named = {name for name in own if getattr(task, name) is not None} | set(task.metadata)
    return named if task.messages is None else named | {MESSAGES}
