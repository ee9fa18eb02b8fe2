"""One call for all who ask the same thing at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    waiters: int = 0


class Sharing(Generic[T]):
    """Work under way by its key. It is given up when the last one who waits for it is cancelled."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}

    def is_under_way(self, key: str) -> bool:
        """Whether `once` would join work that somebody else began."""
        return key in self._flights

    async def once(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What ``work`` returns or raises, begun here or by whoever came first."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(work()))
            flight.task.add_done_callback(lambda _: self._forget(key, flight))
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                self._forget(key, flight)  # now: nobody may join what is being cancelled
                flight.task.cancel()

    async def close(self) -> None:
        """Cancel what is under way, and with it those who wait."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, key: str, flight: _Flight[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
