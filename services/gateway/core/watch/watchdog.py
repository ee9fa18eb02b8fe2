"""The watchdog sees that a job does not move, and reports why: as an event and as a metric."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import Gauge
from protocol.exchange import Backlog, Exchange, UnreadableRecord, WorkerRegistry
from protocol.messages import JobEvent, JobRecord, JobState, Notice
from protocol.streams import WORK_STREAMS

from services.chassis.cost import CostReporter
from services.chassis.service import Service
from services.gateway.core.watch.descriptions import describe_activity, format_duration
from services.gateway.core.watch.job_metrics import JobHistory
from services.gateway.core.watch.stalls import (
    Edge,
    Process,
    Progress,
    Snapshot,
    active_progress,
    progress_mark,
    waiting_progress,
)
from services.gateway.errors import Problem, await_exchange

STALLED = Gauge(
    "weir_job_stalled",
    "1 for the edge that blocks while nothing moves",
    ["job", "recipe", "edge"],
)
QUEUE_PLACE = Gauge(
    "weir_job_queue_place", "Place in the queue of a job that can run; 1: the next one", ["job"]
)
BACKLOG = Gauge("weir_backlog_entries", "Entries of the active job, by stream", ["stream", "part"])
OLDEST = Gauge(
    "weir_backlog_oldest_seconds", "Age of the oldest entry of the active job", ["stream"]
)
LOOK_EVERY_S = 2.0
FORGET_AFTER_S = 600.0  # without a heartbeat
NUM_EVENTS = 60  # the last ones, which have the times of the last steps
DUPLICATE_LOOKS = 2  # a process that is replaced has its name twice in one look
_PARITY_FIELDS = {"version", "mean", "max", "most"}
_MOVING = Progress(True, 0.0, None)
AnyJob = JobRecord | UnreadableRecord
log = logging.getLogger(__name__)


@dataclass
class Stall:
    """A stall that has been reported, once for each of its edges."""

    job_id: str
    began: float  # when the job last moved, by the monotonic clock
    edges: list[Edge] = field(default_factory=list)


class Watchdog:
    """Looks at the stack now and then, and remembers when the active job last moved.

    A process is dead ``dead_after_s`` after its last heartbeat, by the watchdog's own clock.
    """

    def __init__(
        self, exchange: Exchange, dead_after_s: float, every_s: float = LOOK_EVERY_S
    ) -> None:
        self.exchange = exchange
        self.every_s = every_s
        self.snapshot = Snapshot(dead_after_s=dead_after_s)
        self.queue_places: dict[str, int] = {}  # of jobs that can run; 1: the next one
        self._heartbeats = WorkerRegistry(dead_after_s, every_s)
        self._work = WorkerRegistry(dead_after_s, every_s)
        self._measured_step: tuple[str, int] | None = None  # the job and step of ``_step_s``
        self._step_s: float | None = None
        self._progress = _MOVING  # of the active job
        self._mark: Hashable = None
        self._moved_at = time.monotonic()
        self._stall: Stall | None = None
        self._duplicate_looks: dict[str, int] = {}  # by the name of several processes

    async def watch_forever(self, service: Service) -> None:
        """Consumes the state of the stack; produces events and metrics of stalls.

        Waits for: the next look, every two seconds. Unblocked by: time, or the service stopping.
        """
        cost = CostReporter(self.exchange, service.name, supervisor=os.getppid())
        while not service.stopping.is_set():
            try:
                await await_exchange(self.look(time.monotonic()))
                await await_exchange(cost.report())
            except Problem:  # Redis is away; /readyz reports it
                self._moved_at = time.monotonic()
            except Exception:  # the watchdog must not end the gateway
                log.exception("cannot look")
            await service.pause(self.every_s)

    async def look(self, now: float) -> None:
        self.snapshot = await self._take_snapshot(now)
        mark = progress_mark(self.snapshot)
        if mark != self._mark:
            self._mark = mark
            self._moved_at = now
        job = self.snapshot.job
        self._progress = active_progress(self.snapshot, now - self._moved_at) if job else _MOVING
        _export(job, self._progress.edge, self.snapshot.streams)
        _export_queue(self.queue_places)
        for event in self._report(job, self._progress, now):
            await self.exchange.record_event(event)

    async def _take_snapshot(self, now: float) -> Snapshot:
        dead_after_s = self.snapshot.dead_after_s
        snapshot = Snapshot(processes=await self._read_processes(now), dead_after_s=dead_after_s)
        job = await self._find_active_job()
        if job is None:
            return snapshot
        policy = await self.exchange.newest_policy(job.id)
        return replace(
            snapshot,
            job=job,
            streams={
                stream.short_name: await self.exchange.backlog(stream, job.id)
                for stream in WORK_STREAMS
            },
            version=policy and policy.number,
            step_s=await self._median_step_s(job),
        )

    async def _read_processes(self, now: float) -> list[Process]:
        statuses = await self.exchange.statuses()
        self._heartbeats.look({replica: s.beats for replica, s in statuses.items()}, now)
        self._work.look({replica: s.moved for replica, s in statuses.items()}, now)
        processes: list[Process] = []
        chosen_names: list[str] = []
        for replica, status in statuses.items():
            silent_s = self._heartbeats.silence[replica]
            if silent_s > FORGET_AFTER_S:
                await self.exchange.forget_status(replica)
            is_alive = silent_s < self.snapshot.dead_after_s
            processes.append(Process(status, silent_s, is_alive, self._work.silence[replica]))
            has_chosen_name = not replica.startswith(f"{status.name}-")  # by WEIR_NAME
            if has_chosen_name and not silent_s:
                chosen_names.append(status.name)
        self._report_duplicates(Counter(chosen_names))
        return sorted(processes, key=lambda process: process.status.name)

    def _report_duplicates(self, counts: Counter[str]) -> None:
        looks = self._duplicate_looks
        self._duplicate_looks = {
            name: looks.get(name, 0) + 1 for name, count in counts.items() if count > 1
        }
        for name, num_looks in self._duplicate_looks.items():
            if num_looks == DUPLICATE_LOOKS:
                reason = "two stacks share this Redis database; give each its own (WEIR_REDIS_URL)"
                log.error(reason, extra={"both_have": name})

    async def _find_active_job(self) -> JobRecord | None:
        """Return the active job or the next one, and number the queue."""
        active = await self.exchange.active()
        queue = await self.exchange.queue()
        active_id = active.job_id if active else None
        waiting = [job_id for job_id in queue.order if job_id != active_id]
        self.queue_places = {job_id: place for place, job_id in enumerate(waiting, start=1)}
        job_id = active_id or queue.first
        try:
            return await self.exchange.job(job_id) if job_id else None
        except UnreadableRecord:  # the learner sets it aside
            return None

    async def _median_step_s(self, job: JobRecord) -> float | None:
        if self._measured_step != (job.id, job.step):
            history = JobHistory(job)
            for _, event in reversed(await self.exchange.events_back(job.id, count=NUM_EVENTS)):
                history.add(event)
            self._measured_step = (job.id, job.step)
            self._step_s = history.median_step_s
        return self._step_s

    def progress_object(self, job: AnyJob) -> dict[str, Any]:
        """Return the progress of a job as clients of the REST API see it."""
        progress = self._find_progress(job)
        return {
            "object": "fine_tuning.job.why",
            "ended": job.state.is_final,
            "moving": progress.is_moving,
            "still_s": round(progress.still_s, 1),
            "because": progress.reason,
            "edge": progress.edge,
            "services": [_service_object(process, job.id) for process in self.snapshot.present],
            "streams": [_stream_object(*stream) for stream in self.snapshot.streams.items()],
        }

    def estimate_finish(self, job: AnyJob) -> int | None:
        """Return when a running job will have made its steps, in seconds since 1970."""
        active = self.snapshot.job
        step_s = self.snapshot.step_s
        if active is None or step_s is None or job.id != active.id or job.state.is_final:
            return None
        if active.state is not JobState.RUNNING or active.recipe.client:
            return None
        return round(time.time() + (active.recipe.training.steps - active.step) * step_s)

    def _find_progress(self, job: AnyJob) -> Progress:
        if isinstance(job, UnreadableRecord):
            return Progress(False, 0.0, str(job))
        if job.state.is_final:
            now = time.time()
            error = f": {job.error}" if job.error else ""
            ended_s = max(0.0, now - (job.finished_at or now))
            return Progress(False, ended_s, f"it has ended: {job.state}{error}")
        active = self.snapshot.job
        if active is not None and active.id == job.id:
            return self._progress
        return waiting_progress(job, active, self._progress)

    def _report(self, job: JobRecord | None, progress: Progress, now: float) -> Iterator[JobEvent]:
        """Yield an event for each edge of a stall, and one at its end.

        An event that could not be recorded is yielded again.
        """
        stall = self._stall
        if stall is not None:
            is_same_job = job is not None and job.id == stall.job_id
            if is_same_job and progress.edge is None:
                message = f"it moves again, after {format_duration(now - stall.began)}"
                yield _build_event(stall.job_id, "moves", "info", message, stall.edges[-1])
            if not is_same_job or progress.edge is None:
                self._stall = None
        if job is None or progress.edge is None:
            return
        stall = self._stall or Stall(job.id, now - progress.still_s)
        self._stall = stall
        if progress.edge not in stall.edges:
            duration = format_duration(progress.still_s)
            message = f"nothing has moved for {duration}: {progress.reason}"
            yield _build_event(job.id, "stall", "warn", message, progress.edge)
            stall.edges.append(progress.edge)


def _build_event(job_id: str, kind: str, level: Any, message: str, edge: Edge) -> JobEvent:
    event_id = f"{kind}:{time.time_ns()}"
    data = Notice(details={"edge": edge})
    return JobEvent(id=event_id, job_id=job_id, level=level, message=message, data=data)


def _export(job: JobRecord | None, stalled: Edge | None, streams: Mapping[str, Backlog]) -> None:
    STALLED.clear()
    if job is not None:
        for edge in Edge:
            STALLED.labels(job.id, job.recipe.name, edge).set(edge is stalled)
    for name in (stream.short_name for stream in WORK_STREAMS):
        backlog = streams.get(name, Backlog(0, 0))
        BACKLOG.labels(name, "waiting").set(backlog.waiting)
        BACKLOG.labels(name, "claimed").set(backlog.claimed)
        OLDEST.labels(name).set(backlog.oldest_s)


def _export_queue(places: Mapping[str, int]) -> None:
    QUEUE_PLACE.clear()
    for job_id, place in places.items():
        QUEUE_PLACE.labels(job_id).set(place)


def _stream_object(name: str, backlog: Backlog) -> dict[str, Any]:
    return {
        "stream": name,
        "waiting": backlog.waiting,
        "claimed": backlog.claimed,
        "oldest_s": round(backlog.oldest_s, 1),
    }


def _service_object(process: Process, job_id: str) -> dict[str, Any]:
    status = process.status
    parity = [
        report.model_dump(include=_PARITY_FIELDS)
        for report in status.parity
        if report.job_id == job_id
    ]
    activity = describe_activity(status)
    seconds = status.for_s
    if not process.is_alive:
        activity = f"is silent; last: {activity}"
        seconds = process.silent_s
    return {
        "name": status.name,
        "service": status.service,
        "ready": status.ready and process.is_alive,
        "doing": activity,
        "for_s": round(seconds, 1),
        "parity": parity[-1] if parity else None,
    }
