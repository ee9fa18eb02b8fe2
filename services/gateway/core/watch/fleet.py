"""Gauges of the stack, and the removal of ended jobs, leftovers and expired files."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
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

from services.chassis.deployment import Deployment
from services.chassis.service import Service, check_server
from services.gateway.core.calls.session_store import SessionStore
from services.gateway.core.jobs.folders import remove_leftovers
from services.gateway.core.jobs.service import JobService
from services.gateway.core.models.checkpoints import list_checkpoints
from services.gateway.core.watch.job_metrics import JobHistory, build_families
from services.gateway.errors import Problem, await_exchange

JOBS = Gauge("weir_jobs", "Jobs, by state; the queue is those queued", ["state"])
FREE = Gauge("weir_data_free_bytes", "Free room of the file system of WEIR_DATA_DIR")
SIZE = Gauge("weir_data_size_bytes", "Size of the file system of WEIR_DATA_DIR")
MAX_EXPORTED_JOBS = 20  # the newest; unfinished ones are always exported
MAX_MEMORY_SHARE = 0.25  # of Redis' maxmemory, for records and events of jobs that have ended
WATCH_EVERY_S = 2.0
DISK_EVERY_S = 10.0
TIDY_EVERY_S = 60.0
MAX_EVENTS_PER_LOOK = 500  # of one job
_SERVICES = ("gateway", "learner", "rollout", "environment", "grader")
log = logging.getLogger(__name__)


@dataclass(eq=False)  # a registry hashes it
class Fleet(Collector):
    """Measures the stack, and exports the metrics of its jobs and the starts of its services."""

    exchange: Exchange
    deployment: Deployment
    histories: dict[str, JobHistory] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    _records: dict[str, AnyRecord] = field(default_factory=dict)
    _changing: dict[str, list[bytes | None]] = field(default_factory=dict)  # of each record

    async def measure(self) -> None:
        """Set the gauges, and add new events to the histories.

        Raises:
            Problem: 503 if the exchange is silent; the next call continues.
        """
        await await_exchange(self._measure_jobs())
        for record in self._records.values():
            if isinstance(record, JobRecord):
                history = self.histories[record.id]
                has_changed = history.record is not record
                if has_changed or not history.is_done:
                    await await_exchange(self._add_events(history, record))

    async def _measure_jobs(self) -> None:
        for state, count in (await self.exchange.count_states()).items():
            JOBS.labels(state.value).set(count)
        self.starts = dict.fromkeys(_SERVICES, 0) | await self.exchange.starts()
        newest = await self.exchange.job_ids(MAX_EXPORTED_JOBS)
        queue = await self.exchange.queue()
        await self._read_records([*dict.fromkeys([*newest, *queue.begun])])
        self.histories = {
            record.id: self.histories.get(record.id) or JobHistory(record)
            for record in self._records.values()
            if isinstance(record, JobRecord)
        }

    async def _read_records(self, job_ids: Sequence[str]) -> None:
        """Read the records that are new or have changed, and forget all others."""
        changing = await self.exchange.changing(job_ids)
        changed = [job_id for job_id in changing if self._changing.get(job_id) != changing[job_id]]
        new_records = {record.id: record for record in await self.exchange.records(changed)}
        unchanged = self._records.keys() & {*job_ids} - {*changed}
        self._records = {job_id: self._records[job_id] for job_id in unchanged} | new_records
        self._changing = changing

    async def _add_events(self, history: JobHistory, record: JobRecord) -> None:
        # The record was read before its events, so those of an ended job are complete.
        rows = await self.exchange.events(
            record.id, after=history.position, count=MAX_EVENTS_PER_LOOK
        )
        for position, event in rows:
            history.position = position
            history.add(event)
        history.record = record
        is_at_end = len(rows) < MAX_EVENTS_PER_LOOK
        history.is_current = history.is_current or is_at_end
        history.is_done = record.state.is_final and is_at_end

    async def find_checkpoints(self) -> None:
        for job_id, history in list(self.histories.items()):
            job_dir = self.deployment.job_dir(job_id)
            for newest in (await asyncio.to_thread(list_checkpoints, job_dir))[:1]:
                history.checkpoint = (newest.step, newest.created_at)

    def collect(self) -> Iterable[Metric]:
        starts = CounterMetricFamily(
            "weir_service_starts_total", "Processes of a service that started", labels=["service"]
        )
        for service, count in self.starts.items():
            starts.add_metric([service], count)
        return [starts, *build_families(self.histories.values(), time.time())]


async def _watch_disk_forever(fleet: Fleet) -> None:
    """Consumes the state of the data folder; produces its gauges, and jobs' newest checkpoints.

    Waits for: the next look, or for a file system that hangs. Unblocked by: time; in the end, to be
    cancelled.
    """
    while True:
        with suppress(OSError):  # other parts report a disk that is away
            disk = await asyncio.to_thread(shutil.disk_usage, fleet.deployment.data_dir)
            FREE.set(disk.free)
            SIZE.set(disk.total)
            await fleet.find_checkpoints()
        await asyncio.sleep(DISK_EVERY_S)


async def watch_forever(service: Service, fleet: Fleet) -> None:
    """Consumes the state of the exchange; produces the fleet's gauges and the gateway's readiness.

    Waits for: the next look, every two seconds. Unblocked by: time, or the service stopping.

    Raises:
        DeploymentError: if the server would delete work.
    """
    is_checked = False
    REGISTRY.register(fleet)
    disk = asyncio.create_task(_watch_disk_forever(fleet))
    while not service.stopping.is_set():
        try:
            if not is_checked:
                await await_exchange(check_server(service.exchange))
                is_checked = True
            await fleet.measure()
            service.readiness.set(True)
        except Problem as problem:
            service.readiness.set(False, str(problem.detail))
        await service.pause(WATCH_EVERY_S)
    disk.cancel()


async def tidy_forever(service: Service, jobs: JobService) -> None:
    """Consumes ended jobs, folders of deleted ones, and expired files; produces room.

    Waits for: the next look. Unblocked by: time, or the service stopping.
    """
    await asyncio.to_thread(jobs.files.remove_leftovers)
    while not service.stopping.is_set():
        try:
            await asyncio.to_thread(remove_leftovers, service.deployment.jobs_dir)
            await forget_surplus(service)
            await jobs.expire_files()
            await asyncio.to_thread(SessionStore(service.deployment.sessions_dir).expire)
        except Problem:  # Redis is away; /readyz reports it
            pass
        except Exception:  # tidying must not end the gateway
            log.exception("cannot tidy")
        await service.pause(TIDY_EVERY_S)


async def forget_surplus(service: Service) -> None:
    """Forget the oldest ended jobs if all of them take more than their share of Redis."""
    memory = await await_exchange(service.exchange.memory())
    if memory.limit is not None:
        max_bytes = int(MAX_MEMORY_SHARE * memory.limit)
        if job_ids := await service.exchange.forget_oldest(max_bytes):
            log.warning("forgot the oldest jobs; their folders stay", extra={"jobs": job_ids})
