"""The gateway's eyes on the stack: how full the streams are, and what the jobs do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from prometheus_client import Gauge
from protocol.exchange import Exchange, UnreadableRecord
from protocol.messages import JobState
from protocol.streams import WORK_STREAMS

from services.chassis.server_check import check_server
from services.chassis.service import Service
from services.gateway.errors import Problem, in_time

BACKLOG = Gauge("weir_backlog_entries", "Entries of the active job, by stream", ["stream", "part"])
JOBS = Gauge("weir_jobs", "Jobs, by state", ["state"])
_EVERY_S = 2.0


@dataclass
class Fleet:
    """What is known about the stack; of jobs that can never go on, what they were is kept."""

    exchange: Exchange
    final: dict[str, JobState] = field(default_factory=dict)

    async def measure(self) -> None:
        """Set the gauges."""
        await self._measure_jobs()
        active = await self.exchange.active()
        for stream in WORK_STREAMS:
            name = stream.name.rpartition(":")[2]
            backlog = await self.exchange.backlog(stream, active.job_id) if active else None
            claimed = backlog.claimed if backlog else 0
            BACKLOG.labels(name, "waiting").set(backlog.entries - claimed if backlog else 0)
            BACKLOG.labels(name, "claimed").set(claimed)

    async def _measure_jobs(self) -> None:
        counts: Counter[JobState] = Counter()
        for job_id in await self.exchange.job_ids():
            state = self.final.get(job_id) or await self._state(job_id)
            counts[state] += 1
        for state in JobState:
            JOBS.labels(state.value).set(counts[state])

    async def _state(self, job_id: str) -> JobState:
        try:
            record = await self.exchange.job(job_id)
        except UnreadableRecord as unreadable:
            return unreadable.state
        state = record.state if record else JobState.CANCELLED
        if state in {JobState.SUCCEEDED, JobState.CANCELLED}:
            self.final[job_id] = state
        return state


async def watch_forever(service: Service) -> None:
    """Consumes the state of the exchange; produces the fleet's gauges and the gateway's readiness.

    Waits for: the next look, every two seconds. Unblocked by: time, or the service stopping.

    Raises:
        DeploymentError: if the server would delete work.
    """
    fleet, is_checked = Fleet(service.exchange), False
    while not service.stopping.is_set():
        try:
            if not is_checked:
                await in_time(check_server(service.exchange))
                is_checked = True
            await in_time(fleet.measure())
            service.readiness.set(True)
        except Problem as problem:
            service.readiness.set(False, str(problem.detail))
        await service.pause(_EVERY_S)
