"""Why nothing moves: the edge that blocks, in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from protocol.exchange import Backlog
from protocol.messages import Doing, JobRecord, JobState, Phase, Requested, Status
from protocol.recipe import Purpose
from protocol.streams import request_stream

_LONG_START_S = 600.0  # of an engine, of the models of the learner, or of the first weights
_LONG_WORK_S = 300.0  # of a checkpoint, of responses that get tokens, and what else is no step
_RESTART_S = 60.0  # of a process that has ended by itself
_SHORTEST_S = 25.0
_STEPS = 3  # of the job's median time: an edge that takes longer does not move
_FIRST_STEP_S = 600.0
_SILENT_ATTEMPTS = 3
_HOPELESS_STARTS = 3  # that ended without a word


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
    LEARNER = "learner"  # whatever else it does
    MEMORY = "memory"


# Of a process that is ready, and of one that is not, or loads.
_EDGES = {
    "rollout": (Edge.SAMPLING, Edge.LOADING),
    "environment": (Edge.ENVIRONMENT, Edge.ENVIRONMENT),
    "grader": (Edge.GRADING, Edge.JUDGE),
}
_CALLED = {"environment": "environment worker"}
_REMEDIES = {
    "environment": "; start one: WEIR_ENVIRONMENTS=1 after `make install-environment`, or the "
    "profile `environment` of docker-compose.yml"
}


@dataclass(frozen=True)
class Process:
    """What a process said last, and for how long it has shown no life since."""

    status: Status
    silent_s: float = 0.0
    is_alive: bool = True
    still_s: float = 0.0  # since its work has moved, as far as it tells of that


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
        return [process for process in self.of(service) if process.is_alive]

    @property
    def present(self) -> list[Process]:
        """All but the dead whose place a living one has: by its name, or as the learner."""
        taken = {_place(process) for process in self.processes if process.is_alive}
        return [each for each in self.processes if each.is_alive or _place(each) not in taken]

    @property
    def certain_s(self) -> float:
        """The patience where nothing can move: as long as a process is given to restart."""
        return self.dead_after_s * 5 / 3

    def usual_s(self, shortest: float = _SHORTEST_S) -> float:
        """The patience with one that works."""
        return _FIRST_STEP_S if self.step_s is None else max(shortest, _STEPS * self.step_s)

    def patience_s(self, edge: Edge, team: Sequence[Process], key: str) -> float:
        """The patience with living processes that have a group, or are to take it."""
        if edge is Edge.JUDGE or team[0].status.doing is Doing.FAILS:
            return self.certain_s
        held = [key, *(held for process in team for held in process.status.holds)]
        takes_long = {
            Edge.SAMPLING: any(process.still_s < _SHORTEST_S for process in team),
            Edge.ENVIRONMENT: True,
            Edge.GRADING: any(each.startswith(Purpose.EVAL) for each in held),  # with no steps
        }
        return self.usual_s(_LONG_WORK_S if takes_long.get(edge) else _SHORTEST_S)


def _place(process: Process) -> str:
    """What one process at a time can be: one learner works, whatever name its container has."""
    status = process.status
    return status.service if status.service == "learner" else status.name


@dataclass(frozen=True)
class Blocked:
    """What a job waits for. It is a stall if nothing has moved for ``patience_s``."""

    edge: Edge
    because: str
    patience_s: float
    still_s: float = 0.0  # this one, whatever else moves


def mark_of(seen: Snapshot) -> Hashable:
    """What differs from look to look while a job moves."""
    job = seen.job
    if job is None:
        return None
    steps = (job.id, job.state, job.requested, job.step)
    if job.attempts_since_checkpoint >= _SILENT_ATTEMPTS:
        return steps  # a learner that is killed again and again is busy, and does not move
    statuses = [process.status for process in seen.of("learner")[:1]]
    learner = [(status.doing, status.number, status.waits_for) for status in statuses]
    lengths = [(backlog.entries, backlog.claimed) for backlog in seen.streams.values()]
    return (*steps, seen.version, *learner, *lengths)


def what_blocks(seen: Snapshot) -> Blocked:
    """Who waits for whom, from the learner on; the job is running, or is to be taken up."""
    job = seen.job
    assert job is not None
    if job.attempts_since_checkpoint >= _SILENT_ATTEMPTS:
        words = f"{job.attempts_since_checkpoint} attempts in a row have ended without a word"
        return Blocked(Edge.NO_LEARNER, f"{words}; see the learner's log", seen.certain_s)
    learners = seen.living("learner")
    if not learners:
        return _nobody(seen, "learner", "the job waits for a learner")
    for process in seen.processes:
        if process.is_alive and process.status.waits_for_memory:
            words = f"Redis is full: {process.status.name} waits for room in its memory"
            return Blocked(Edge.MEMORY, words, seen.certain_s)
    status = learners[0].status
    if status.waits_for:
        return _of_group(seen, status, status.waits_for[0])
    return _of_learner(seen, status)


def _of_learner(seen: Snapshot, learner: Status) -> Blocked:
    words = _in_words(learner)
    if learner.doing.phase is Phase.STARTING:
        return Blocked(Edge.STARTING, words, _LONG_START_S)
    if learner.doing is Doing.WAITS_FOR_CLIENT:
        return Blocked(Edge.LEARNER, words, math.inf)
    if learner.doing.phase is Phase.WAITING:
        return Blocked(Edge.LEARNER, words, seen.certain_s)
    if learner.doing in {Doing.TRAINS, Doing.PRETRAINS}:
        return Blocked(Edge.TRAINING, words, seen.usual_s())
    return Blocked(Edge.LEARNER, words, seen.usual_s(_LONG_WORK_S))


def _of_group(seen: Snapshot, learner: Status, key: str) -> Blocked:
    """The learner waits for a group: somebody has it, or it lies in a stream."""
    more = len(learner.waits_for) - 1
    words = f"{learner.name} waits for group {key}" + (f" and {more} more" if more else "")
    assert seen.job is not None
    in_environment = seen.job.recipe.environment is not None
    sampler, done = ("environment", "played") if in_environment else ("rollout", "sampled")
    requests = request_stream(Purpose(key.partition(":")[0]), in_environment).short_name
    for service, stream in (("grader", "rollouts"), (sampler, requests), ("rollout", requests)):
        if seen.streams[stream].entries > 0 and not seen.living(service):
            return _nobody(seen, service, words)
    holders = [process for process in seen.processes if key in process.status.holds]
    for holder in sorted(holders, key=lambda process: process.silent_s):
        return _held(seen, holder, key, words)
    at_grader = seen.streams["rollouts"]
    if at_grader.oldest_key == key or (at_grader.waiting and not seen.streams[requests].waiting):
        return _lies(seen, "grader", key, f"{words}, which is to be graded")
    if seen.streams[requests].entries == 0 and seen.streams["graded"].entries > 0:
        return Blocked(Edge.LEARNER, f"{words}; it is to be taken in", seen.usual_s())
    return _lies(seen, sampler, key, f"{words}, which is to be {done}")


def _held(seen: Snapshot, holder: Process, key: str, words: str) -> Blocked:
    status, edge = holder.status, _edge_of(holder.status)
    held_s = status.holds[key] + holder.silent_s
    words = f"{words}; {status.name} has it, {duration(held_s)}"
    if holder.is_alive:
        patience_s = seen.patience_s(edge, [holder], key)
        still_s = min(holder.still_s, held_s) if edge is Edge.SAMPLING else 0.0
        blocked = Blocked(edge, f"{words}; {_in_words(status, 'it')}", patience_s, still_s)
        return _of_episodes(seen, key, blocked)
    return Blocked(edge, f"{words}, and {_silent(holder)}", seen.certain_s)


def _lies(seen: Snapshot, service: str, key: str, words: str) -> Blocked:
    if not (living := seen.living(service)):
        return _nobody(seen, service, words)
    team = [process.status for process in living]
    edge, words_of_team = _edge_of(team[0]), (_in_words(status) for status in team[:3])
    doing = "; ".join((words, *words_of_team))
    if not team[0].ready and Edge.STARTING in map(_edge_of, team):
        return _cannot_start(seen, team, words) or Blocked(Edge.STARTING, doing, _LONG_START_S)
    if any(each.doing.phase is Phase.LOADING and not each.ready for each in team):
        return Blocked(edge, doing, _LONG_START_S)
    patience_s = seen.patience_s(edge, living, key) if team[0].ready else seen.certain_s
    return _of_episodes(seen, key, Blocked(edge, doing, patience_s))


def _of_episodes(seen: Snapshot, key: str, blocked: Blocked) -> Blocked:
    """Where most episodes wait for the model, or no rollout can answer, it is the rollouts."""
    if blocked.edge is not Edge.ENVIRONMENT:
        return blocked
    rollouts = [process.status for process in seen.living("rollout")]
    calls = sum(status.at_once for status in rollouts)
    episodes = sum(process.status.at_once for process in seen.living("environment"))
    answer = any(_edge_of(status) is Edge.SAMPLING for status in rollouts)
    if episodes and (2 * calls >= episodes or not answer):
        return _lies(seen, "rollout", key, blocked.because)
    words = "; ".join((blocked.because, *map(_in_words, rollouts[:3])))
    return replace(blocked, because=words)


def _nobody(seen: Snapshot, service: str, words: str) -> Blocked:
    team, edge = seen.of(service), Edge(f"no_{service}")
    if blocked := _cannot_start(seen, [process.status for process in team], words):
        return blocked
    called, remedy = _CALLED.get(service, service), _REMEDIES.get(service, "")
    if not team:
        return Blocked(edge, f"{words}; no {called} is there{remedy}", seen.certain_s)
    last = min(team, key=lambda process: process.silent_s)
    words = f"{words}; {last.status.name}"
    if last.status.doing.phase is Phase.STARTING:
        words = f"{words} starts anew, {duration(last.silent_s)}"
        return Blocked(edge, words, _RESTART_S, last.silent_s)
    words = f"{words} {_silent(last)}; no {called} lives"
    return Blocked(edge, words, seen.certain_s, last.silent_s)


def _silent(process: Process) -> str:
    return f"has shown no life for {duration(process.silent_s)}"


def _cannot_start(seen: Snapshot, team: Sequence[Status], words: str) -> Blocked | None:
    for status in team:
        if status.failure is not None or status.starts >= _HOPELESS_STARTS:
            why = status.failure.words if status.failure else "it ended without a word"
            words = f"{words}; {status.name} does not start: {why}; attempt {status.starts}"
            return Blocked(Edge.CANNOT_START, words, seen.certain_s)
    return None


def _edge_of(status: Status) -> Edge:
    """What keeps one that groups pass through."""
    if status.doing.phase is Phase.STARTING:
        return Edge.STARTING
    works, waits = _EDGES[status.service]
    can_work = status.ready or status.doing is Doing.FAILS
    return works if can_work and status.doing.phase is not Phase.LOADING else waits


@dataclass(frozen=True)
class Why:
    """Why a job does not continue; ``edge`` is None unless it is a stall."""

    moving: bool
    still_s: float
    because: str | None
    edge: Edge | None = None


def why_first(seen: Snapshot, still_s: float) -> Why:
    """Of the job that the stack works on, which has not moved for so long."""
    job = seen.job
    assert job is not None
    if job.state is JobState.PAUSED:
        return Why(False, still_s, _why_paused(job))
    blocked = what_blocks(seen)
    still_s = max(still_s, blocked.still_s)
    stalls = still_s >= blocked.patience_s
    return Why(not stalls, still_s, blocked.because, blocked.edge if stalls else None)


def why_not_first(job: JobRecord, first: JobRecord | None, why: Why) -> Why:
    """Of a job while the stack works on the ``first`` one, or on none."""
    if job.state is JobState.PAUSED and job.requested is Requested.PAUSE:
        return Why(False, 0.0, _why_paused(job))
    if first is None:
        return Why(True, 0.0, "it is about to be taken up")
    most = "" if first.recipe.client else f"/{first.recipe.training.steps}"
    where = f"{first.id}, which is {first.state} at step {first.step}{most}"
    if job.state is JobState.PAUSED:
        return Why(False, 0.0, f"{_why_paused(job)}; it is tried again after job {where}")
    words = f"it waits for job {where}"
    if first.state is JobState.PAUSED or why.edge is not None:
        words = f"{words}: {why.because}"
    return Why(False, why.still_s, words, why.edge)


def _why_paused(job: JobRecord) -> str:
    if job.requested is not Requested.PAUSE:
        return f"it goes on by itself when this is mended: {job.error}"
    return f"{job.error or 'somebody has paused it'}; `weir resume` has it go on"


def words_of(status: Status) -> str:
    """What a process does, for people: "trains step 17"."""
    if status.doing is Doing.IS_NOT_READY:
        return status.why
    if status.at_once and status.doing in {Doing.PLAYS, Doing.ANSWERS}:
        verb, things = status.doing.split("_")
        count = status.at_once
        return f"{verb} {count} {things if count > 1 else things.removesuffix('s')}"
    number = "" if status.number is None else f" {status.number}"
    fault = f": {status.why}" if status.doing is Doing.FAILS else ""
    return f"{status.doing.replace('_', ' ')}{number}{fault}"


def _in_words(status: Status, subject: str = "") -> str:
    """What a process does, and for how long: "rollout-1 samples groups, 12 s"."""
    subject = f"{subject or status.name}{':' if status.doing is Doing.IS_NOT_READY else ''} "
    return f"{subject}{words_of(status)}, {duration(status.for_s)}"


def duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
