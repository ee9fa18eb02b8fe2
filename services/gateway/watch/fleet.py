"""What the gateway measures of the stack: its jobs, the starts of its processes, its disk."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from prometheus_client import REGISTRY, Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from protocol.exchange import Exchange
from protocol.exchange.jobs import AnyRecord
from protocol.messages import JobRecord

from services.chassis.service import Service, check_server
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
    """What is known about the stack."""

    exchange: Exchange
    shown: list[JobRecord] = field(default_factory=list)  # jobs that have metrics of their own
    starts: Starts = field(default_factory=Starts)
    _records: dict[str, AnyRecord] = field(default_factory=dict)
    _changing: dict[str, list[bytes | None]] = field(default_factory=dict)  # of each of them

    async def measure(self) -> None:
        """Set the gauges."""
        await self._measure_jobs()
        self.starts.counts = dict.fromkeys(_SERVICES, 0) | await self.exchange.starts()

    async def _measure_jobs(self) -> None:
        for state, count in (await self.exchange.count_states()).items():
            JOBS.labels(state.value).set(count)
        newest = await self.exchange.job_ids(KEPT_JOBS)
        begun = (await self.exchange.queue()).begun
        records = await self._read([*newest, *(set(begun) - set(newest))])
        self.shown = [record for record in records if isinstance(record, JobRecord)]

    async def _read(self, job_ids: Sequence[str]) -> Iterable[AnyRecord]:
        """Their records; only those are read that are new or have changed."""
        changing = await self.exchange.changing(job_ids)
        changed = [job_id for job_id in changing if self._changing.get(job_id) != changing[job_id]]
        read = {record.id: record for record in await self.exchange.records(changed)}
        same = [job_id for job_id in job_ids if job_id in self._records and job_id not in changed]
        self._records = {job_id: self._records[job_id] for job_id in same} | read
        self._changing = changing
        return self._records.values()


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
