"""One piece of work for all who ask for the same at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass
class _UnderWay(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0


class SharedWork(Generic[T]):
    """Work is given up when the last one who waits for it is cancelled."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _UnderWay[T]] = {}

    async def once(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What ``work`` returns or raises, begun here or by whoever came first."""
        if key not in self._under_way:
            self._under_way[key] = _UnderWay(asyncio.create_task(work()))
        shared = self._under_way[key]
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                del self._under_way[key]
                shared.task.cancel()

    async def close(self) -> None:
        tasks = [shared.task for shared in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
