"""The work loop of every worker: claim entries, send heartbeats, handle, hand off results.

The exception of ``handle`` says which part is at fault. `Unworkable`: the entry; it is given up.
`UnsupportedEntry`: this worker lacks something; workers of other replicas try. `WorkerFault`: the
worker; the entry is released unharmed. Anything else counts as a failure of the entry here.

A worker whose heartbeat stops is dead, and a death counts against each entry it held. After two
deaths an entry runs alone. It is given up, and handed on as failed, after enough deaths or failures
on different replicas, or on all replicas that there are.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from protocol.exchange import Delivery, Disconnected, Place, Roster, Verdict, replica_of
from protocol.exchange.connection import Refused
from protocol.frames import FrameError
from protocol.messages import ActiveJob, Doing, GradedGroup, JobEvent, Loss, Message, Requested
from protocol.streams import Stream

from services.chassis import metrics
from services.chassis.faults import Busy, UnsupportedEntry, Unworkable, WorkerBroken, WorkerFault
from services.chassis.service import Service, summarize_error, wait_until_set

I = TypeVar("I", bound=Message)  # noqa: E741  (input)
O = TypeVar("O", bound=Message)  # noqa: E741  (output)
log = logging.getLogger(__name__)

ALONE_AFTER_DEATHS = 2
MAX_DEATHS = 4  # two of them alone
MAX_FAILURES = 3
_ENOUGH_REPLICAS = 3
_MAX_IN_A_ROW = 5  # different entries that failed here, and none that did not
_LOOK_AGAIN_S = 0.1  # a consumer tells nobody when it opens, nor who releases an entry
_RECLAIM_EVERY_S = 0.2
_PARTING_S = 5.0  # for releases while the exchange may be away


def limit_in_flight(capacity: int) -> Callable[[ActiveJob, int], int]:
    return lambda _, in_flight: capacity - in_flight


def fair_share(waiting: int, claimed: int, workers: int, held: int) -> int:
    """How many waiting entries a worker takes that holds ``held``, so that all hold equally many.

    Args:
        waiting: entries that nobody has claimed.
        claimed: by all ``workers``, of which this is one.
    """
    return max(0, math.ceil((waiting + claimed) / workers) - held)


@dataclass(frozen=True)
class Consumer(Generic[I, O]):
    """One place in the line: what comes in, what goes out, and what is done to it there."""

    inputs: tuple[Stream[I], ...]  # the earlier ones are claimed first
    output: Stream[O]
    failures: Stream[GradedGroup]
    handle: Callable[[ActiveJob, I], Awaitable[O]]
    room: Callable[[ActiveJob, int], int]  # for how many entries, beside those in flight
    is_open: Callable[[ActiveJob], bool] = lambda _: True
    has_died: Callable[[], bool] = lambda: False  # a part that any entry may have killed
    leaves: Callable[[int, int], Set[Stream]] = lambda *_: set()  # to others: place, of how many
    doing: Doing = Doing.WORKS

    @property
    def group(self) -> str:
        return str(self.inputs[0].group)


def is_hopeless(lives: Sequence[str], most: int, replicas: Set[str]) -> bool:
    """Whether so many deaths or failures are the entry's own doing.

    They are if ``most`` or more were on three replicas, or on all ``replicas`` that would claim it.
    """
    tried = {replica_of(life) for life in lives}
    return len(lives) >= most and (len(tried) >= _ENOUGH_REPLICAS or replicas <= tried)


async def work_forever(service: Service, consumer: Consumer) -> None:
    """Work on the consumer's inputs of the active job until the service stops.

    Raises:
        WorkerBroken: if everything fails here.
        Exception: the exchange's, if it is away for too long or refuses a write.
    """
    deployment = service.deployment
    roster = Roster(deployment.claim_idle_s, deployment.heartbeat_s)
    worker = _Worker(service, consumer, roster)
    watching = asyncio.create_task(worker.watch_forever())
    claiming = asyncio.create_task(worker.claim_until_stopped())
    try:
        done, _ = await asyncio.wait({watching, claiming}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if worker.in_flight:
            await asyncio.wait(set(worker.in_flight.values()), timeout=deployment.drain_s)
    finally:
        for task in (claiming, watching):
            task.cancel()
        await asyncio.gather(claiming, watching, return_exceptions=True)
        await worker.leave()


@dataclass
class _Worker(Generic[I, O]):
    service: Service
    consumer: Consumer[I, O]
    roster: Roster
    job: ActiveJob | None = None
    paused: bool = False
    held: dict[Place, Delivery[I]] = field(default_factory=dict)  # claimed, and not yet let go
    in_flight: dict[Delivery[I], asyncio.Task[None]] = field(default_factory=dict)
    troubled: list[Delivery[I]] = field(default_factory=list)  # to be run alone
    is_alone: bool = False  # what is in flight may kill its worker
    failed_in_a_row: dict[Place, Delivery[I]] = field(default_factory=dict)
    error: BaseException | None = None  # that kept an entry from being let go
    looked_at: float = float("-inf")
    has_waited: bool = False  # for the others to take their share
    rest_s: float = 0.0  # after a fault of its own, longer from one to the next
    rests_until: float = 0.0  # by the monotonic clock
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch_forever(self) -> None:
        while True:
            await self._follow_job()
            await self._show_life()
            await asyncio.sleep(self.service.deployment.heartbeat_s)

    async def claim_until_stopped(self) -> None:
        """Start as many entries as there are free places.

        A claim is never cut short: its reply may hold entries that nobody else knows of. Only here
        anything is claimed, so an entry that is ours and not held was claimed by a lost reply.
        """
        while not self.service.stopping.is_set():
            await self._check_that_something_works()
            if self.error is not None:  # who lives on would hold that entry for ever
                raise self.error
            self._run_troubled_alone()
            if self._may_claim() and self._free > 0:
                await self._take_over()
            if self._may_claim() and self._free > 0 and self._inputs:
                await self._claim()
            else:
                await self._until_changed()

    async def _until_changed(self) -> None:
        self.changed.clear()
        await wait_until_set(self.changed, _LOOK_AGAIN_S)

    async def leave(self) -> None:
        """Release everything; what may have killed a part of this worker counts as that."""
        verdict = "deaths" if self.consumer.has_died() else "unharmed"
        with suppress(TimeoutError, Refused, *Disconnected):
            async with asyncio.timeout(_PARTING_S):
                await self._release_everything(verdict)
                await self.service.exchange.leave(self.consumer.group)

    @property
    def _free(self) -> int:
        if self.job is None or self.is_alone or self.troubled:
            return 0
        return self.consumer.room(self.job, len(self.in_flight))

    @property
    def _replicas(self) -> Set[str]:
        return self.roster.replicas | {replica_of(self.service.exchange.me)}

    @property
    def _place(self) -> tuple[int, int]:
        replicas = sorted(self._replicas)
        return replicas.index(replica_of(self.service.exchange.me)), len(replicas)

    @property
    def _inputs(self) -> Sequence[Stream[I]]:
        left = self.consumer.leaves(*self._place)
        return [stream for stream in self.consumer.inputs if stream not in left]

    def _may_claim(self) -> bool:
        return (
            self.job is not None
            and not self.paused
            and time.monotonic() >= self.rests_until
            and not self.consumer.has_died()
            and self.consumer.is_open(self.job)
        )

    async def _follow_job(self) -> None:
        job = await self.service.exchange.active()
        if (job and job.job_id) != (self.job and self.job.job_id):
            await self._release_everything()
            self._recover()
        self.job = job
        try:
            wanted = await self.service.exchange.requested_state(job.job_id) if job else None
        except ValueError:  # of another release, or damaged: the learner fails the job
            wanted = None
        if wanted is Requested.CANCEL:
            await self._release_everything()
        self.paused = wanted is not Requested.RUN

    async def _show_life(self) -> None:
        held, activity = list(self.held.values()), self.service.activity
        activity.set_held(delivery.key for delivery in held)
        is_paused = self.job is not None and self.paused
        rest = Doing.JOB_IS_PAUSED if is_paused else Doing.IDLE
        activity.set_idle(self.consumer.doing if held else rest)
        pulse = await self.service.exchange.heartbeat(
            self.consumer.group,
            self.consumer.inputs if self.job else (),
            self.job.job_id if self.job else "",
            held=[entry for entry in held if self.job and entry.job_id == self.job.job_id],
            may_claim=self._may_claim() and not self.service.stopping.is_set(),
        )
        self.roster.look(pulse.lives, time.monotonic())
        self.service.position = self._place
        for delivery in held:
            if delivery.place in pulse.lost and self.held.get(delivery.place) is delivery:
                self._lose(delivery)

    def _lose(self, delivery: Delivery[I]) -> None:
        metrics.LOST.inc()
        self.held.pop(delivery.place, None)
        if delivery in self.in_flight:
            self.in_flight[delivery].cancel()
        self.troubled = [entry for entry in self.troubled if entry is not delivery]

    async def _take_over(self) -> None:
        """Bury the dead, and claim what was released; not every time, since it seldom happens."""
        now, pause_s = time.monotonic(), min(self.service.deployment.heartbeat_s, _RECLAIM_EVERY_S)
        if self.job is None or now < self.looked_at + pause_s:
            return
        self.looked_at = now
        exchange, consumer, job_id = self.service.exchange, self.consumer, self.job.job_id
        for life, beats in list(self.roster.dead(exchange.me)):
            buried = await exchange.bury(consumer.group, life, beats, consumer.inputs, job_id)
            if buried > 0:
                metrics.DEATHS.inc()
                log.warning("a worker has died", extra={"worker": life, "entries": buried})
        wanted = self._inputs
        for stream in consumer.inputs:
            if (free := self._free) <= 0:
                return
            for delivery in await exchange.reclaim(
                stream,
                job_id,
                count=free,
                held=self.held.values(),
                replicas=self._replicas,
                # Those that such a stream is left to may all have failed at an entry.
                only_troubled=stream not in wanted,
            ):
                metrics.RECLAIMED.inc()
                await self._admit(delivery)

    async def _claim(self) -> None:
        """Claim this worker's share, and at every other look one more that is left."""
        assert self.job is not None
        job_id, inputs = self.job.job_id, self._inputs
        if self.roster.num_alive > 1:
            share = await self._share(job_id, inputs)
            if self.job is None or self.job.job_id != job_id or not self._may_claim():
                return
        else:
            share = self._free
        self.has_waited = share <= 0 and not self.has_waited
        if self.has_waited:
            await self._until_changed()
            return
        if self._free <= 0:
            return
        count = max(1, min(share, self._free))
        for delivery in await self.service.exchange.claim(
            inputs, job_id, count=count, wait_s=_LOOK_AGAIN_S
        ):
            await self._admit(delivery)

    async def _share(self, job_id: str, inputs: Sequence[Stream[I]]) -> int:
        """How many of the waiting entries are for this worker, 1 if none waits."""
        share = all_waiting = 0
        for stream in inputs:
            waiting, claimed = await self.service.exchange.queued(stream, job_id)
            held = sum(delivery.stream == stream for delivery in self.held.values())
            share += min(waiting, fair_share(waiting, claimed, self._num_workers(stream), held))
            all_waiting += waiting
        return share if all_waiting else 1

    def _num_workers(self, stream: Stream) -> int:
        """Of the workers that show life, those that this stream is not left by."""
        count = max(1, len(self._replicas))
        leaving = sum(stream in self.consumer.leaves(place, count) for place in range(count))
        return max(1, self.roster.num_alive - leaving)

    async def _admit(self, delivery: Delivery[I]) -> None:
        """The job may have ended or been paused, or we been stopped, while it was on its way."""
        self.held[delivery.place] = delivery
        is_wanted = self.job is not None and self.job.job_id == delivery.job_id and not self.paused
        if not is_wanted or self.service.stopping.is_set():
            await self._release(delivery)
        elif is_hopeless(delivery.deaths, MAX_DEATHS, self._replicas):
            died = ", ".join(delivery.deaths)
            await self._give_up(delivery, Loss.DEATHS, f"workers died holding it: {died}")
        elif len(delivery.deaths) >= ALONE_AFTER_DEATHS:
            self.troubled.append(delivery)
        else:
            self._start(delivery)

    def _run_troubled_alone(self) -> None:
        """Run an entry that may kill its worker only when it can take nothing else with it."""
        if self.troubled and not self.in_flight:
            self.is_alone = True
            self._start(self.troubled.pop(0))

    def _start(self, delivery: Delivery[I]) -> None:
        task = asyncio.create_task(self._work_on(delivery))
        self.in_flight[delivery] = task
        metrics.IN_FLIGHT.set(len(self.in_flight))
        task.add_done_callback(lambda task: self._finished(delivery, task))

    def _finished(self, delivery: Delivery[I], task: asyncio.Task[None]) -> None:
        del self.in_flight[delivery]
        self.error = self.error or (None if task.cancelled() else task.exception())
        self.is_alone = self.is_alone and bool(self.in_flight)
        metrics.IN_FLIGHT.set(len(self.in_flight))
        self.changed.set()

    async def _work_on(self, delivery: Delivery[I]) -> None:
        assert self.job is not None
        try:
            await self._hand_off(delivery, await self.consumer.handle(self.job, delivery.message()))
        except FrameError as error:
            await self._give_up(delivery, Loss.UNREADABLE, str(error))
        except Unworkable as error:
            await self._give_up(delivery, Loss.UNWORKABLE, str(error))
        except UnsupportedEntry as error:
            await self._unable(delivery, error)
        except Busy:
            await self._release(delivery)
        except Disconnected:
            raise
        except Exception as error:
            log.exception("failed", extra={"key": delivery.key, "stream": delivery.stream.name})
            await self._failed(delivery, error)

    async def _hand_off(self, delivery: Delivery[I], result: O) -> None:
        exchange, output = self.service.exchange, self.consumer.output
        handed_off = await exchange.hand_off(delivery, output, result)
        self.held.pop(delivery.place, None)
        self.failed_in_a_row.clear()
        self._recover()
        (metrics.HANDED_OFF.labels(output.name) if handed_off else metrics.LOST).inc()

    async def _unable(self, delivery: Delivery[I], error: UnsupportedEntry) -> None:
        """Leave it to the replicas that may be able; if there is none, it is unworkable."""
        me, replicas = self.service.exchange.me, self.roster.replicas
        tried = {replica_of(life) for life in (*delivery.failures, me)}
        has_looked = replica_of(me) in replicas  # who else is there
        if has_looked and replicas <= tried:
            await self._give_up(delivery, Loss.UNWORKABLE, str(error))
        else:
            await self._release(delivery, "failures")

    async def _failed(self, delivery: Delivery[I], error: Exception) -> None:
        metrics.FAILURES.inc()
        if self.consumer.has_died():
            return  # it stays held, and counts as a death when the last heartbeat has been sent
        self.failed_in_a_row[delivery.place] = delivery
        failures = [*delivery.failures, self.service.exchange.me]
        if isinstance(error, WorkerFault):
            self._rest(error)
            await self._release(delivery)
        elif is_hopeless(failures, MAX_FAILURES, self._replicas):
            await self._give_up(delivery, Loss.FAILURES, f"{type(error).__name__}: {error}")
        else:
            await self._release(delivery, "failures")

    def _rest(self, fault: WorkerFault) -> None:
        """Leave the next tries to others for a while, and say why."""
        deployment, now = self.service.deployment, time.monotonic()
        if not self.rest_s:
            self.service.readiness.set_fault(summarize_error(fault).words)
        if now >= self.rests_until:  # else they failed side by side
            self.rest_s = min(2 * self.rest_s or deployment.heartbeat_s, deployment.claim_idle_s)
            self.rests_until = now + self.rest_s

    def _recover(self) -> None:
        if self.rest_s:
            self.rest_s = self.rests_until = 0.0
            self.service.readiness.set_fault("")

    async def _check_that_something_works(self) -> None:
        if len(self.failed_in_a_row) < _MAX_IN_A_ROW or self.job is None:
            return
        exchange, job_id = self.service.exchange, self.job.job_id
        why = (
            f"{len(self.failed_in_a_row)} groups in a row failed in the worker {exchange.me} and "
            "none did not; it leaves them to others and ends, to be started anew; see its log"
        )
        self.service.readiness.set_fault(why)
        failed = [entry for entry in self.failed_in_a_row.values() if entry.job_id == job_id]
        await self._release_everything()  # after which no failure of this worker is on its way
        await exchange.pardon(job_id, failed)
        event = JobEvent(id=f"broken:{exchange.me}", job_id=job_id, level="warn", message=why)
        await exchange.record_event(event)
        raise WorkerBroken(why)

    async def _give_up(self, delivery: Delivery[I], why: Loss, reason: str) -> None:
        metrics.GIVEN_UP.labels(why).inc()
        log.error("given up", extra={"key": delivery.key, "reason": reason})
        failure = delivery.as_failed(f"{why}: {reason}")
        await self.service.exchange.hand_off(delivery, self.consumer.failures, failure)
        self.held.pop(delivery.place, None)

    async def _release(self, delivery: Delivery[I], verdict: Verdict = "unharmed") -> None:
        await self.service.exchange.release(delivery, verdict)
        self.held.pop(delivery.place, None)

    async def _release_everything(self, verdict: Verdict = "unharmed") -> None:
        self.troubled = []
        tasks = list(self.in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for delivery in list(self.held.values()):
            await self._release(delivery, verdict)
