"""Work on many items at once, with the results in the order of the items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_AHEAD = 1024  # results that wait for a slower one before them


async def in_order(
    items: AsyncIterator[Item], work: Callable[[Item], Awaitable[Result]], *, at_once: int
) -> AsyncGenerator[Result, None]:
    """The result of each item. At most ``at_once`` items and the next one are held in memory.

    Use it inside `contextlib.aclosing`, which cancels what is under way when it is left.

    Raises:
        Exception: what an item's work or the source of items raised, behind the results before it.
    """
    line = _Line(work, at_once)
    starting = asyncio.create_task(line.start_all(items))
    try:
        while (task := await line.started.get()) is not None:
            result = await task
            line.leave(task)
            yield result
        await starting
    finally:
        left = [starting, *line.tasks]
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class _Line(Generic[Item, Result]):
    """The tasks that were started and whose results nobody has yet; None ends the queue."""

    def __init__(self, work: Callable[[Item], Awaitable[Result]], at_once: int) -> None:
        self.started: asyncio.Queue[asyncio.Task[Result] | None] = asyncio.Queue()
        self.tasks: set[asyncio.Task[Result]] = set()
        self._work = work
        self._slots = asyncio.Semaphore(at_once)
        self._room = asyncio.Semaphore(_MAX_AHEAD)

    async def start_all(self, items: AsyncIterator[Item]) -> None:
        """Start the work on each item once there is a slot, and room for its result."""
        try:
            async for item in items:
                await self._room.acquire()
                await self._slots.acquire()
                task = asyncio.create_task(self._working(item))
                del item  # it may be long
                self.tasks.add(task)
                self.started.put_nowait(task)
        finally:
            self.started.put_nowait(None)

    def leave(self, task: asyncio.Task[Result]) -> None:
        """The result of a task is needed here no more."""
        self.tasks.discard(task)
        self._room.release()

    async def _working(self, item: Item) -> Result:
        try:
            return await self._work(item)
        finally:
            self._slots.release()
