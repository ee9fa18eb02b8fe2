"""Runs equal work once for all callers that wait for it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Shared(Generic[T]):
    task: asyncio.Task[T]
    num_callers: int = 0


class SharedWork(Generic[T]):
    """Work is cancelled with its last caller."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, _Shared[T]] = {}

    async def run_once(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return or raise the result of ``work``, which the first caller of this key starts."""
        if key not in self._shared:
            self._shared[key] = _Shared(asyncio.create_task(work()))
        shared = self._shared[key]
        shared.num_callers += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.num_callers -= 1
            if not shared.num_callers:
                del self._shared[key]
                shared.task.cancel()

    async def close(self) -> None:
        tasks = [shared.task for shared in self._shared.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
