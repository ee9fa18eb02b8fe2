"""Room for so many questions at once, or for one alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client import Gauge

WAITING = Gauge("weir_judge_waiting", "Questions that wait for the judge to be up or to be free")


@dataclass(eq=False)
class _Waiter:
    wants: int
    is_let_in: asyncio.Event = field(default_factory=asyncio.Event)


class Slots:
    """Who comes first is let in first: nobody passes one who waits to be alone."""

    def __init__(self, number: int) -> None:
        self._number = self._free = number
        self._queue: deque[_Waiter] = deque()

    def one(self) -> AbstractAsyncContextManager[None]:
        """A slot beside others. Waits for: one to be free. Unblocked by: whoever leaves."""
        return self._taken(1)

    def alone(self) -> AbstractAsyncContextManager[None]:
        """All slots. Waits for: everybody to have left. Unblocked by: the last one who leaves.

        Whoever has a slot must leave it before: two who wait with one each would wait for ever.
        """
        return self._taken(self._number)

    @asynccontextmanager
    async def _taken(self, wants: int) -> AsyncIterator[None]:
        waiter = _Waiter(wants)
        self._queue.append(waiter)
        self._let_in()
        try:
            with WAITING.track_inprogress():
                await waiter.is_let_in.wait()
            yield
        finally:
            self._leave(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        """Also from the queue, and with slots that a cancelled waiter has just been given."""
        if waiter.is_let_in.is_set():
            self._free += waiter.wants
        else:
            self._queue.remove(waiter)
        self._let_in()

    def _let_in(self) -> None:
        while self._queue and self._queue[0].wants <= self._free:
            waiter = self._queue.popleft()
            self._free -= waiter.wants
            waiter.is_let_in.set()
