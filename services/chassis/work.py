"""The work loop that every worker shares: claim, show life, handle, hand off, and never lose one.

An error that ``handle`` raises is a *failure* of the entry, which is released and tried again. A
worker that dies is a *death*, noticed by the others because its heartbeat stops. An entry that was
held through two deaths is run alone; after three deaths or failures it is handed on as failed, so
that nothing waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from protocol.exchange import MAX_DEATHS, MAX_FAILURES, Delivery
from protocol.frames import FrameError
from protocol.messages import ActiveJob, GradedGroup, Message, Requested
from protocol.streams import Stream

from services.chassis import metrics
from services.chassis.service import Service, set_within

I = TypeVar("I", bound=Message)  # noqa: E741  (input)
O = TypeVar("O", bound=Message)  # noqa: E741  (output)
log = logging.getLogger(__name__)

_ALONE_AFTER_DEATHS = 2
_CLAIM_WAIT_S = 0.5
_LOOK_AGAIN_S = 0.1  # a station tells nobody when it opens


def _always(_: ActiveJob) -> bool:
    return True


@dataclass(frozen=True)
class Station(Generic[I, O]):
    """One place in the line: what comes in, what goes out, and what is done to it there."""

    inputs: tuple[Stream[I], ...]  # the earlier ones are claimed first
    output: Stream[O]
    failures: Stream[GradedGroup]
    handle: Callable[[ActiveJob, I], Awaitable[O]]
    capacity: int
    is_open: Callable[[ActiveJob], bool] = _always


async def work_forever(service: Service, station: Station) -> None:
    """Consumes the station's inputs of the active job; produces its output or a failure.

    Waits for: an active job, entries, a free place. Unblocked by: the learner activating a job,
    entries arriving, work finishing, the service stopping.
    """
    worker = _Worker(service, station)
    watching = asyncio.create_task(worker.watch_forever())
    claiming = asyncio.create_task(worker.claim_until_stopped())
    try:
        done, _ = await asyncio.wait({watching, claiming}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await worker.drain(service.deployment.drain_s)
    finally:
        watching.cancel()
        claiming.cancel()


@dataclass
class _Worker(Generic[I, O]):
    service: Service
    station: Station[I, O]
    job: ActiveJob | None = None
    paused: bool = False
    in_flight: dict[Delivery[I], asyncio.Task[None]] = field(default_factory=dict)
    troubled: list[Delivery[I]] = field(default_factory=list)  # to be run alone
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch_forever(self) -> None:
        """Consumes the active job and its requested state; produces heartbeats and reclaims.

        Waits for: the next heartbeat. Unblocked by: time.
        """
        while True:
            await self._follow_job()
            await self._show_life()
            await self._take_over()
            await asyncio.sleep(self.service.deployment.heartbeat_s)

    async def claim_until_stopped(self) -> None:
        """Consumes new entries, as many as there are free places; produces tasks in flight.

        Waits for: an open station, a free place, entries. Unblocked by: those. A claim is never cut
        short: its reply may hold entries that nobody else knows of.
        """
        while not self.service.stopping.is_set():
            free = self.station.capacity - len(self.in_flight)
            if not self._may_claim() or self.troubled or free <= 0:
                await self._until_changed()
                continue
            assert self.job is not None
            for delivery in await self.service.exchange.claim(
                self.station.inputs, self.job.job_id, count=free, wait_s=_CLAIM_WAIT_S
            ):
                await self._start_or_release(delivery)

    async def drain(self, grace_s: float) -> None:
        """Finish what is in flight within ``grace_s``; release the rest unharmed."""
        if self.in_flight:
            await asyncio.wait(set(self.in_flight.values()), timeout=grace_s)
        await self._release_everything()

    def _may_claim(self) -> bool:
        return self.job is not None and not self.paused and self.station.is_open(self.job)

    async def _until_changed(self) -> None:
        self.changed.clear()
        await set_within(self.changed, _LOOK_AGAIN_S)

    async def _follow_job(self) -> None:
        job = await self.service.exchange.active()
        if (job and job.job_id) != (self.job and self.job.job_id):
            await self._release_everything()
        self.job = job
        wanted = await self.service.exchange.requested_state(job.job_id) if job else None
        if wanted is Requested.CANCEL:
            await self._release_everything()
        self.paused = wanted is not Requested.RUN

    async def _show_life(self) -> None:
        lost = await self.service.exchange.heartbeat([*self.in_flight, *self.troubled])
        for delivery in list(self.in_flight):
            if delivery.entry_id in lost and delivery in self.in_flight:
                self.in_flight[delivery].cancel()
                metrics.LOST.inc()
        self.troubled = [entry for entry in self.troubled if entry.entry_id not in lost]

    async def _take_over(self) -> None:
        if not self._may_claim() or self.job is None:
            return
        for stream in self.station.inputs:
            free = self.station.capacity - len(self.in_flight) - len(self.troubled)
            if free <= 0:
                return
            for delivery in await self.service.exchange.reclaim(
                stream,
                self.job.job_id,
                idle_s=self.service.deployment.claim_idle_s,
                count=free,
            ):
                metrics.RECLAIMED.inc()
                await self._admit(delivery)

    async def _admit(self, delivery: Delivery[I]) -> None:
        if delivery.deaths >= MAX_DEATHS:
            await self._give_up(delivery, "deaths", f"{delivery.deaths} workers died holding it")
        elif delivery.failures >= MAX_FAILURES:
            await self._give_up(delivery, "failures", f"it failed {delivery.failures} times")
        elif delivery.deaths >= _ALONE_AFTER_DEATHS:
            self.troubled.append(delivery)
            self._start_troubled()
        else:
            self._start(delivery)

    async def _start_or_release(self, delivery: Delivery[I]) -> None:
        """The job may have ended, or been paused, while the claim was on its way."""
        if self.job is not None and self.job.job_id == delivery.job_id and not self.paused:
            self._start(delivery)
        else:
            await self.service.exchange.release(delivery, failed=False)

    def _start_troubled(self) -> None:
        """Run an entry that may kill its worker only when it can take nothing else with it."""
        if self.troubled and not self.in_flight:
            self._start(self.troubled.pop(0))

    def _start(self, delivery: Delivery[I]) -> None:
        task = asyncio.create_task(self._work_on(delivery))
        self.in_flight[delivery] = task
        metrics.IN_FLIGHT.set(len(self.in_flight))
        task.add_done_callback(lambda _: self._finished(delivery))

    def _finished(self, delivery: Delivery[I]) -> None:
        del self.in_flight[delivery]
        metrics.IN_FLIGHT.set(len(self.in_flight))
        self.changed.set()
        self._start_troubled()

    async def _work_on(self, delivery: Delivery[I]) -> None:
        assert self.job is not None
        try:
            result = await self.station.handle(self.job, delivery.message())
        except FrameError as error:
            await self._give_up(delivery, "unreadable", str(error))
        except Exception as error:
            log.exception("failed", extra={"key": delivery.key, "stream": delivery.stream.name})
            await self._failed(delivery, error)
        else:
            handed_off = await self.service.exchange.hand_off(delivery, self.station.output, result)
            (
                metrics.HANDED_OFF.labels(self.station.output.name) if handed_off else metrics.LOST
            ).inc()

    async def _failed(self, delivery: Delivery[I], error: Exception) -> None:
        metrics.FAILURES.inc()
        failures = await self.service.exchange.release(delivery, failed=True)
        if failures >= MAX_FAILURES:
            await self._give_up(delivery, "failures", f"{type(error).__name__}: {error}")

    async def _give_up(self, delivery: Delivery[I], why: str, reason: str) -> None:
        metrics.GIVEN_UP.labels(why).inc()
        log.error("given up", extra={"key": delivery.key, "reason": reason})
        failure = delivery.as_failed(f"{why}: {reason}")
        await self.service.exchange.hand_off(delivery, self.station.failures, failure)

    async def _release_everything(self) -> None:
        held = [*self.in_flight, *self.troubled]
        self.troubled = []
        tasks = list(self.in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for delivery in held:
            await self.service.exchange.release(delivery, failed=False)
