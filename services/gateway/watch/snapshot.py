"""What the exchange says of the stack at one moment: who does what, and what lies where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.exchange import Backlog, Exchange, Roster, UnreadableRecord
from protocol.messages import JobRecord, Status
from protocol.streams import WORK_STREAMS

from services.gateway.watch.story import Story, median_of

_FORGOTTEN_S = 600.0  # without a sign of life
_EVENTS = 60  # in which the last steps are


@dataclass(frozen=True)
class Process:
    """What a process said last, and for how long it has shown no life since."""

    status: Status
    silent_s: float = 0.0
    is_alive: bool = True


@dataclass(frozen=True)
class Snapshot:
    """The stack at one moment. ``job`` is the one that it works on, or will take up next."""

    job: JobRecord | None = None
    processes: Sequence[Process] = ()
    streams: Mapping[str, Backlog] = field(default_factory=dict)  # of the job, by short name
    version: int | None = None  # of the policy that was announced last
    step_s: float | None = None  # median of the last steps
    dead_after_s: float = 15.0  # without a sign of life

    def of(self, service: str) -> list[Process]:
        """The processes of a service, those that live and are ready first."""
        found = [process for process in self.processes if process.status.service == service]
        return sorted(found, key=lambda p: (not p.is_alive, not p.status.ready, p.status.name))

    def living(self, service: str) -> list[Process]:
        """Those of them that live."""
        return [process for process in self.of(service) if process.is_alive]


class Observer:
    """Looks at the exchange now and then, and so knows who shows no life, by its own clock."""

    def __init__(self, exchange: Exchange, dead_after_s: float, look_every_s: float) -> None:
        self.exchange = exchange
        self.dead_after_s = dead_after_s
        self._roster = Roster(dead_after_s, look_every_s)
        self._step: tuple[str, int] | None = None  # at which the time of steps was measured
        self._step_s: float | None = None

    async def look(self, now: float) -> Snapshot:
        """The stack at a moment of the monotonic clock."""
        processes = await self._processes(now)
        job = await self._first_job()
        if job is None:
            return Snapshot(processes=processes, dead_after_s=self.dead_after_s)
        policy = await self.exchange.newest_policy(job.id)
        return Snapshot(
            job=job,
            processes=processes,
            streams={
                stream.short_name: await self.exchange.backlog(stream, job.id)
                for stream in WORK_STREAMS
            },
            version=policy and policy.number,
            step_s=await self._median_of_steps(job),
            dead_after_s=self.dead_after_s,
        )

    async def _processes(self, now: float) -> list[Process]:
        statuses = await self.exchange.statuses()
        self._roster.look({replica: status.beats for replica, status in statuses.items()}, now)
        processes: list[Process] = []
        for replica, status in statuses.items():
            silent_s = self._roster.silence[replica]
            if silent_s > _FORGOTTEN_S:
                await self.exchange.forget_status(replica)
            processes.append(Process(status, silent_s, silent_s < self.dead_after_s))
        return sorted(processes, key=lambda process: process.status.name)

    async def _first_job(self) -> JobRecord | None:
        active = await self.exchange.active()
        job_id = active.job_id if active else (await self.exchange.queue()).first
        try:
            return await self.exchange.job(job_id) if job_id else None
        except UnreadableRecord:  # the learner will set it aside
            return None

    async def _median_of_steps(self, job: JobRecord) -> float | None:
        if self._step != (job.id, job.step):
            story = Story(job)
            for _, event in reversed(await self.exchange.events_back(job.id, count=_EVENTS)):
                story.see(event)
            self._step, self._step_s = (job.id, job.step), median_of(story.step_seconds)
        return self._step_s
