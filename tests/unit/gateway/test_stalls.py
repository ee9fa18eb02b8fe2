"""Who waits for whom: every stall has its edge and its words, and what may take long is none."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from protocol.exchange import Backlog
from protocol.messages import JobEvent, Status

from services.gateway.watch.snapshot import Process, Snapshot, median_of_steps
from services.gateway.watch.stalls import (
    Edge,
    Why,
    mark_of,
    what_blocks,
    why_first,
    why_not_first,
)
from services.gateway.watch.watchdog import Watchdog
from tests.builders import a_job_record, an_event

CERTAIN_S = 25.0  # 5/3 of the 15 s after which a process is dead
USUAL_S = 25.0


def a_status(service: str, doing: str, **changes: Any) -> Status:
    values = {
        **{"name": f"{service}-0", "service": service, "seat": f"{service}-0", "beats": 7},
        **{"ready": True, "doing": doing, "phase": "working", "for_s": 95.0, "starts": 0},
    }
    return Status.model_validate(values | changes)


def a_process(service: str, doing: str, *, silent_s: float = 0.0, **changes: Any) -> Process:
    return Process(a_status(service, doing, **changes), silent_s, silent_s < 15.0)


def waiting_learner(*keys: str) -> Process:
    return a_process("learner", "waits", phase="waiting", waits_for=keys, name="learner")


ROLLOUT = a_process("rollout", "samples groups")
IDLE_GRADER = a_process("grader", "is idle", phase="waiting")
LEARNER = waiting_learner("train:412")


def a_snapshot(
    *processes: Process, step_s: float | None = 2.0, job: Any = None, **streams: Backlog
) -> Snapshot:
    names = ("requests", "eval_requests", "rollouts", "graded")
    return Snapshot(
        job=a_job_record(state="running", step=5) if job is None else job,
        processes=processes,
        streams=dict.fromkeys(names, Backlog(0, 0)) | streams,
        version=5,
        step_s=step_s,
    )


def one(key: str, *, claimed: int = 0) -> Backlog:
    return Backlog(1, claimed, 95.0, key)


def asked(*processes: Process, claimed: int = 0) -> Snapshot:
    """The learner waits for a group that a rollout must sample."""
    return a_snapshot(LEARNER, *processes, requests=one("train:412", claimed=claimed))


def sampled(*processes: Process, claimed: int = 0) -> Snapshot:
    """The learner waits for a group that the grader must grade."""
    return a_snapshot(LEARNER, *processes, rollouts=one("train:412", claimed=claimed))


def a_learner(doing: str, **changes: Any) -> Snapshot:
    seen = {name: changes.pop(name) for name in ("step_s", "job") if name in changes}
    return a_snapshot(a_process("learner", doing, name="learner", **changes), ROLLOUT, **seen)


STARTING: dict[str, Any] = {"doing": "starts its engine", "ready": False, "phase": "starting"}
NO_JUDGE: dict[str, Any] = {
    **{"doing": "the judge is not up: HTTP 503", "ready": False, "phase": "waiting"},
    "for_s": 50.0,
}
HELD = {"train:412": 95.0}
LOADING = a_process(
    "rollout", "loads version 17", phase="loading", for_s=40.0, name="rollout-1", holds=HELD
)
NOT_STARTED = a_process("rollout", **STARTING, starts=4, error="vLLM did not start: no such layer")
DAMAGED = a_process("rollout", "weights damaged: no such file", ready=False, phase="waiting")
FROZEN = a_process("rollout", "samples groups", silent_s=20.0, holds=HELD)
IDLE = a_process("rollout", "is idle", name="rollout-1", seat="rollout-1")
KILLED = a_process("rollout", **STARTING, starts=3, silent_s=16.0)
UNJUDGED = a_process("grader", **NO_JUDGE, holds=HELD)
FIRST, AGAIN = a_job_record(), a_job_record(state="running", attempts_since_checkpoint=4)
FULL = {"phase": "waiting", "waits_for_memory": True}

STALLS: Mapping[str, tuple[Snapshot, Edge, str, float]] = {
    "a rollout loads weights": (
        asked(LOADING, IDLE_GRADER, claimed=1),
        *(Edge.LOADING, "rollout-1 has it", USUAL_S),
    ),
    "no learner was ever there": (
        a_snapshot(ROLLOUT, IDLE_GRADER, job=FIRST),
        *(Edge.NO_LEARNER, "no learner is there", CERTAIN_S),
    ),
    "a learner that ended by itself starts anew": (
        a_learner("ends", phase="starting", silent_s=20.0),
        *(Edge.NO_LEARNER, "learner starts anew", 60.0),
    ),
    "a learner that is killed again and again": (
        a_snapshot(LEARNER, job=AGAIN),
        *(Edge.NO_LEARNER, "4 attempts", CERTAIN_S),
    ),
    "no rollout": (asked(IDLE_GRADER), Edge.NO_ROLLOUT, "no rollout is there", CERTAIN_S),
    "the only rollout is frozen with the group": (
        asked(IDLE_GRADER, FROZEN, claimed=1),
        *(Edge.NO_ROLLOUT, "no rollout lives", CERTAIN_S),
    ),
    "one of two rollouts is frozen with the group": (
        asked(FROZEN, IDLE, claimed=1),
        *(Edge.SAMPLING, "rollout-0 has it", CERTAIN_S),
    ),
    "an engine starts": (
        asked(a_process("rollout", **STARTING, starts=1)),
        *(Edge.STARTING, "rollout-0 starts", 600.0),
    ),
    "an engine does not start": (
        asked(NOT_STARTED),
        *(Edge.CANNOT_START, "no such layer", CERTAIN_S),
    ),
    "an engine is killed whenever it starts": (
        asked(KILLED),
        *(Edge.CANNOT_START, "rollout-0 does not start", CERTAIN_S),
    ),
    "weights that cannot be loaded": (asked(DAMAGED), Edge.LOADING, "no such file", CERTAIN_S),
    "no grader": (sampled(ROLLOUT), Edge.NO_GRADER, "no grader is there", CERTAIN_S),
    "the judge is down": (
        sampled(ROLLOUT, a_process("grader", **NO_JUDGE)),
        *(Edge.JUDGE, "HTTP 503", CERTAIN_S),
    ),
    "the judge goes down under a group": (
        sampled(UNJUDGED, claimed=1),
        *(Edge.JUDGE, "grader-0 has it", CERTAIN_S),
    ),
    "a collective hangs": (
        a_learner("trains step 17", for_s=340.0, step_s=100.0),
        *(Edge.TRAINING, "trains step 17", 300.0),
    ),
    "the first step compiles": (
        a_learner("trains step 1", for_s=60.0, step_s=None),
        *(Edge.TRAINING, "trains step 1,", 600.0),
    ),
    "a large model is loaded": (
        a_learner("loads the model", phase="starting", job=FIRST),
        *(Edge.STARTING, "loads the model", 600.0),
    ),
    "the learner is frozen": (
        a_learner("trains step 6", silent_s=20.0),
        *(Edge.NO_LEARNER, "no learner lives", CERTAIN_S),
    ),
    "a slow disk takes a checkpoint": (
        a_learner("writes a checkpoint", for_s=900.0),
        *(Edge.LEARNER, "writes a checkpoint", 300.0),
    ),
    "Redis is full": (a_learner("waits", **FULL), Edge.MEMORY, "waits for room", CERTAIN_S),
}


@pytest.mark.parametrize("name", STALLS)
def test_every_stall_has_its_edge_and_is_one_after_as_long_as_it_may_take(name: str) -> None:
    seen, edge, named, patience_s = STALLS[name]
    blocked = what_blocks(seen)
    assert blocked.edge is edge
    assert named in blocked.because
    before, after = why_first(seen, patience_s - 0.1), why_first(seen, patience_s + 0.1)
    assert (before.moving, before.edge) == (True, None)
    assert (after.moving, after.edge, after.because) == (False, edge, blocked.because)


def test_the_words_say_who_waits_for_what_since_when_and_who_has_it() -> None:
    assert what_blocks(STALLS["a rollout loads weights"][0]).because == (
        "learner waits for group train:412; rollout-1 has it, 95 s; it loads version 17, 40 s"
    )


def test_a_paused_job_is_no_stall_and_says_who_must_act() -> None:
    by_user = a_snapshot(job=a_job_record(state="paused", requested="pause"))
    assert why_first(by_user, 9999).edge is None
    assert "weir resume" in str(why_first(by_user, 9999).because)
    by_machine = a_snapshot(job=a_job_record(state="paused", error="no disk"))
    assert "goes on by itself" in str(why_first(by_machine, 9999).because)


def test_a_queued_job_names_the_job_before_it_and_what_keeps_that_one() -> None:
    job = a_job_record("queued")
    running = a_snapshot(LEARNER, a_process("rollout", "is idle"), IDLE_GRADER)
    waits = "it waits for job job, which is running at step 5/2"
    assert why_not_first(job, running.job, why_first(running, 1.0)).because == waits
    stalled = asked(IDLE_GRADER)
    because = why_not_first(job, stalled.job, why_first(stalled, 99.0)).because
    assert str(because).startswith(f"{waits}: learner waits for group")
    assert why_not_first(job, None, why_first(running, 1.0)).moving


def test_a_paused_job_says_who_must_act_while_another_one_runs() -> None:
    running = a_snapshot(LEARNER, a_process("rollout", "is idle"), IDLE_GRADER)

    def told(**values: Any) -> Why:
        return why_not_first(a_job_record("other", **values), running.job, why_first(running, 1.0))

    by_user = told(state="paused", requested="pause", error="80% of the groups failed")
    assert (by_user.moving, by_user.edge) == (False, None)
    assert "80% of the groups failed" in str(by_user.because)
    assert "weir resume" in str(by_user.because)
    assert "tried again after job job" in str(told(state="paused", error="no disk").because)


def test_a_moment_differs_from_the_next_when_work_moves_and_not_when_somebody_is_born() -> None:
    before = a_snapshot(LEARNER, requests=Backlog(4, 2))
    assert mark_of(before) == mark_of(a_snapshot(LEARNER, ROLLOUT, requests=Backlog(4, 2)))
    assert mark_of(before) != mark_of(a_snapshot(LEARNER, requests=Backlog(4, 3)))
    assert mark_of(before) != mark_of(a_snapshot(waiting_learner("train:413")))


def test_a_learner_that_is_killed_again_and_again_does_not_move() -> None:
    job = a_job_record(state="running", attempts_since_checkpoint=3)
    one_life = a_snapshot(LEARNER, job=job, requests=Backlog(4, 2))
    assert mark_of(one_life) == mark_of(a_snapshot(job=job))


def test_the_time_of_a_step_is_the_median_of_the_last_ones() -> None:
    def step(number: int, seconds: float) -> JobEvent:
        return an_event(f"step:{number}", type="metrics", data={"seconds": seconds})

    job, told = a_job_record(), [step(1, 90.0), step(2, 10.0)]
    assert median_of_steps(job, told) is None
    evaluation = an_event("evaluation:2", type="metrics", data={"evaluation": {"seconds": 1.0}})
    assert median_of_steps(job, [*told, evaluation, step(3, 12.0)]) == 12.0


def test_a_job_that_runs_is_estimated_to_finish_when_its_median_step_says() -> None:
    watchdog, running = Watchdog(), a_job_record(state="running", step=1)
    assert watchdog.estimated_finish(running) is None
    watchdog.seen = a_snapshot(job=running, step_s=1e9)  # one step is left
    before = time.time()
    finish = watchdog.estimated_finish(running)
    assert finish is not None
    assert before - 1 <= finish - 1e9 <= time.time() + 1
    assert watchdog.estimated_finish(a_job_record(id="another", state="queued")) is None
    watchdog.seen = a_snapshot(job=running, step_s=None)
    assert watchdog.estimated_finish(running) is None
