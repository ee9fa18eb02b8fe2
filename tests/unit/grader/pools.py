"""Pools that start no process: one calls each function here, one fails as it is told to."""

from __future__ import annotations

from typing import Any

from services.grader.pool import Cause, Failed, Value
from services.grader.pool.worker import resolve
from services.grader.tools import Tools

# Of real pools: no machine is so busy that what ends at all does not end within these.
PATIENT = {"quick_deadline_s": 120.0, "compare_deadline_s": 240.0}


class InlinePool:
    """Calls functions in this process: as quick as they are, and never short of time."""

    async def run(
        self, function: str, *args: Any, deadline_s: float, suspect: bool = False
    ) -> Value | Failed:
        try:
            return Value(resolve(function)(*args))
        except Exception as error:
            return Failed(Cause.ERROR, str(error))


class FailingPool:
    """Fails each call in the same way, but that gold answers are examined without trouble.

    ``calls`` has of each one whether it was asked for as suspect.
    """

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        self.calls: list[bool] = []

    async def run(
        self, function: str, *args: Any, deadline_s: float, suspect: bool = False
    ) -> Value | Failed:
        self.calls.append(suspect)
        return Value(True) if function.endswith(":examine") else self.failed


def inline_tools() -> Tools:
    pool: Any = InlinePool()
    return Tools(pool)


def failing_tools(failed: Failed) -> tuple[Tools, list[bool]]:
    """Tools whose pool fails each call, and the list of the calls."""
    pool: Any = FailingPool(failed)
    return Tools(pool), pool.calls
