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

from protocol.exchange import (
    Delivery,
    Disconnected,
    Exchange,
    Place,
    Verdict,
    WorkerRegistry,
    replica_name,
)
from protocol.exchange.connection import Refused, round_wait
from protocol.frames import FrameError
from protocol.messages import (
    ActiveJob,
    Doing,
    FailureKind,
    GradedGroup,
    JobEvent,
    Message,
    Requested,
)
from protocol.streams import Stream

from services.chassis import metrics
from services.chassis.faults import (
    Busy,
    UnsupportedEntry,
    Unworkable,
    WorkerBroken,
    WorkerFault,
)
from services.chassis.service import Service, summarize_error, wait_until_set
from services.chassis.timeouts import CLAIM_WAIT_S, POLL_S, RELEASE_TIMEOUT_S

I = TypeVar("I", bound=Message)  # noqa: E741  (input)
O = TypeVar("O", bound=Message)  # noqa: E741  (output)
log = logging.getLogger(__name__)

ALONE_AFTER_DEATHS = 2
MAX_DEATHS = 4  # the last two while it ran alone
MAX_FAILURES = 3
# An entry that fails on this many replicas is itself at fault.
_MIN_REPLICAS = 3
# A worker that fails at this many different entries, without a success, is itself at fault.
_MAX_FAILURES_IN_A_ROW = 5


def limit_in_flight(capacity: int) -> Callable[[ActiveJob, int], int]:
    return lambda _, in_flight: capacity - in_flight


def fair_share(waiting: int, claimed: int, workers: int, leased: int) -> int:
    """Return how many waiting entries a worker takes, so that all workers lease equally many.

    Args:
        waiting: entries that no worker has claimed.
        claimed: entries that all ``workers`` have claimed, including this one.
        leased: entries that this worker has claimed.
    """
    return max(0, math.ceil((waiting + claimed) / workers) - leased)


@dataclass(frozen=True)
class Consumer(Generic[I, O]):
    """The streams that a worker reads and writes, and how it turns one entry into its result."""

    inputs: tuple[Stream[I], ...]  # earlier ones have priority
    output: Stream[O]
    failures: Stream[GradedGroup]
    handle: Callable[[ActiveJob, I], Awaitable[O]]
    free_slots: Callable[[ActiveJob, int], int]  # takes the number of entries in flight
    is_open: Callable[[ActiveJob], bool] = lambda _: True
    # Whether a part of the worker died, which any entry in flight may have caused.
    has_died: Callable[[], bool] = lambda: False
    # The inputs that this worker leaves to others, by its position and the number of replicas.
    excluded_inputs: Callable[[int, int], Set[Stream]] = lambda *_: set()
    doing: Doing = Doing.WORKS

    @property
    def group(self) -> str:
        return str(self.inputs[0].group)


def is_hopeless(workers: Sequence[str], max_tries: int, replicas: Set[str]) -> bool:
    """Return whether the deaths or failures in these workers are the entry's fault.

    They are if there are ``max_tries`` of them, on three replicas or on all that may claim it.
    """
    tried_replicas = {replica_name(worker) for worker in workers}
    is_everywhere = len(tried_replicas) >= _MIN_REPLICAS or replicas <= tried_replicas
    return len(workers) >= max_tries and is_everywhere


async def work_forever(service: Service, consumer: Consumer) -> None:
    """Process the inputs of the active job until the service stops.

    Raises:
        WorkerBroken: if every entry fails here.
        Exception: from the exchange, if it is away for too long or refuses a write.
    """
    deployment = service.deployment
    roster = WorkerRegistry(deployment.claim_idle_s, deployment.heartbeat_s)
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
    roster: WorkerRegistry
    job: ActiveJob | None = None
    paused: bool = False
    leases: dict[Place, Delivery[I]] = field(default_factory=dict)
    in_flight: dict[Delivery[I], asyncio.Task[None]] = field(default_factory=dict)
    # Leased entries that may kill a worker, until each can run alone.
    suspects: list[Delivery[I]] = field(default_factory=list)
    runs_suspect: bool = False
    failed_in_a_row: dict[Place, Delivery[I]] = field(default_factory=dict)
    # An error that kept this worker from ending a lease: as long as it lives, no other gets it.
    fatal_error: BaseException | None = None
    reclaimed_at: float = float("-inf")
    has_yielded: bool = False  # let the other workers claim their share first
    backoff_s: float = 0.0  # after a fault of the worker, doubled by the next
    backoff_until: float = 0.0  # by the monotonic clock
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def exchange(self) -> Exchange:
        return self.service.exchange

    async def watch_forever(self) -> None:
        while True:
            await self._follow_job()
            await self._send_heartbeat()
            await self._expire_dead_workers()
            await asyncio.sleep(round_wait(self.service.deployment.heartbeat_s))

    async def claim_until_stopped(self) -> None:
        """Start as many entries as there are free slots.

        A claim is never cancelled, since its reply may hold entries that no other worker sees. Only
        this coroutine claims, so an entry that is ours and not leased was claimed by a lost reply.
        """
        while not self.service.stopping.is_set():
            await self._check_failures_in_a_row()
            if self.fatal_error is not None:
                raise self.fatal_error
            self._start_suspect()
            if self._can_start:
                await self._reclaim()
            if self._can_start and self._inputs:
                await self._claim()
            else:
                await self._wait_for_change()

    async def leave(self) -> None:
        """Release everything, as a death if a part of this worker died."""
        verdict: Verdict = "deaths" if self.consumer.has_died() else "unharmed"
        with suppress(TimeoutError, Refused, *Disconnected):
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._release_all(verdict)
                await self.exchange.leave(self.consumer.group)

    async def _wait_for_change(self) -> None:
        self.changed.clear()
        if self.job is None or self.paused:
            await self.service.await_event(self.changed.wait())
        else:
            await wait_until_set(self.changed, POLL_S)

    @property
    def _can_start(self) -> bool:
        return self._may_claim() and self._free_slots > 0

    @property
    def _free_slots(self) -> int:
        if self.job is None or self.runs_suspect or self.suspects:
            return 0
        return self.consumer.free_slots(self.job, len(self.in_flight))

    @property
    def _replicas(self) -> Set[str]:
        return self.roster.replicas | {self.service.replica}

    @property
    def _position(self) -> tuple[int, int]:
        replicas = sorted(self._replicas)
        return replicas.index(self.service.replica), len(replicas)

    @property
    def _inputs(self) -> Sequence[Stream[I]]:
        excluded = self.consumer.excluded_inputs(*self._position)
        return [stream for stream in self.consumer.inputs if stream not in excluded]

    def _may_claim(self) -> bool:
        return (
            self.job is not None
            and not self.paused
            and time.monotonic() >= self.backoff_until
            and not self.consumer.has_died()
            and self.consumer.is_open(self.job)
        )

    async def _follow_job(self) -> None:
        job = await self.exchange.active()
        if (job and job.job_id) != (self.job and self.job.job_id):
            await self._release_all()
            self._end_backoff()
        self.job = job
        try:
            requested = await self.exchange.requested_state(job.job_id) if job else None
        except ValueError:  # it cannot be read: the learner fails the job
            requested = None
        if requested is Requested.CANCEL:
            await self._release_all()
        self.paused = requested is not Requested.RUN
        self.changed.set()

    async def _send_heartbeat(self) -> None:
        leased = list(self.leases.values())
        activity = self.service.activity
        activity.set_held(delivery.key for delivery in leased)
        is_paused = self.job is not None and self.paused
        idle = Doing.JOB_IS_PAUSED if is_paused else Doing.IDLE
        activity.set_idle(self.consumer.doing if leased else idle)
        pulse = await self.exchange.heartbeat(
            self.consumer.group,
            self.consumer.inputs if self.job else (),
            self.job.job_id if self.job else "",
            leases=[entry for entry in leased if self.job and entry.job_id == self.job.job_id],
            may_claim=self._may_claim() and not self.service.stopping.is_set(),
        )
        self.roster.look(pulse.beats, time.monotonic())
        self.service.position = self._position
        for delivery in leased:
            if delivery.place in pulse.lost and self.leases.get(delivery.place) is delivery:
                self._drop_lost(delivery)

    def _drop_lost(self, delivery: Delivery[I]) -> None:
        metrics.LOST.inc()
        self.leases.pop(delivery.place, None)
        if delivery in self.in_flight:
            self.in_flight[delivery].cancel()
        self.suspects = [suspect for suspect in self.suspects if suspect is not delivery]

    async def _reclaim(self) -> None:
        """Claim released entries, which are rare, at every heartbeat and after a death."""
        now = time.monotonic()
        if self.job is None or now < self.reclaimed_at + self.service.deployment.heartbeat_s:
            return
        self.reclaimed_at = now
        job_id = self.job.job_id
        inputs = self._inputs
        for stream in self.consumer.inputs:
            free_slots = self._free_slots
            if free_slots <= 0:
                return
            for delivery in await self.exchange.reclaim(
                stream,
                job_id,
                count=free_slots,
                leases=self.leases.values(),
                replicas=self._replicas,
                # The workers that an excluded input is left to may all have failed at an entry.
                only_troubled=stream not in inputs,
            ):
                metrics.RECLAIMED.inc()
                await self._admit(delivery)

    async def _expire_dead_workers(self) -> None:
        """Release the entries of dead workers."""
        if self.job is None:
            return
        for worker, beats in list(self.roster.dead(self.exchange.me)):
            num_entries = await self.exchange.expire_worker(
                self.consumer.group, worker, beats, self.consumer.inputs, self.job.job_id
            )
            if num_entries > 0:
                self.reclaimed_at = float("-inf")
                metrics.DEATHS.inc()
                log.warning("a worker has died", extra={"worker": worker, "entries": num_entries})

    async def _claim(self) -> None:
        """Claim this worker's share, and at every other look one entry beyond it."""
        assert self.job is not None
        job_id = self.job.job_id
        inputs = self._inputs
        share = self._free_slots
        if self.roster.num_alive > 1:
            share = await self._compute_share(job_id, inputs)
            if self.job is None or self.job.job_id != job_id or not self._may_claim():
                return
        self.has_yielded = share <= 0 and not self.has_yielded
        if self.has_yielded:
            await self._wait_for_change()
            return
        if self._free_slots <= 0:
            return
        count = max(1, min(share, self._free_slots))
        for delivery in await self.exchange.claim(inputs, job_id, count=count, wait_s=CLAIM_WAIT_S):
            await self._admit(delivery)

    async def _compute_share(self, job_id: str, inputs: Sequence[Stream[I]]) -> int:
        """Return how many waiting entries are for this worker, or 1 if none waits."""
        share = 0
        total_waiting = 0
        for stream in inputs:
            waiting, claimed = await self.exchange.queued(stream, job_id)
            leased = sum(delivery.stream == stream for delivery in self.leases.values())
            workers = self._count_workers(stream)
            share += min(waiting, fair_share(waiting, claimed, workers, leased))
            total_waiting += waiting
        return share if total_waiting else 1

    def _count_workers(self, stream: Stream) -> int:
        """Count the workers with a heartbeat that do not exclude the stream."""
        count = max(1, len(self._replicas))
        excluding = sum(
            stream in self.consumer.excluded_inputs(position, count) for position in range(count)
        )
        return max(1, self.roster.num_alive - excluding)

    async def _admit(self, delivery: Delivery[I]) -> None:
        """Start a claimed entry, unless the job or the service ended while it was on its way."""
        self.leases[delivery.place] = delivery
        is_current = self.job is not None and self.job.job_id == delivery.job_id
        if not is_current or self.paused or self.service.stopping.is_set():
            await self._release(delivery)
        elif is_hopeless(delivery.deaths, MAX_DEATHS, self._replicas):
            dead = ", ".join(delivery.deaths)
            await self._give_up(delivery, FailureKind.DEATHS, f"workers died holding it: {dead}")
        elif len(delivery.deaths) >= ALONE_AFTER_DEATHS:
            self.suspects.append(delivery)
        else:
            self._start(delivery)

    def _start_suspect(self) -> None:
        """Run an entry that may kill its worker, once it can take nothing else with it."""
        if self.suspects and not self.in_flight:
            self.runs_suspect = True
            self._start(self.suspects.pop(0))

    def _start(self, delivery: Delivery[I]) -> None:
        task = asyncio.create_task(self._process(delivery))
        self.in_flight[delivery] = task
        metrics.IN_FLIGHT.set(len(self.in_flight))
        task.add_done_callback(lambda task: self._finish(delivery, task))

    def _finish(self, delivery: Delivery[I], task: asyncio.Task[None]) -> None:
        del self.in_flight[delivery]
        if self.fatal_error is None and not task.cancelled():
            self.fatal_error = task.exception()
        if not self.in_flight:
            self.runs_suspect = False
        metrics.IN_FLIGHT.set(len(self.in_flight))
        self.changed.set()

    async def _process(self, delivery: Delivery[I]) -> None:
        assert self.job is not None
        try:
            result = await self.consumer.handle(self.job, delivery.message())
            await self._hand_off(delivery, result)
        except FrameError as error:
            await self._give_up(delivery, FailureKind.UNREADABLE, str(error))
        except Unworkable as error:
            await self._give_up(delivery, FailureKind.UNWORKABLE, str(error))
        except UnsupportedEntry as error:
            await self._redeliver(delivery, error)
        except Busy:
            await self._release(delivery)
        except Disconnected:
            raise
        except Exception as error:
            log.exception("failed", extra={"key": delivery.key, "stream": delivery.stream.name})
            await self._fail(delivery, error)

    async def _hand_off(self, delivery: Delivery[I], result: O) -> None:
        output = self.consumer.output
        is_first = await self.exchange.hand_off(delivery, output, result)
        self.leases.pop(delivery.place, None)
        self.failed_in_a_row.clear()
        self._end_backoff()
        counter = metrics.HANDED_OFF.labels(output.name) if is_first else metrics.LOST
        counter.inc()

    async def _redeliver(self, delivery: Delivery[I], error: UnsupportedEntry) -> None:
        """Leave an entry to replicas that have not tried it; without any, it is unworkable."""
        replicas = self.roster.replicas
        tried_replicas = {replica_name(worker) for worker in delivery.failures}
        tried_replicas.add(self.service.replica)
        knows_replicas = self.service.replica in replicas
        if knows_replicas and replicas <= tried_replicas:
            await self._give_up(delivery, FailureKind.UNWORKABLE, str(error))
        else:
            await self._release(delivery, "failures")

    async def _fail(self, delivery: Delivery[I], error: Exception) -> None:
        metrics.FAILURES.inc()
        if self.consumer.has_died():
            return  # `leave` releases it as a death
        self.failed_in_a_row[delivery.place] = delivery
        failures = [*delivery.failures, self.exchange.me]
        if isinstance(error, WorkerFault):
            self._back_off(error)
            await self._release(delivery)
        elif is_hopeless(failures, MAX_FAILURES, self._replicas):
            await self._give_up(delivery, FailureKind.FAILURES, f"{type(error).__name__}: {error}")
        else:
            await self._release(delivery, "failures")

    def _back_off(self, fault: WorkerFault) -> None:
        """Claim nothing for a while, and report the fault as the reason."""
        deployment = self.service.deployment
        now = time.monotonic()
        if not self.backoff_s:
            self.service.readiness.set_fault(summarize_error(fault).words)
        # Entries that fail at the same time count as one fault.
        if now >= self.backoff_until:
            doubled_s = 2 * self.backoff_s or deployment.heartbeat_s
            self.backoff_s = min(doubled_s, deployment.claim_idle_s)
            self.backoff_until = now + self.backoff_s

    def _end_backoff(self) -> None:
        if self.backoff_s:
            self.backoff_s = 0.0
            self.backoff_until = 0.0
            self.service.readiness.set_fault("")

    async def _check_failures_in_a_row(self) -> None:
        num_failures = len(self.failed_in_a_row)
        if num_failures < _MAX_FAILURES_IN_A_ROW or self.job is None:
            return
        job_id = self.job.job_id
        message = (
            f"{num_failures} groups in a row failed in the worker {self.exchange.me} and none "
            "succeeded; it releases them and ends, to be restarted; see its log"
        )
        self.service.readiness.set_fault(message)
        failed = [entry for entry in self.failed_in_a_row.values() if entry.job_id == job_id]
        # After this no further failure of this worker can be recorded.
        await self._release_all()
        await self.exchange.clear_failures(job_id, failed)
        event = JobEvent(
            id=f"broken:{self.exchange.me}",
            job_id=job_id,
            level="warn",
            message=message,
        )
        await self.exchange.record_event(event)
        raise WorkerBroken(message)

    async def _give_up(self, delivery: Delivery[I], kind: FailureKind, reason: str) -> None:
        metrics.GIVEN_UP.labels(kind).inc()
        log.error("given up", extra={"key": delivery.key, "reason": reason})
        failure = delivery.as_failed(kind, reason)
        await self.exchange.hand_off(delivery, self.consumer.failures, failure)
        self.leases.pop(delivery.place, None)

    async def _release(self, delivery: Delivery[I], verdict: Verdict = "unharmed") -> None:
        await self.exchange.release(delivery, verdict)
        self.leases.pop(delivery.place, None)

    async def _release_all(self, verdict: Verdict = "unharmed") -> None:
        self.suspects = []
        tasks = list(self.in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for delivery in list(self.leases.values()):
            await self._release(delivery, verdict)
