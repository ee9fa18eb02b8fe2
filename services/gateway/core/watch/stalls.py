"""Why a job does not move: the edge that blocks it, in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from protocol.exchange import Backlog
from protocol.messages import Doing, JobRecord, JobState, Phase, Requested, Status
from protocol.recipe import Purpose
from protocol.streams import request_stream

from services.gateway.core.watch.descriptions import describe_process, format_duration

START_TIMEOUT_S = 600.0  # an engine, the learner's models, or the first weights may take this long
LONG_WORK_S = 300.0  # checkpoints, responses that get tokens, and work without a step
RESTART_GRACE_S = 60.0  # a crashed process gets this long to restart before it is a stall
MIN_STALL_S = 25.0  # no work that ends sooner is a stall
STALL_AFTER_STEPS = 3  # work is stalled after this many median step times
FIRST_STEP_S = 600.0  # the timeout of work before there is a median
MAX_SILENT_ATTEMPTS = 3  # in a row without a checkpoint; then the learner is taken as dead
MAX_FAILED_STARTS = 3  # in a row without an error; then the process is taken as unable to start


class Edge(StrEnum):
    NO_LEARNER = "no_learner"
    NO_ROLLOUT = "no_rollout"
    NO_ENVIRONMENT = "no_environment"
    NO_GRADER = "no_grader"
    CANNOT_START = "cannot_start"
    STARTING = "starting"
    LOADING = "loading"
    SAMPLING = "sampling"
    ENVIRONMENT = "environment"
    GRADING = "grading"
    JUDGE = "judge"
    TRAINING = "training"
    LEARNER = "learner"  # its other work
    MEMORY = "memory"


# The edges of a process that can work, and of one that cannot, or loads.
_EDGES = {
    "rollout": (Edge.SAMPLING, Edge.LOADING),
    "environment": (Edge.ENVIRONMENT, Edge.ENVIRONMENT),
    "grader": (Edge.GRADING, Edge.JUDGE),
}
_NOUNS = {"environment": "environment worker"}
_REMEDIES = {
    "environment": "; start one: WEIR_ENVIRONMENTS=1 after `make install-environment`, or the "
    "profile `environment` of docker-compose.yml"
}


@dataclass(frozen=True)
class Process:
    """The last status of a process, and the time since its heartbeat and its progress."""

    status: Status
    silent_s: float = 0.0
    is_alive: bool = True
    still_s: float = 0.0  # 0 for processes that do not report progress

    @property
    def place(self) -> str:
        """The same for a process and for the one that replaces it. There is one learner."""
        return "learner" if self.status.service == "learner" else self.status.name

    @property
    def edge(self) -> Edge:
        """The edge of a group that this process has, or is to take."""
        status = self.status
        if status.doing.phase is Phase.STARTING:
            return Edge.STARTING
        working, waiting = _EDGES[status.service]
        can_work = status.ready or status.doing is Doing.FAILS
        return working if can_work and status.doing.phase is not Phase.LOADING else waiting

    @property
    def silence(self) -> str:
        return f"has been silent for {format_duration(self.silent_s)}"


@dataclass(frozen=True)
class Snapshot:
    """The stack at one moment. ``job`` is the active one, or the next one."""

    job: JobRecord | None = None
    processes: Sequence[Process] = ()
    streams: Mapping[str, Backlog] = field(default_factory=dict)  # of the job, by short name
    version: int | None = None  # of the newest weights
    step_s: float | None = None  # median of the last steps
    dead_after_s: float = 15.0  # without a heartbeat

    def find_processes(self, service: str) -> list[Process]:
        """Return the processes of a service: living ones first, then ready ones."""
        processes = [process for process in self.processes if process.status.service == service]
        return sorted(processes, key=lambda p: (not p.is_alive, not p.status.ready, p.status.name))

    def living(self, service: str) -> list[Process]:
        return [process for process in self.find_processes(service) if process.is_alive]

    @property
    def present(self) -> list[Process]:
        """All processes but the dead ones that have been replaced."""
        places = {process.place for process in self.processes if process.is_alive}
        return [
            process for process in self.processes if process.is_alive or process.place not in places
        ]

    @property
    def certain_stall_s(self) -> float:
        """The timeout if nothing can move: the time that a process has to restart."""
        return self.dead_after_s * 5 / 3

    def work_timeout_s(self, min_s: float = MIN_STALL_S) -> float:
        if self.step_s is None:
            return FIRST_STEP_S
        return max(min_s, STALL_AFTER_STEPS * self.step_s)

    def group_timeout_s(self, edge: Edge, team: Sequence[Process], key: str) -> float:
        """Return the timeout of living processes that have a group, or are to take it."""
        if edge is Edge.JUDGE or team[0].status.doing is Doing.FAILS:
            return self.certain_stall_s
        is_long = edge is Edge.ENVIRONMENT
        if edge is Edge.SAMPLING:
            is_long = any(process.still_s < MIN_STALL_S for process in team)
        if edge is Edge.GRADING:  # there are no steps during an evaluation
            keys = [key, *(claimed for process in team for claimed in process.status.holds)]
            is_long = any(group_key.startswith(Purpose.EVAL) for group_key in keys)
        return self.work_timeout_s(LONG_WORK_S if is_long else MIN_STALL_S)


@dataclass(frozen=True)
class Blocker:
    """The thing that a job waits for: a stall if nothing moves for ``timeout_s``."""

    edge: Edge
    reason: str
    timeout_s: float
    still_s: float = 0.0  # of this process, even if others move


def progress_mark(snapshot: Snapshot) -> Hashable:
    """Return a value that changes from look to look while a job moves."""
    job = snapshot.job
    if job is None:
        return None
    steps = (job.id, job.state, job.requested, job.step)
    if job.attempts_since_checkpoint >= MAX_SILENT_ATTEMPTS:
        return steps  # a learner that is killed again and again is busy, but does not move
    statuses = [process.status for process in snapshot.find_processes("learner")[:1]]
    learner = [(status.doing, status.number, status.waits_for) for status in statuses]
    lengths = [(backlog.entries, backlog.claimed) for backlog in snapshot.streams.values()]
    return (*steps, snapshot.version, *learner, *lengths)


def find_blocker(snapshot: Snapshot) -> Blocker:
    """Follow the wait from the learner on; the job is running, or is the next one."""
    job = snapshot.job
    assert job is not None
    attempts = job.attempts_since_checkpoint
    if attempts >= MAX_SILENT_ATTEMPTS:
        reason = f"{attempts} attempts in a row ended without an error; see the learner's log"
        return Blocker(Edge.NO_LEARNER, reason, snapshot.certain_stall_s)
    learners = snapshot.living("learner")
    if not learners:
        return _no_worker(snapshot, "learner", "the job waits for a learner")
    for process in snapshot.processes:
        if process.is_alive and process.status.waits_for_memory:
            reason = f"Redis is full: {process.status.name} waits for room in its memory"
            return Blocker(Edge.MEMORY, reason, snapshot.certain_stall_s)
    status = learners[0].status
    if status.waits_for:
        return _missing_group(snapshot, job, status)
    return _busy_learner(snapshot, status)


def _busy_learner(snapshot: Snapshot, learner: Status) -> Blocker:
    edge = Edge.LEARNER
    timeout_s = snapshot.work_timeout_s(LONG_WORK_S)
    if learner.doing.phase is Phase.STARTING:
        edge = Edge.STARTING
        timeout_s = START_TIMEOUT_S
    elif learner.doing is Doing.WAITS_FOR_CLIENT:
        timeout_s = math.inf
    elif learner.doing.phase is Phase.WAITING:
        timeout_s = snapshot.certain_stall_s
    elif learner.doing in {Doing.TRAINS, Doing.PRETRAINS}:
        edge = Edge.TRAINING
        timeout_s = snapshot.work_timeout_s()
    return Blocker(edge, describe_process(learner), timeout_s)


def _missing_group(snapshot: Snapshot, job: JobRecord, learner: Status) -> Blocker:
    """The learner waits for a group, which a process has, or which is in a stream."""
    key, *other_keys = learner.waits_for
    reason = f"{learner.name} waits for group {key}"
    if other_keys:
        reason += f" and {len(other_keys)} more"
    in_environment = job.recipe.environment is not None
    sampler = "environment" if in_environment else "rollout"
    requests = request_stream(Purpose(key.partition(":")[0]), in_environment).short_name
    for service, stream in (("grader", "rollouts"), (sampler, requests), ("rollout", requests)):
        if snapshot.streams[stream].entries > 0 and not snapshot.living(service):
            return _no_worker(snapshot, service, reason)
    holders = [process for process in snapshot.processes if key in process.status.holds]
    if holders:
        return _claimed(snapshot, min(holders, key=lambda p: p.silent_s), key, reason)
    sampled = snapshot.streams["rollouts"]
    has_no_request = not snapshot.streams[requests].waiting
    if sampled.oldest_key == key or (sampled.waiting and has_no_request):
        return _queued(snapshot, "grader", key, f"{reason}, which is to be graded")
    if snapshot.streams[requests].entries == 0 and snapshot.streams["graded"].entries > 0:
        reason = f"{reason}, which it has yet to read"
        return Blocker(Edge.LEARNER, reason, snapshot.work_timeout_s())
    verb = "played" if in_environment else "sampled"
    return _queued(snapshot, sampler, key, f"{reason}, which is to be {verb}")


def _claimed(snapshot: Snapshot, holder: Process, key: str, reason: str) -> Blocker:
    edge = holder.edge
    claimed_s = holder.status.holds[key] + holder.silent_s
    reason = f"{reason}; {holder.status.name} has it, {format_duration(claimed_s)}"
    if not holder.is_alive:
        return Blocker(edge, f"{reason}, and {holder.silence}", snapshot.certain_stall_s)
    timeout_s = snapshot.group_timeout_s(edge, [holder], key)
    still_s = min(holder.still_s, claimed_s) if edge is Edge.SAMPLING else 0.0
    reason = f"{reason}; {describe_process(holder.status, 'it')}"
    return _follow_episodes(snapshot, key, Blocker(edge, reason, timeout_s, still_s))


def _queued(snapshot: Snapshot, service: str, key: str, reason: str) -> Blocker:
    team = snapshot.living(service)
    if not team:
        return _no_worker(snapshot, service, reason)
    edge = team[0].edge
    is_ready = team[0].status.ready
    activities = "; ".join([reason, *(describe_process(process.status) for process in team[:3])])
    if not is_ready and any(process.edge is Edge.STARTING for process in team):
        starting = Blocker(Edge.STARTING, activities, START_TIMEOUT_S)
        return _cannot_start(snapshot, team, reason) or starting
    statuses = [process.status for process in team]
    if any(s.doing.phase is Phase.LOADING and not s.ready for s in statuses):
        return Blocker(edge, activities, START_TIMEOUT_S)
    timeout_s = snapshot.certain_stall_s
    if is_ready:
        timeout_s = snapshot.group_timeout_s(edge, team, key)
    return _follow_episodes(snapshot, key, Blocker(edge, activities, timeout_s))


def _follow_episodes(snapshot: Snapshot, key: str, blocker: Blocker) -> Blocker:
    """If most episodes wait for the model, or no rollout can answer, blame the rollouts."""
    if blocker.edge is not Edge.ENVIRONMENT:
        return blocker
    rollouts = snapshot.living("rollout")
    num_calls = sum(process.status.at_once for process in rollouts)
    num_episodes = sum(process.status.at_once for process in snapshot.living("environment"))
    can_answer = any(process.edge is Edge.SAMPLING for process in rollouts)
    if num_episodes and (2 * num_calls >= num_episodes or not can_answer):
        return _queued(snapshot, "rollout", key, blocker.reason)
    activities = [describe_process(process.status) for process in rollouts[:3]]
    return replace(blocker, reason="; ".join([blocker.reason, *activities]))


def _no_worker(snapshot: Snapshot, service: str, reason: str) -> Blocker:
    edge = Edge(f"no_{service}")
    noun = _NOUNS.get(service, service)
    team = snapshot.find_processes(service)
    if blocker := _cannot_start(snapshot, team, reason):
        return blocker
    if not team:
        reason = f"{reason}; no {noun} is running{_REMEDIES.get(service, '')}"
        return Blocker(edge, reason, snapshot.certain_stall_s)
    last = min(team, key=lambda process: process.silent_s)
    reason = f"{reason}; {last.status.name}"
    if last.status.doing.phase is Phase.STARTING:
        reason = f"{reason} restarts, {format_duration(last.silent_s)}"
        return Blocker(edge, reason, RESTART_GRACE_S, last.silent_s)
    reason = f"{reason} {last.silence}; no {noun} is alive"
    return Blocker(edge, reason, snapshot.certain_stall_s, last.silent_s)


def _cannot_start(snapshot: Snapshot, team: Sequence[Process], reason: str) -> Blocker | None:
    for status in (process.status for process in team):
        if status.failure is not None or status.starts >= MAX_FAILED_STARTS:
            error = status.failure.words if status.failure else "it ended without an error"
            reason = f"{reason}; {status.name} does not start: {error}; attempt {status.starts}"
            return Blocker(Edge.CANNOT_START, reason, snapshot.certain_stall_s)
    return None


@dataclass(frozen=True)
class Progress:
    """Whether a job moves, and why not; ``edge`` is None unless it is a stall."""

    is_moving: bool
    still_s: float
    reason: str | None
    edge: Edge | None = None


def active_progress(snapshot: Snapshot, still_s: float) -> Progress:
    """Return the progress of the snapshot's job, which has not moved for ``still_s``."""
    job = snapshot.job
    assert job is not None
    if job.state is JobState.PAUSED:
        return Progress(False, still_s, _pause_reason(job))
    blocker = find_blocker(snapshot)
    still_s = max(still_s, blocker.still_s)
    is_stalled = still_s >= blocker.timeout_s
    return Progress(not is_stalled, still_s, blocker.reason, blocker.edge if is_stalled else None)


def waiting_progress(job: JobRecord, active: JobRecord | None, progress: Progress) -> Progress:
    """Return the progress of a job that waits for the active one, which has ``progress``."""
    if job.state is JobState.PAUSED and job.requested is Requested.PAUSE:
        return Progress(False, 0.0, _pause_reason(job))
    if active is None:
        return Progress(True, 0.0, "it is about to start")
    steps = active.recipe.training.steps
    num_steps = "" if active.recipe.client or not steps else f"/{steps}"
    position = f"{active.id}, which is {active.state} at step {active.step}{num_steps}"
    if job.state is JobState.PAUSED:
        return Progress(False, 0.0, f"{_pause_reason(job)}; it is retried after job {position}")
    reason = f"it waits for job {position}"
    if active.state is JobState.PAUSED or progress.edge is not None:
        reason = f"{reason}: {progress.reason}"
    return Progress(False, progress.still_s, reason, progress.edge)


def _pause_reason(job: JobRecord) -> str:
    if job.requested is not Requested.PAUSE:
        return f"it resumes by itself when this is repaired: {job.error}"
    return f"{job.error or 'a user has paused it'}; `weir resume` resumes it"
