"""Calls that may block for ever, such as reading from a terminal, beside an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Aside:
    """One thread that makes calls in the order in which they are asked for.

    Other than the threads of `asyncio.to_thread`, it never keeps the process from ending.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._work_forever, daemon=True).start()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns, or raises."""
        future: Future[T] = Future()
        self._calls.put((future, lambda: function(*args, **kwargs)))
        return await asyncio.wrap_future(future)

    def _work_forever(self) -> None:
        """Consumes calls; produces their results. Waits for: a call, what it does."""
        while True:
            future, call = self._calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except Exception as error:
                    future.set_exception(error)
