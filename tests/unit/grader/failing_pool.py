"""A pool in which every call ends in the same way, as a real one cannot be made to do."""

from __future__ import annotations

from typing import Any

from services.grader.pool import Failed, Value


class FailingPool:
    """Only gold answers are examined without trouble. Of each call: is it asked for as suspect?"""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        self.calls: list[bool] = []

    async def run(self, function: str, *args: Any, deadline_s: float, suspect: bool = False) -> Any:
        self.calls.append(suspect)
        return Value(True) if function.endswith(":examine") else self.failed
