"""Pools that start no process, what tests ask of those that do, and work counted in calls."""

import asyncio
from tempfile import TemporaryDirectory
from typing import Any, Self

import psutil

from services.chassis.pool import Cause, Failed, Pool, Value
from services.chassis.pool.forkserver import resolve
from services.grader.tools import Tools


class InlinePool:
    """Calls functions in this process: as quick as they are, and never short of time."""

    def __init__(self, size: int = 1, **_: object) -> None:
        self.size = size

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        pass

    async def run(
        self, function: str, *args: Any, deadline_s: float, suspect: bool = False
    ) -> Value | Failed:
        try:
            return Value(resolve(function)(*args))
        except Exception as error:
            return Failed(Cause.ERROR, f"{type(error).__name__}: {error}")


class FailingPool:
    """Fails each call in the same way, but to examine a gold answer.

    ``calls`` has of each one whether it was asked for as suspect.
    """

    def __init__(self, failed: Failed, examined: Value | Failed) -> None:
        self.failed = failed
        self.examined = examined
        self.calls: list[bool] = []

    async def run(
        self, function: str, *args: Any, deadline_s: float, suspect: bool = False
    ) -> Value | Failed:
        self.calls.append(suspect)
        return self.examined if function.endswith(":examine") else self.failed


def inline_tools() -> Tools:
    pool: Any = InlinePool()
    return Tools(pool)


def failing_tools(
    failed: Failed, examined: Value | Failed | None = None
) -> tuple[Tools, list[bool]]:
    """Tools whose pool fails each call, and the list of the calls."""
    pool: Any = FailingPool(failed, examined or Value(True))
    return Tools(pool), pool.calls


def list_descendants(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have."""
    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False


async def wait_until_gone(pids: set[int]) -> None:
    """Wait until none of some processes runs."""
    async with asyncio.timeout(60):
        while any(map(_is_running, pids)):
            await asyncio.sleep(0.01)


async def list_workers(pool: Pool, number: int) -> set[int]:
    """The pids of so many workers; none serves twice: each call waits until all have begun."""
    with TemporaryDirectory() as folder:
        call = "tests.unit.grader.hostile:meet", folder, number
        calls = (pool.run(*call, deadline_s=60) for _ in range(number))
        outcomes: list[Any] = await asyncio.gather(*calls)
    return {outcome.value for outcome in outcomes}
