"""The watchdog sees that nothing moves, and says why: as an event, a metric, and when asked."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import Gauge
from protocol.exchange import Backlog, Exchange, UnreadableRecord, WorkerRegistry
from protocol.messages import JobEvent, JobRecord, JobState, Notice
from protocol.streams import WORK_STREAMS

from services.chassis.service import Service
from services.gateway.core.watch.job_metrics import JobHistory
from services.gateway.core.watch.stalls import (
    Edge,
    Process,
    Snapshot,
    Why,
    duration,
    mark_of,
    why_first,
    why_not_first,
    words_of,
)
from services.gateway.errors import Problem, await_exchange

STALLED = Gauge(
    "weir_job_stalled",
    "1 for the edge that blocks while nothing moves",
    ["job", "recipe", "edge"],
)
BACKLOG = Gauge("weir_backlog_entries", "Entries of the active job, by stream", ["stream", "part"])
OLDEST = Gauge(
    "weir_backlog_oldest_seconds", "Age of the oldest entry of the active job", ["stream"]
)
_EVERY_S = 2.0
_SURE_LOOKS = 2  # after one a process may just have been replaced
_FORGOTTEN_S = 600.0  # without a sign of life
_GAP = {"version", "mean", "max", "most"}
_EVENTS = 60  # in which the last steps are
log = logging.getLogger(__name__)
_NOTHING = Why(True, 0.0, None)


@dataclass
class Stall:
    """One that was told of, once for each edge that it had."""

    job_id: str
    began: float  # when something moved last, by the monotonic clock
    edges: list[Edge] = field(default_factory=list)


class Watchdog:
    """Looks at the stack now and then, and remembers when something moved.

    A process is dead after ``dead_after_s`` without a sign of life, by the watchdog's own clock.
    """

    def __init__(self, exchange: Exchange, dead_after_s: float, every_s: float = _EVERY_S) -> None:
        self.exchange, self.every_s = exchange, every_s
        self.seen = Snapshot(dead_after_s=dead_after_s)
        self.places: dict[str, int] = {}  # in the queue, of jobs that can run; 1: the next one
        self._roster = WorkerRegistry(dead_after_s, every_s)
        self._work = WorkerRegistry(dead_after_s, every_s)
        self._step: tuple[str, int] | None = None  # at which the time of steps was measured
        self._step_s: float | None = None
        self._first = _NOTHING  # of the job that the stack works on
        self._mark: Hashable = None
        self._moved = time.monotonic()
        self._stall: Stall | None = None
        self._doubles: dict[str, int] = {}  # names of several processes, for how many looks

    async def watch_forever(self, service: Service) -> None:
        """Consumes the state of the stack; produces events and metrics of stalls.

        Waits for: the next look, every two seconds. Unblocked by: time, or the service stopping.
        """
        while not service.stopping.is_set():
            try:
                await await_exchange(self.look(time.monotonic()))
            except Problem:  # Redis is away, as /readyz says
                self._moved = time.monotonic()
            except Exception:  # whoever only looks must not end the gateway
                log.exception("cannot look")
            await service.pause(self.every_s)

    async def look(self, now: float) -> None:
        self.seen = await self._snapshot(now)
        mark = mark_of(self.seen)
        if mark != self._mark:
            self._mark, self._moved = mark, now
        job = self.seen.job
        self._first = why_first(self.seen, now - self._moved) if job else _NOTHING
        _export(job, self._first.edge, self.seen.streams)
        for event in self._news(job, self._first, now):
            await self.exchange.record_event(event)

    async def _snapshot(self, now: float) -> Snapshot:
        seen = Snapshot(processes=await self._processes(now), dead_after_s=self.seen.dead_after_s)
        if (job := await self._first_job()) is None:
            return seen
        policy = await self.exchange.newest_policy(job.id)
        return replace(
            seen,
            job=job,
            streams={
                stream.short_name: await self.exchange.backlog(stream, job.id)
                for stream in WORK_STREAMS
            },
            version=policy and policy.number,
            step_s=await self._median_of_steps(job),
        )

    async def _processes(self, now: float) -> list[Process]:
        statuses = await self.exchange.statuses()
        self._roster.look({replica: status.beats for replica, status in statuses.items()}, now)
        self._work.look({replica: each.moved for replica, each in statuses.items()}, now)
        processes: list[Process] = []
        for replica, status in statuses.items():
            silent_s = self._roster.silence[replica]
            if silent_s > _FORGOTTEN_S:
                await self.exchange.forget_status(replica)
            is_alive, still_s = silent_s < self.seen.dead_after_s, self._work.silence[replica]
            processes.append(Process(status, silent_s, is_alive, still_s))
        alive = (process.status for process in processes if not process.silent_s)
        given = (s.name for s in alive if not s.replica.startswith(f"{s.name}-"))  # by WEIR_NAME
        self._warn_of_doubles(Counter(given))
        return sorted(processes, key=lambda process: process.status.name)

    def _warn_of_doubles(self, living: Counter[str]) -> None:
        self._doubles = {n: self._doubles.get(n, 0) + 1 for n, count in living.items() if count > 1}
        for name in (n for n, looks in self._doubles.items() if looks == _SURE_LOOKS):
            why = "two stacks share this Redis database; give each one of its own (WEIR_REDIS_URL)"
            log.error(why, extra={"both_have": name})

    async def _first_job(self) -> JobRecord | None:
        active, queue = await self.exchange.active(), await self.exchange.queue()
        job_id = active.job_id if active else queue.first
        waiting = [each for each in queue.order if active is None or each != active.job_id]
        self.places = {each: place for place, each in enumerate(waiting, start=1)}
        try:
            return await self.exchange.job(job_id) if job_id else None
        except UnreadableRecord:  # the learner will set it aside
            return None

    async def _median_of_steps(self, job: JobRecord) -> float | None:
        if self._step != (job.id, job.step):
            history = JobHistory(job)
            for _, event in reversed(await self.exchange.events_back(job.id, count=_EVENTS)):
                history.see(event)
            self._step, self._step_s = (job.id, job.step), history.median_step_s
        return self._step_s

    def why(self, job: JobRecord | UnreadableRecord) -> dict[str, Any]:
        """Why a job does not go on, in the shape of the REST surface."""
        why = self._why(job)
        return {
            "object": "fine_tuning.job.why",
            "moving": why.moving,
            "still_s": round(why.still_s, 1),
            "because": why.because,
            "edge": why.edge,
            "services": [_service_object(process, job.id) for process in self.seen.present],
            "streams": [_stream_object(*stream) for stream in self.seen.streams.items()],
        }

    def estimated_finish(self, job: JobRecord | UnreadableRecord) -> int | None:
        """When a job that runs will have made its steps, at their median time, in Unix seconds."""
        first, step_s = self.seen.job, self.seen.step_s
        if first is None or job.id != first.id or job.state.is_final:
            return None
        if step_s is None or first.state is not JobState.RUNNING or first.recipe.client:
            return None
        return round(time.time() + (first.recipe.training.steps - first.step) * step_s)

    def _why(self, job: JobRecord | UnreadableRecord) -> Why:
        if isinstance(job, UnreadableRecord):
            return Why(False, 0.0, str(job))
        if job.state.is_final:
            ended = max(0.0, time.time() - (job.finished_at or time.time()))
            error = f": {job.error}" if job.error else ""
            return Why(False, ended, f"it has ended: {job.state}{error}")
        if self.seen.job is not None and self.seen.job.id == job.id:
            return self._first
        return why_not_first(job, self.seen.job, self._first)

    def _news(self, job: JobRecord | None, why: Why, now: float) -> Iterator[JobEvent]:
        """One event for one stall, and one when it is over; again, if it was not recorded."""
        told = self._stall
        if told is not None and (job is None or job.id != told.job_id or why.edge is None):
            if job is not None and job.id == told.job_id:
                words = f"it moves again, after {duration(now - told.began)}"
                yield _event(job.id, "moves", "info", words, told.edges[-1])
            self._stall = None
        if job is None or why.edge is None:
            return
        stall = self._stall = self._stall or Stall(job.id, now - why.still_s)
        if why.edge not in stall.edges:
            words = f"nothing has moved for {duration(why.still_s)}: {why.because}"
            yield _event(job.id, "stall", "warn", words, why.edge)
            stall.edges.append(why.edge)


def _event(job_id: str, kind: str, level: Any, words: str, edge: Edge) -> JobEvent:
    event_id = f"{kind}:{time.time_ns()}"
    data = Notice(details={"edge": edge})
    return JobEvent(id=event_id, job_id=job_id, level=level, message=words, data=data)


def _export(job: JobRecord | None, stalled: Edge | None, streams: Mapping[str, Backlog]) -> None:
    STALLED.clear()
    if job is not None:
        for edge in Edge:
            STALLED.labels(job.id, job.recipe.name, edge).set(edge is stalled)
    for stream in WORK_STREAMS:
        backlog = streams.get(stream.short_name, Backlog(0, 0))
        BACKLOG.labels(stream.short_name, "waiting").set(backlog.waiting)
        BACKLOG.labels(stream.short_name, "claimed").set(backlog.claimed)
        OLDEST.labels(stream.short_name).set(backlog.oldest_s)


def _stream_object(name: str, backlog: Backlog) -> dict[str, Any]:
    counts = {"waiting": backlog.waiting, "claimed": backlog.claimed}
    return {"stream": name, **counts, "oldest_s": round(backlog.oldest_s, 1)}


def _service_object(process: Process, job_id: str) -> dict[str, Any]:
    status = process.status
    told = [r.model_dump(include=_GAP) for r in status.parity if r.job_id == job_id]
    doing, for_s = words_of(status), status.for_s
    if not process.is_alive:
        doing, for_s = f"shows no life; last: {doing}", process.silent_s
    return {
        "name": status.name,
        "service": status.service,
        "ready": status.ready and process.is_alive,
        "doing": doing,
        "for_s": round(for_s, 1),
        "parity": told[-1] if told else None,
    }
