"""Checking a task file in a process of its own, which ends with whoever waits for it."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from services.gateway.errors import Problem, from_lines
from services.gateway.files import check_process

_AT_ONCE = 2
# Forked from a server that has imported what a check needs: a new process takes milliseconds.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([check_process.__name__])


@dataclass(frozen=True)
class Contents:
    """What a task file holds: tasks, and how many of them have each column.

    ``columns`` is None where they are too many to be kept.
    """

    tasks: int
    columns: dict[str, int] | None


@dataclass
class TaskCheck:
    """Checks task files, two at once; more wait."""

    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def contents(self, path: Path) -> Contents:
        """What a file holds. The check ends when the caller is cancelled.

        Raises:
            Problem: 400 naming the wrong lines and fields.
        """
        async with self._slots:
            stopped, stop = _PROCESSES.Pipe(duplex=False)
            with stop:  # closing it is the sign
                found = await asyncio.to_thread(_outcome, path, stopped)
        if problems := found.get("problems"):
            raise from_lines(problems, code="invalid_tasks", param="file")
        return Contents(**found)


def _outcome(path: Path, stopped: Connection) -> dict[str, Any]:
    outcome, sender = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=check_process.report, args=(str(path), sender), daemon=True)
    with stopped, outcome:
        with sender:
            process.start()
        try:
            if outcome not in wait([outcome, stopped]):
                return {"problems": ["file: the check was stopped"]}
            return json.loads(outcome.recv_bytes())
        except EOFError as error:
            message = "file: checking it took too long, or too much memory; split it"
            raise Problem(400, message, param="file", code="invalid_tasks") from error
        finally:
            process.kill()
            process.join()
            process.close()
