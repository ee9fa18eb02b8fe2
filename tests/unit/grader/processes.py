"""What tests ask of processes."""

import asyncio
from pathlib import Path


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


async def until_gone(pids: set[int], within_s: float = 10.0) -> None:
    """Wait until none of some processes runs."""
    async with asyncio.timeout(within_s):
        while any(map(is_running, pids)):
            await asyncio.sleep(0.01)
