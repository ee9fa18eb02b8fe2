"""A pool of killable worker processes: a wall-clock deadline for code that nothing else can stop.

A computer algebra system can hang inside one C call, exhaust memory, or crash its process. Here
that costs a forked worker and nothing else: the caller gets `Failed` on time, every other caller
goes on, and the next call finds a fresh worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from prometheus_client import Counter, Gauge, Histogram
from pydantic import JsonValue

from services.grader.nursery import NURSERY_ENDED, Nursery, Worker
from services.grader.pool_worker import as_frame
from services.grader.seats import Seats

GIBIBYTE = 1 << 30

BACKLOG = Gauge("weir_pool_backlog_calls", "Calls that wait for a free worker of the pool")
WAITED = Histogram("weir_pool_wait_seconds", "Time that a call waited for a free worker")
WORKED = Histogram("weir_pool_call_seconds", "Time that a worker spent on a call")
KILLED = Counter("weir_pool_workers_killed_total", "Workers of the pool replaced", ["why"])


class Cause(StrEnum):
    """Why a call has no value."""

    TIMEOUT = "timeout"
    CRASH = "crash"
    MEMORY = "memory"
    ERROR = "error"  # the function raised; the worker is unharmed


@dataclass(frozen=True)
class Value:
    """What the function returned."""

    value: JsonValue


@dataclass(frozen=True)
class Failed:
    """The call ended without a value, and what is known about it."""

    cause: Cause
    detail: str = ""


_LOST_WITH_NURSERY = Failed(Cause.CRASH, NURSERY_ENDED)


class PoolClosedError(RuntimeError):
    """The pool was closed before the call had ended: there is no verdict on it."""


@dataclass(eq=False)
class _Seat:
    """A place for one worker. Whoever holds the seat is the only one who talks to its worker."""

    worker: Worker


class Pool:
    """``size`` workers for any number of callers, served in the order in which they came.

    Use it as ``async with Pool(...) as pool``. ``warm_ups`` are names ``module:function`` that are
    imported and called once, before the workers are forked from there.
    """

    def __init__(
        self,
        size: int,
        *,
        warm_ups: Sequence[str] = (),
        memory_bytes: int = 2 * GIBIBYTE,
        calls_per_worker: int = 2000,
    ) -> None:
        if size < 1:
            raise ValueError(f"size={size}: a pool needs at least one worker")
        self._warm_ups = tuple(warm_ups)
        self._memory_bytes = memory_bytes
        self._calls_per_worker = calls_per_worker
        self._size = size
        self._starting = asyncio.Lock()
        self._accepting = True
        self._closed = False

    async def __aenter__(self) -> Self:
        """Start the nursery and fork every worker."""
        self._nursery = await Nursery.start(self._warm_ups, self._memory_bytes)
        self._seats = Seats(_Seat(self._nursery.fork()) for _ in range(self._size))
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close at once."""
        await self.close()

    async def run(
        self, function: str, *args: JsonValue, deadline_s: float, suspect: bool = False
    ) -> Value | Failed:
        """Call ``"module:function"`` in a worker that is killed after ``deadline_s`` seconds.

        The deadline counts from when a worker is free. A ``suspect`` call, one that hung or crashed
        before, gets a worker that has not been called before, waits behind all other calls, and
        suspects hold at most half of the workers. Arguments and value are JSON. Cancelling the
        caller kills its worker.

        Raises:
            PoolClosedError: if the pool is or gets closed.
            NurseryError: if no worker can be started.
        """
        call = as_frame({"function": function, "args": args, "deadline_s": deadline_s})
        seat = await self._take_seat(suspect=suspect)
        try:
            outcome = await self._attempt(seat, call, deadline_s, fresh=suspect)
            if outcome == _LOST_WITH_NURSERY:  # no fault of the call
                outcome = await self._attempt(seat, call, deadline_s, fresh=suspect)
            return outcome
        finally:
            self._seats.give_back(seat, suspect=suspect)

    async def drain(self) -> None:
        """Refuse new calls and wait until the ones before have ended."""
        self._accepting = False
        await self._seats.all_free()

    async def close(self) -> None:
        """Kill all workers. Calls that wait or are under way raise `PoolClosedError`."""
        if self._closed:
            return
        self._accepting, self._closed = False, True
        await self._nursery.close()
        for seat in await self._seats.all_free():
            seat.worker.pipe.close()

    async def _take_seat(self, *, suspect: bool) -> _Seat:
        if not self._accepting:
            raise PoolClosedError("the pool of workers takes no more calls")
        arrived = time.monotonic()
        with BACKLOG.track_inprogress():
            seat = await self._seats.take(suspect=suspect)
        WAITED.observe(time.monotonic() - arrived)
        return seat

    async def _attempt(
        self, seat: _Seat, call: bytes, deadline_s: float, *, fresh: bool
    ) -> Value | Failed:
        await self._prepare(seat, fresh=fresh)
        with WORKED.time():
            return await self._ask(seat, call, deadline_s)

    async def _prepare(self, seat: _Seat, *, fresh: bool) -> None:
        await self._revive_nursery()
        if seat.worker.died.done():
            self._replace(seat, "died")
        elif seat.worker.calls >= (1 if fresh else self._calls_per_worker):
            self._replace(seat, "recycled")

    async def _revive_nursery(self) -> None:
        async with self._starting:
            if self._closed:
                raise PoolClosedError("the pool of workers was closed before the call")
            if not self._nursery.alive:
                await self._nursery.close()
                self._nursery = await Nursery.start(self._warm_ups, self._memory_bytes)

    async def _ask(self, seat: _Seat, call: bytes, deadline_s: float) -> Value | Failed:
        why: str | None = "cancelled"
        try:
            outcome = await _outcome(seat.worker, call, deadline_s)
            why = _harm(outcome)
        finally:
            if why is not None:
                self._replace(seat, why)
        if self._closed and why == Cause.CRASH:  # closing killed it, not the call
            raise PoolClosedError("the pool of workers was closed during the call")
        return outcome

    def _replace(self, seat: _Seat, why: str) -> None:
        KILLED.labels(why).inc()
        self._nursery.kill(seat.worker)
        seat.worker = self._nursery.fork()


def _harm(outcome: Value | Failed) -> str | None:
    """Why the worker cannot go on, or None if it can."""
    if isinstance(outcome, Value) or outcome.cause is Cause.ERROR:
        return None
    return outcome.cause.value


async def _outcome(worker: Worker, call: bytes, deadline_s: float) -> Value | Failed:
    try:
        async with asyncio.timeout(deadline_s):
            answer: dict[str, Any] = await worker.ask(call)
    except TimeoutError:
        return Failed(Cause.TIMEOUT, f"not done after {deadline_s:g} s")
    except (EOFError, OSError):
        how = await worker.epitaph()
        return Failed(Cause.TIMEOUT if how == "SIGXCPU" else Cause.CRASH, how)
    if "failed" in answer:
        return Failed(Cause(answer["failed"]), answer["detail"])
    return Value(answer["value"])
