"""What tests ask of processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from services.grader.pool import Pool


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


def family_of(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have."""
    try:
        tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):
        return set()
    children = {int(child) for children in tasks for child in children.split()}
    return children.union(*map(family_of, children))


async def until_gone(pids: set[int]) -> None:
    """Wait until none of some processes runs."""
    async with asyncio.timeout(60):
        while any(map(is_running, pids)):
            await asyncio.sleep(0.01)


async def workers_of(pool: Pool, number: int) -> set[int]:
    """The pids of so many workers; none serves twice: each call waits until all have begun."""
    with TemporaryDirectory() as folder:
        call = "tests.unit.grader.hostile:meet", folder, number
        calls = (pool.run(*call, deadline_s=60) for _ in range(number))
        outcomes: list[Any] = await asyncio.gather(*calls)
    return {outcome.value for outcome in outcomes}
