"""One piece of work for all who ask for the same, at the same time or a little later."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_MAX_RESULTS = 4096


@dataclass
class _UnderWay(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0


class SharedWork(Generic[T]):
    """Work under way by its key, and the latest results that are to be kept.

    Work is given up when the last one who waits for it is cancelled: what a job that is over has
    asked must not hold up the next one, neither in the pool's queue nor in the judge's.
    """

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _UnderWay[T]] = {}  # as long as somebody waits
        self._results: OrderedDict[Hashable, T] = OrderedDict()

    async def once(
        self,
        key: Hashable,
        work: Callable[[], Coroutine[Any, Any, T]],
        keeps: Callable[[T], bool] = lambda _: False,
    ) -> T:
        """What ``work`` returns or raises, begun here or by whoever came first.

        A result that ``keeps`` is for is there for those who come later, until many others are.
        """
        if key in self._results:
            self._results.move_to_end(key)
            return self._results[key]
        if key not in self._under_way:
            self._under_way[key] = _UnderWay(asyncio.create_task(work()))
        shared = self._under_way[key]
        shared.waiting += 1
        try:
            result = await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                del self._under_way[key]
                shared.task.cancel()
        if keeps(result):
            self._results[key] = result
            if len(self._results) > _MAX_RESULTS:
                self._results.popitem(last=False)
        return result

    async def close(self) -> None:
        """Cancel what is under way, and with it those who wait."""
        tasks = [shared.task for shared in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
