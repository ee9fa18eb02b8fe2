"""A pool of killable worker processes: a wall-clock deadline for code that nothing else can stop.

A computer algebra system can hang inside one C call, exhaust memory, or crash its process. Here
that costs a forked worker and nothing else: the caller gets `Failed` on time, every other caller
goes on, and the next call finds a fresh worker.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

from prometheus_client import Counter, Gauge, Histogram
from pydantic import JsonValue

from services.chassis.metrics import born_at_zero
from services.grader.pool.outcome import Cause, Failed, Value
from services.grader.pool.processes import ForkServer, NoWorkerError, WorkerProcess
from services.grader.pool.worker import as_line

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BACKLOG = Gauge("weir_pool_backlog_calls", "Calls that wait for a worker of the pool", ["suspect"])
WAITED = Histogram(
    "weir_pool_wait_seconds", "Time that a call waited for a worker", ["suspect"], buckets=_SECONDS
)
_METERS = [(BACKLOG.labels(suspect), WAITED.labels(suspect)) for suspect in ("no", "yes")]
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

_CALLS_PER_WORKER = 2000  # then it is replaced: what leaks is given back
_WORKERS_PER_CALL = 3  # lost through no fault of the call, before it is given up


class Pool:
    """``size`` workers for any number of callers, served in the order in which they came.

    Use it as ``async with Pool(...) as pool``. ``warm_ups`` are names ``module:function`` that are
    imported and called once, before the workers are forked from there. A ``confined`` pool is for
    code that nobody has looked at: each call has a worker of its own, which may do next to nothing.
    """

    def __init__(self, size: int, *, warm_ups: Sequence[str] = (), confined: bool = False) -> None:
        if size < 1:
            raise ValueError(f"size={size}: a pool needs at least one worker")
        self._size = size
        self._calls_per_worker = 1 if confined else _CALLS_PER_WORKER
        self._server = ForkServer(warm_ups, confined=confined)
        self._places = asyncio.Semaphore(size)
        self._suspects = asyncio.Semaphore(max(1, size // 2))
        self._idle: list[WorkerProcess] = []
        self._numbers = itertools.count()  # an answer has its call's, so that nothing else is one

    async def __aenter__(self) -> Self:
        """Warm up, and fork every worker."""
        try:
            self._idle = [await self._server.fork() for _ in range(self._size)]
        except BaseException:
            self._server.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Kill all workers. Calls that wait or are under way raise `NoWorkerError`."""
        self._server.close()

    async def run(
        self, function: str, *args: JsonValue, deadline_s: float, suspect: bool = False
    ) -> Value | Failed:
        """Call ``"module:function"`` in a worker that is killed after ``deadline_s`` seconds.

        The deadline counts from when a worker is free. A ``suspect`` call, one that hung or crashed
        before, gets a worker of its own, which serves nobody before or after; suspects are at most
        half of the calls under way. Arguments and value are JSON. Cancelling the caller kills its
        worker.

        Raises:
            NoWorkerError: if no worker can be had, as when the pool is or gets closed.
            TypeError, ValueError: if the arguments are not JSON, or too much of it.
        """
        number = next(self._numbers)
        line = as_line([number, function, args])
        async with self._turn(suspect):
            for _ in range(_WORKERS_PER_CALL):
                worker = await self._worker(suspect)
                if outcome := await self._ask(worker, number, line, deadline_s, suspect):
                    return outcome
        raise NoWorkerError(f"{_WORKERS_PER_CALL} workers were lost before they could answer")

    @asynccontextmanager
    async def _turn(self, suspect: bool) -> AsyncIterator[None]:
        """A place among the calls under way, in the order in which they came."""
        backlog, waited = _METERS[suspect]
        async with AsyncExitStack() as stack:
            with backlog.track_inprogress(), waited.time():
                if suspect:
                    await stack.enter_async_context(self._suspects)
                await stack.enter_async_context(self._places)
            yield

    async def _worker(self, suspect: bool) -> WorkerProcess:
        while self._idle and not suspect:
            worker = self._idle.pop()
            if worker.usable:
                return worker
            KILLED.labels("died").inc()
            worker.kill()
        return await self._server.fork()

    async def _ask(
        self, worker: WorkerProcess, number: int, line: bytes, deadline_s: float, suspect: bool
    ) -> Value | Failed | None:
        """What became of the call; None if only the worker was lost, which is replaced."""
        harm = "cancelled"
        try:
            with WORKED.time():
                outcome = await worker.call(number, line, deadline_s)
            harm = "" if outcome else "died"
            if isinstance(outcome, Failed):
                FAILED.labels(outcome.cause).inc()
                harm = "" if outcome.cause is Cause.ERROR else outcome.cause
            return outcome
        finally:
            if harm:
                KILLED.labels(harm).inc()
            if harm or suspect or worker.calls >= self._calls_per_worker:
                worker.kill()
            else:
                self._idle.append(worker)
