"""Pools that start no process: one calls each function here, one fails as it is told to.

And work counted in calls of functions, which are as many on a busy machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from services.grader.pool import Cause, Failed, Value
from services.grader.pool.forkserver import resolve
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
            return Failed(Cause.ERROR, str(error))


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


def calls_of(action: Callable[[], object]) -> int:
    """How many functions are called, those in C too."""
    count = 0

    def called(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count
