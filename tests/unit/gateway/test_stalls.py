"""Every stall has its edge and its words; work that may take long is no stall."""

import time
from fnmatch import fnmatch
from typing import Any

import pytest
from protocol.exchange import Backlog
from protocol.messages import Failure
from protocol.streams import WORK_STREAMS

from services.gateway.core.watch.stalls import (
    Process,
    Progress,
    Snapshot,
    active_progress,
    find_blocker,
    progress_mark,
    waiting_progress,
)
from services.gateway.core.watch.watchdog import Watchdog
from tests.builders import a_job_record, a_recipe, a_status
from tests.tables import table


def a_process(
    service: str, doing: str, *, silent_s: float = 0.0, still_s: float = 99.0, **changes: Any
) -> Process:
    return Process(a_status(service, doing, **changes), silent_s, silent_s < 15.0, still_s)


def waiting_learner(*keys: str) -> Process:
    return a_process("learner", "waits", waits_for=keys, name="learner")


ROLLOUT = a_process("rollout", "samples_groups")
IDLE_GRADER = a_process("grader", "is_idle")
LEARNER = waiting_learner("train:412")
RUNNING = a_job_record(state="running", step=5)


def a_snapshot(
    *processes: Process, step_s: float | None = 2.0, job: Any = RUNNING, **streams: Backlog
) -> Snapshot:
    backlogs = {stream.short_name: Backlog(0, 0) for stream in WORK_STREAMS} | streams
    return Snapshot(job, processes, backlogs, version=5, step_s=step_s)


def asked(*processes: Process, claimed: int = 0, stream: str = "requests") -> Snapshot:
    """The learner waits for a group that lies in a stream."""
    streams: Any = {stream: Backlog(1, claimed, 95.0, "train:412")}
    return a_snapshot(LEARNER, *processes, **streams)


def sampled(*processes: Process, claimed: int = 0) -> Snapshot:
    return asked(*processes, claimed=claimed, stream="rollouts")


def played(*processes: Process, claimed: int = 1) -> Snapshot:
    """The learner of a job with an environment waits for a group."""
    job = a_job_record(state="running", recipe=a_recipe(environment={"url": "http://games"}))
    episodes = Backlog(1, claimed, 95.0, "train:412")
    return a_snapshot(LEARNER, IDLE_GRADER, *processes, job=job, episodes=episodes)


def a_learner(doing: str, *, step_s: float | None = 2.0, **changes: Any) -> Snapshot:
    return a_snapshot(a_process("learner", doing, name="learner", **changes), step_s=step_s)


STARTING: dict[str, Any] = {"doing": "starts_its_engine", "ready": False}
NO_JUDGE: dict[str, Any] = {"doing": "is_not_ready", "ready": False, "why": "HTTP 503"}
FAILS: dict[str, Any] = {
    "doing": "fails_at_every_group",
    "ready": False,
    "why": "no fork",
    "for_s": 40.0,
}
DAMAGED: dict[str, Any] = {"doing": "is_not_ready", "ready": False, "why": "no such file"}
HELD = {"train:412": 95.0}
LOADING = a_process("rollout", "loads_version", number=17, for_s=40.0, name="rollout-1", holds=HELD)
NOT_STARTED = a_process("rollout", **STARTING, starts=4, failure=Failure(words="no such layer"))
FROZEN = a_process("rollout", "samples_groups", silent_s=20.0, holds=HELD)
IDLE = a_process("rollout", "is_idle", name="rollout-1", replica="rollout-1")
MOVES = a_process("rollout", "samples_groups", still_s=9.0, holds={"eval:7": 95.0})
BUSY: Any = {"eval_requests": Backlog(7, 2), "requests": Backlog(1, 0, 95.0, "train:412")}
KILLED = a_process("rollout", **STARTING, starts=3, silent_s=16.0)
PLAYS = a_process("environment", "plays_episodes", at_once=16, holds=HELD)
PLAYER = a_process("environment", "is_idle")
NO_DOOR: dict[str, Any] = {**FAILS, "why": "the gateway does not answer"}
SHUT = a_process("environment", **NO_DOOR)
ANSWERS = a_process("rollout", "answers_calls", at_once=8, still_s=9.0, for_s=3.0)
FEW = a_process("rollout", "answers_calls", at_once=1, still_s=9.0, for_s=3.0)
AWAY: Any = None  # the exchange, of which nothing is asked
AGAIN = a_job_record(state="running", attempts_since_checkpoint=4)
WAITING = a_snapshot(LEARNER, requests=Backlog(4, 2))

STALLS = {
    "a rollout loads weights": (
        asked(LOADING, IDLE_GRADER, claimed=1),
        "loading after 25 s: learner waits for group train:412; rollout-1 has it*version 17, 40 s*",
    ),
    "no learner was ever there": (
        a_snapshot(ROLLOUT, IDLE_GRADER),
        "no_learner after 25 s: *no learner is running*",
    ),
    "a learner that ended by itself restarts": (
        a_learner("starts", silent_s=20.0),
        "no_learner after 60 s: *learner restarts*",
    ),
    "a learner that is killed again and again": (
        a_snapshot(LEARNER, job=AGAIN),
        "no_learner after 25 s: *4 attempts*",
    ),
    "no rollout": (asked(IDLE_GRADER), "no_rollout after 25 s: *no rollout is running*"),
    "the only rollout is frozen with the group": (
        asked(IDLE_GRADER, FROZEN, claimed=1),
        "no_rollout after 25 s: *no rollout is alive*",
    ),
    "one of two rollouts is frozen with the group": (
        asked(FROZEN, IDLE, claimed=1),
        "sampling after 25 s: *rollout-0 has it*",
    ),
    "an engine starts": (
        asked(a_process("rollout", **STARTING)),
        "starting after 600 s: *rollout-0 starts*",
    ),
    "an engine does not start": (asked(NOT_STARTED), "cannot_start after 25 s: *no such layer*"),
    "an engine is killed whenever it starts": (
        asked(KILLED),
        "cannot_start after 25 s: *rollout-0 does not start*",
    ),
    "weights that cannot be loaded": (
        asked(a_process("rollout", **DAMAGED)),
        "loading after 25 s: *no such file*",
    ),
    "the first weights of an engine": (
        asked(a_process("rollout", "loads_version", ready=False)),
        "loading after 600 s: *loads*",
    ),
    "the judge is down": (
        sampled(a_process("grader", **NO_JUDGE)),
        "judge after 25 s: *grader-0: HTTP 503*",
    ),
    "the judge goes down under a group": (
        sampled(a_process("grader", **NO_JUDGE, holds=HELD), claimed=1),
        "judge after 25 s: *grader-0 has it*",
    ),
    "a group is graded": (
        sampled(a_process("grader", "grades_groups", holds=HELD)),
        "grading after 25 s: *it grades*",
    ),
    "the only grader fails at every group": (
        sampled(a_process("grader", **FAILS), claimed=1),
        "grading after 25 s: *grader-0 fails at every group: no fork, 40 s*",
    ),
    "a rollout fails at every group": (
        a_snapshot(LEARNER, a_process("rollout", **FAILS, still_s=0.0, holds=HELD), step_s=None),
        "sampling after 25 s: *it fails at every group: no fork, 40 s*",
    ),
    "a group behind those of an evaluation that get no tokens": (
        a_snapshot(LEARNER, ROLLOUT, **BUSY),
        "sampling after 25 s: *train:412*",
    ),
    "a long answer gets tokens": (
        asked(a_process("rollout", "samples_groups", still_s=9.0, holds=HELD)),
        "sampling after 300 s: *it samples*",
    ),
    "a group is graded behind those of an evaluation": (
        sampled(a_process("grader", "grades_groups", holds={"eval:7": 95.0})),
        "grading after 300 s: *grades*",
    ),
    "no environment worker": (
        played(ROLLOUT, claimed=0),
        "no_environment after 25 s: *WEIR_ENVIRONMENTS=1*",
    ),
    "episodes without a rollout": (played(PLAYS), "no_rollout after 25 s: *no rollout is running*"),
    "episodes wait for their environment": (
        played(PLAYS, FEW),
        "environment after 300 s: *it plays 16 episodes, 95 s; rollout-0 answers 1 call, 3 s*",
    ),
    "episodes wait for the model": (
        played(PLAYS, ANSWERS),
        "sampling after 300 s: *it plays 16 episodes, 95 s; rollout-0 answers 8 calls*",
    ),
    "episodes wait for the first weights": (
        played(PLAYS, a_process("rollout", "loads_version", ready=False)),
        "loading after 600 s: *rollout-0 loads version*",
    ),
    "an environment worker takes no group": (
        played(PLAYER, IDLE, claimed=0),
        "environment after 300 s: *environment-0 is idle*",
    ),
    "an environment worker that does not reach the model": (
        played(SHUT, IDLE),
        "environment after 25 s: *the gateway does not answer, 40 s*",
    ),
    "a collective hangs": (
        a_learner("trains_step", number=17, step_s=100.0),
        "training after 300 s: *trains step 17*",
    ),
    "the first step compiles": (
        a_learner("trains_step", number=1, step_s=None),
        "training after 600 s: *trains step 1,*",
    ),
    "the critic alone": (
        a_learner("pretrains_step", number=1),
        "training after 25 s: *pretrains step 1,*",
    ),
    "a large model is loaded": (
        a_learner("loads_the_model"),
        "starting after 600 s: *loads the model*",
    ),
    "the learner is frozen": (
        a_learner("trains_step", silent_s=20.0),
        "no_learner after 25 s: *no learner is alive*",
    ),
    "a slow disk takes a checkpoint": (
        a_learner("writes_a_checkpoint", for_s=900.0),
        "learner after 300 s: *writes a checkpoint*",
    ),
    "Redis is full": (a_learner("waits", waits_for_memory=True), "memory after 25 s: *for room*"),
}


@pytest.mark.parametrize("name", STALLS)
def test_every_stall_has_its_edge_and_its_timeout(name: str) -> None:
    snapshot, expected = STALLS[name]
    blocked = find_blocker(snapshot)
    assert fnmatch(f"{blocked.edge} after {blocked.timeout_s:.0f} s: {blocked.reason}", expected)
    before = active_progress(snapshot, blocked.timeout_s - 0.1)
    assert (before.is_moving, before.edge) == (True, None)
    after = active_progress(snapshot, blocked.timeout_s + 0.1)
    assert (after.is_moving, after.edge, after.reason) == (False, blocked.edge, blocked.reason)


GRADERS_FROZEN = a_process("grader", "grades_groups", silent_s=26.0)
HOLDS = {"train:412": 26.0}
BY_THEMSELVES = {
    "the only grader is frozen": (sampled(ROLLOUT, GRADERS_FROZEN), "no_grader"),
    "the only grader is frozen and its groups are not in its status": (
        a_snapshot(LEARNER, MOVES, GRADERS_FROZEN, **BUSY, rollouts=Backlog(3, 3, 30.0, "train:9")),
        "no_grader",
    ),
    "the learner is frozen": (a_learner("waits", silent_s=26.0), "no_learner"),
    "the engine of one rollout is frozen": (
        asked(a_process("rollout", "samples_groups", still_s=27.0, holds=HOLDS), MOVES),
        "sampling",
    ),
    "an engine that had nothing to do has just got the group": (
        asked(a_process("rollout", "samples_groups", holds={"train:412": 2.0}), MOVES),
        None,
    ),
    "a rollout loads weights": (
        asked(a_process("rollout", "loads_version", holds=HOLDS), MOVES),
        None,
    ),
    "a grader works": (sampled(a_process("grader", "grades_groups", holds=HOLDS)), None),
}


@pytest.mark.parametrize("name", BY_THEMSELVES)
def test_a_process_that_stands_still_is_a_stall_though_others_move(name: str) -> None:
    snapshot, edge = BY_THEMSELVES[name]
    why = active_progress(snapshot, still_s=1.0)
    assert why.edge == edge
    assert why.is_moving == (edge is None)
    assert edge is None or why.still_s > 25.0


def test_a_dead_process_is_listed_unless_a_living_one_has_its_place() -> None:
    dead = [
        a_process("learner", "waits", name="learner-3f2a", replica="learner-3f2a", silent_s=20.0),
        a_process("rollout", "samples_groups", silent_s=20.0),
    ]
    other = a_process("rollout", "is_idle", name="rollout-1", replica="rollout-1")
    living = [LEARNER, a_process("rollout", **STARTING), other]
    assert a_snapshot(*dead, *living).present == living
    assert a_snapshot(*dead, other).present == [*dead, other]


@table("""
    changes                           | words
    {"requested": "pause"}            | weir resume
    {"error": {"message": "no disk"}} | resumes by itself
""")
def test_a_paused_job_is_no_stall_and_says_who_must_act(
    changes: dict[str, Any], words: str
) -> None:
    progress = active_progress(a_snapshot(job=a_job_record(state="paused", **changes)), 9999)
    assert progress.edge is None
    assert words in str(progress.reason)


def test_a_job_that_is_not_first_names_the_job_before_it() -> None:
    running = a_snapshot(LEARNER, IDLE, IDLE_GRADER)
    stalled = asked(IDLE_GRADER)

    def progress(snapshot: Snapshot, still_s: float = 1.0, **values: Any) -> Progress:
        return waiting_progress(
            a_job_record("other", **values), snapshot.job, active_progress(snapshot, still_s)
        )

    waits = "it waits for job job, which is running at step 5/2"
    assert progress(running).reason == waits
    assert str(progress(stalled, 99.0).reason).startswith(f"{waits}: learner waits for group")
    assert waiting_progress(a_job_record(), None, active_progress(running, 1.0)).is_moving
    by_user = progress(running, state="paused", requested="pause", error={"message": "80% failed"})
    assert not by_user.is_moving
    assert by_user.edge is None
    assert "80% failed; `weir resume`" in str(by_user.reason)
    by_machine = progress(running, state="paused", error={"message": "no disk"})
    assert "retried after job job" in str(by_machine.reason)


@pytest.mark.parametrize(
    ("before", "after", "has_moved"),
    [
        (WAITING, a_snapshot(LEARNER, ROLLOUT, requests=Backlog(4, 2)), False),
        (WAITING, a_snapshot(LEARNER, requests=Backlog(4, 3)), True),
        (WAITING, a_snapshot(waiting_learner("train:413"), requests=Backlog(4, 2)), True),
        (a_learner("trains_step", number=1), a_learner("trains_step", number=2), True),
        # It is killed again and again.
        (a_snapshot(LEARNER, job=AGAIN, requests=Backlog(4, 2)), a_snapshot(job=AGAIN), False),
    ],
)
def test_work_that_moves_is_progress_and_a_new_process_is_none(
    before: Snapshot, after: Snapshot, has_moved: bool
) -> None:
    assert (progress_mark(before) != progress_mark(after)) is has_moved


def test_a_job_that_runs_is_estimated_to_finish_when_its_median_step_says() -> None:
    watchdog = Watchdog(AWAY, 15.0)
    running = a_job_record(state="running", step=1)
    for step_s in (None, 1e9):
        assert watchdog.estimate_finish(running) is None
        watchdog.snapshot = a_snapshot(job=running, step_s=step_s)
    # One step is left.
    assert watchdog.estimate_finish(running) == pytest.approx(time.time() + 1e9, abs=60)
    assert watchdog.estimate_finish(a_job_record(id="another", state="queued")) is None
