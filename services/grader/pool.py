"""A pool of killable worker processes: a wall-clock deadline for code that nothing else can stop.

A computer algebra system can hang inside one C call, exhaust memory, or crash its process. Here
that costs a forked worker and nothing else: the caller gets `Failed` on time, every other caller
goes on, and the next call finds a fresh worker.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from prometheus_client import Counter, Gauge, Histogram
from pydantic import JsonValue

from services.chassis.faults import WorkerFault
from services.chassis.metrics import born_at_zero
from services.grader.nursery import Death, Nursery, NurseryError, Worker
from services.grader.pool_outcome import Cause, Failed, Value, harm, outcome_of
from services.grader.pool_pipe import NoAnswer
from services.grader.pool_seats import Seats
from services.grader.pool_worker import FrameError, as_frame

GIBIBYTE = 1 << 30

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BACKLOG = Gauge("weir_pool_backlog_calls", "Calls that wait for a worker of the pool", ["suspect"])
WAITED = Histogram(
    "weir_pool_wait_seconds", "Time that a call waited for a worker", ["suspect"], buckets=_SECONDS
)
WORKED = Histogram(
    "weir_pool_call_seconds", "Time from asking a worker to its answer or end", buckets=_SECONDS
)
FAILED = born_at_zero(
    Counter("weir_pool_calls_failed_total", "Calls that ended without a value", ["cause"]), *Cause
)
KILLED = born_at_zero(
    Counter("weir_pool_workers_killed_total", "Workers of the pool replaced", ["why"]),
    *("timeout", "crash", "memory", "killed", "died", "cancelled"),
)

_DYING_S = 1.0  # from the end of its pipe to the end of a worker
_BURIAL_S = 5.0  # from the order to kill a worker to the news of its death
_WORKERS_PER_CALL = 3  # lost through no fault of the call, before it is given up


class PoolClosedError(WorkerFault):
    """The pool was closed before the call had ended: there is no verdict on it."""


@dataclass(frozen=True)
class _Call:
    number: int  # its answer has the same, so that nothing else is taken for its answer
    frame: bytes
    deadline_s: float
    suspect: bool


@dataclass(eq=False)
class _Seat:
    """A place for one worker. Whoever holds the seat is the only one who talks to its worker."""

    worker: Worker | None = None


class Pool:
    """``size`` workers for any number of callers, served in the order in which they came.

    Use it as ``async with Pool(...) as pool``. ``warm_ups`` are names ``module:function`` that are
    imported and called once, before the workers are forked from there. A ``confined`` pool is for
    code that nobody has looked at: each call has a worker of its own, which may do next to nothing.
    """

    def __init__(
        self,
        size: int,
        *,
        warm_ups: Sequence[str] = (),
        memory_bytes: int = 2 * GIBIBYTE,
        calls_per_worker: int = 2000,
        confined: bool = False,
    ) -> None:
        if size < 1:
            raise ValueError(f"size={size}: a pool needs at least one worker")
        self._warm_ups = tuple(warm_ups)
        self._memory_bytes = memory_bytes
        self._calls_per_worker = calls_per_worker
        self._confined = confined
        self._size = size
        self._starting = asyncio.Lock()
        self._numbers = itertools.count()
        self._meters = {
            suspect: (BACKLOG.labels(label), WAITED.labels(label))
            for suspect, label in ((False, "no"), (True, "yes"))
        }
        self._accepting = True
        self._closed = False

    async def __aenter__(self) -> Self:
        """Start the nursery and fork every worker."""
        self._nursery = await self._start_nursery()
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
        before, gets a worker of its own, which serves nobody before or after; it waits behind all
        other calls, and suspects hold at most half of the seats. Arguments and value are JSON.
        Cancelling the caller kills its worker.

        Raises:
            PoolClosedError: if the pool is or gets closed.
            NurseryError: if no worker can be had.
            TypeError, ValueError: if the arguments are not JSON.
        """
        number = next(self._numbers)
        try:
            frame = as_frame(
                {"number": number, "function": function, "args": args, "deadline_s": deadline_s}
            )
        except FrameError as error:
            return Failed(Cause.ERROR, f"the arguments are {error}", cpu_s=0.0)
        outcome = await self._run(_Call(number, frame, deadline_s, suspect))
        if isinstance(outcome, Failed):
            FAILED.labels(outcome.cause).inc()
        return outcome

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
            if seat.worker is not None:
                seat.worker.pipe.close()

    async def _run(self, call: _Call) -> Value | Failed:
        seat = await self._take_seat(suspect=call.suspect)
        place = _Seat() if call.suspect else seat  # no warm worker must make way for a suspect
        try:
            for _ in range(_WORKERS_PER_CALL):
                worker = await self._prepared(place)
                if (outcome := await self._ask(worker, call, place)) is not None:
                    return outcome
            raise NurseryError(f"{_WORKERS_PER_CALL} workers were lost before they could answer")
        finally:
            if call.suspect or self._confined:
                self._dismiss(place, "was_suspect" if call.suspect else "recycled")
            self._seats.give_back(seat, suspect=call.suspect)

    async def _take_seat(self, *, suspect: bool) -> _Seat:
        if not self._accepting:
            raise PoolClosedError("the pool of workers takes no more calls")
        backlog, waited = self._meters[suspect]
        arrived = time.monotonic()
        with backlog.track_inprogress():
            seat = await self._seats.take(suspect=suspect)
        waited.observe(time.monotonic() - arrived)
        return seat

    async def _prepared(self, seat: _Seat) -> Worker:
        if self._closed or not self._nursery.alive:
            await self._revive_nursery()
        if seat.worker is not None and not seat.worker.fit:
            self._dismiss(seat, "died")
        elif seat.worker is not None and seat.worker.calls >= self._calls_per_worker:
            self._dismiss(seat, "recycled")
        if seat.worker is None:
            seat.worker = self._nursery.fork()
        return seat.worker

    async def _start_nursery(self) -> Nursery:
        return await Nursery.start(self._warm_ups, self._memory_bytes, confined=self._confined)

    async def _revive_nursery(self) -> None:
        async with self._starting:
            if not self._closed and not self._nursery.alive:
                await self._nursery.close()
                self._nursery = await self._start_nursery()
            if self._closed:  # perhaps just now
                await self._nursery.close()
                raise PoolClosedError("the pool of workers was closed before the call had ended")

    async def _ask(self, worker: Worker, call: _Call, seat: _Seat) -> Value | Failed | None:
        """The outcome, or None if the worker was lost through no fault of the call."""
        why: str | None = "cancelled"
        try:
            worker.calls += 1
            with WORKED.time():
                answer = await worker.pipe.ask(call.frame, call.deadline_s)
            if answer is NoAnswer.CLOSED:  # how it died, before it can die of being replaced
                answer = await worker.epitaph(_DYING_S) or Death("closed its pipe")
            cpu_before_s = worker.cpu_s
            outcome = outcome_of(answer, call.number, worker, call.deadline_s)
            why = harm(outcome)
        finally:
            if why is not None:
                self._dismiss(seat, why)
                if not call.suspect:  # at once: it is soon needed
                    seat.worker = self._nursery.fork()
        if isinstance(outcome, Failed) and outcome.cpu_s is None:
            return replace(outcome, cpu_s=await self._cpu_time(worker, cpu_before_s))
        return outcome

    async def _cpu_time(self, worker: Worker, before_s: float) -> float | None:
        """What a replaced worker spent after ``before_s``, known as soon as it is buried."""
        death = await worker.epitaph(_BURIAL_S)
        if death is None:
            self._nursery.give_up(worker)
        return None if death is None or death.cpu_s is None else max(0.0, death.cpu_s - before_s)

    def _dismiss(self, seat: _Seat, why: str) -> None:
        if seat.worker is not None:
            KILLED.labels(why).inc()
            self._nursery.kill(seat.worker)
            seat.worker = None
