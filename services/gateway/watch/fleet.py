"""What the gateway measures of the stack: its jobs, the starts of its processes, its disk."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from prometheus_client import REGISTRY, Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from protocol.exchange import Exchange, UnreadableRecord
from protocol.messages import JobRecord, JobState

from services.chassis.server_check import check_server
from services.chassis.service import Service
from services.gateway.errors import Problem, in_time
from services.gateway.watch.job_metrics import KEPT_JOBS, JobMetrics

JOBS = Gauge("weir_jobs", "Jobs, by state; the queue is those queued", ["state"])
FREE = Gauge("weir_data_free_bytes", "Free room of the file system of WEIR_DATA_DIR")
SIZE = Gauge("weir_data_size_bytes", "Size of the file system of WEIR_DATA_DIR")
_SERVICES = ("gateway", "learner", "rollout", "grader")
_EVERY_S = 2.0


class Starts(Collector):
    """How often processes have started, counted where no scrape can miss one."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def collect(self) -> Iterable[Metric]:
        """The counts as a metric; a service that has not started yet has 0."""
        family = CounterMetricFamily(
            "weir_service_starts_total", "Processes of a service that started", labels=["service"]
        )
        for service, count in self.counts.items():
            family.add_metric([service], count)
        return [family]


@dataclass
class Fleet:
    """What is known about the stack; of jobs that can never go on, what they were is kept."""

    exchange: Exchange
    final: dict[str, JobState] = field(default_factory=dict)
    newest: dict[str, JobRecord] = field(default_factory=dict)  # of those, that are still shown
    shown: list[JobRecord] = field(default_factory=list)  # jobs that have metrics of their own
    starts: Starts = field(default_factory=Starts)

    async def measure(self) -> None:
        """Set the gauges."""
        await self._measure_jobs()
        self.starts.counts = dict.fromkeys(_SERVICES, 0) | await self.exchange.starts()

    async def _measure_jobs(self) -> None:
        counts: Counter[JobState] = Counter()
        shown: list[JobRecord] = []
        for place, job_id in enumerate(await self.exchange.job_ids()):
            state, record = await self._look(job_id, is_new=place < KEPT_JOBS)
            counts[state] += 1
            if record is not None and (place < KEPT_JOBS or not state.is_final):
                shown.append(record)
        self.newest = {record.id: record for record in shown if record.id in self.final}
        for state in JobState:
            JOBS.labels(state.value).set(counts[state])
        self.shown = shown

    async def _look(self, job_id: str, *, is_new: bool) -> tuple[JobState, JobRecord | None]:
        """A job's state, and its record unless it is an old one, or unreadable."""
        if job_id in self.final and (not is_new or job_id in self.newest):
            return self.final[job_id], self.newest.get(job_id)
        try:
            record = await self.exchange.job(job_id)
        except UnreadableRecord as unreadable:
            return unreadable.state, None
        state = record.state if record else JobState.CANCELLED
        if state in {JobState.SUCCEEDED, JobState.CANCELLED}:
            self.final[job_id] = state
        return state, record


async def _watch_disk_forever(service: Service, jobs: JobMetrics) -> None:
    """Consumes the state of the data folder; produces its gauges, and jobs' newest checkpoints.

    Waits for: the next look, or for a file system that hangs. Unblocked by: time; in the end, to be
    cancelled.
    """
    while True:
        with suppress(OSError):  # one that is away is for others to tell
            disk = await asyncio.to_thread(shutil.disk_usage, service.deployment.data_dir)
            FREE.set(disk.free)
            SIZE.set(disk.total)
            await jobs.look_for_checkpoints()
        await asyncio.sleep(_EVERY_S)


async def watch_forever(service: Service) -> None:
    """Consumes the state of the exchange; produces the fleet's gauges and the gateway's readiness.

    Waits for: the next look, every two seconds. Unblocked by: time, or the service stopping.

    Raises:
        DeploymentError: if the server would delete work.
    """
    fleet, is_checked = Fleet(service.exchange), False
    jobs = JobMetrics(service.exchange, service.deployment)
    for collector in (fleet.starts, jobs):
        REGISTRY.register(collector)
    disk = asyncio.create_task(_watch_disk_forever(service, jobs))
    while not service.stopping.is_set():
        try:
            if not is_checked:
                await in_time(check_server(service.exchange))
                is_checked = True
            await in_time(fleet.measure())
            await jobs.follow(fleet.shown)
            service.readiness.set(True)
        except Problem as problem:
            service.readiness.set(False, str(problem.detail))
        await service.pause(_EVERY_S)
    disk.cancel()
