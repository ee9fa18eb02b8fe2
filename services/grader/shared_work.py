"""One piece of work for all who ask for the same, at the same time or a little later."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_MAX_RESULTS = 4096


@dataclass(eq=False)
class _UnderWay(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0


class SharedWork(Generic[T]):
    """Work under way by its key, and the latest results that are to be kept.

    Work is given up when the last one who waits for it is cancelled.
    """

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _UnderWay[T]] = {}
        self._results: OrderedDict[Hashable, T] = OrderedDict()

    def is_under_way(self, key: Hashable) -> bool:
        """Whether `once` would join work that somebody else began."""
        return key in self._under_way

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
        shared = self._under_way.get(key)
        if shared is None:
            shared = self._under_way[key] = _UnderWay(asyncio.create_task(work()))
            shared.task.add_done_callback(lambda task: self._end(key, task, keeps))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting and not shared.task.done():
                self._leave(key, shared.task)  # now: nobody may join what is being cancelled
                shared.task.cancel()

    async def close(self) -> None:
        """Cancel what is under way, and with it those who wait."""
        tasks = [shared.task for shared in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, key: Hashable, task: asyncio.Task[T], keeps: Callable[[T], bool]) -> None:
        self._leave(key, task)
        if task.cancelled() or task.exception() is not None or not keeps(task.result()):
            return
        self._results[key] = task.result()
        if len(self._results) > _MAX_RESULTS:
            self._results.popitem(last=False)

    def _leave(self, key: Hashable, task: asyncio.Task[T]) -> None:
        if (shared := self._under_way.get(key)) is not None and shared.task is task:
            del self._under_way[key]
