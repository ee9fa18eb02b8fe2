"""Limits: losses pause a job, engines that fail end it, and warnings name their cause."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any, cast

import pytest
from protocol.messages import (
    ErrorKind,
    Failure,
    Graded,
    JobError,
    Requested,
    Score,
    Status,
    Ungradable,
)
from protocol.recipe import Purpose

from services.learner.durable.progress import Progress
from services.learner.job.control import PauseRequested
from services.learner.job.limits import (
    FailedStarts,
    Lost,
    check_lost,
    find_losses,
    unworkable_reason,
)
from services.learner.job.parity import Parity
from services.learner.job.run import Run
from services.learner.training.samples import Measured
from tests.builders import (
    a_failed_group,
    a_graded_group,
    a_recipe,
    a_status,
    an_episodes_group,
)
from tests.unit.learner.groups import BROKEN, graded, grades

UNGRADED = Ungradable(reason="timeout")
STRICT = a_recipe(training={"max_failed": 0.0}, reward={"max_ungradable": 0.0})


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize(
    ("failing", "limit", "pauses"),
    [
        (5, 0.5, 0),
        (6, 0.5, 1),
        (10, 1.0, 0),
    ],
)
def test_more_failed_groups_than_allowed_pause_a_job(
    purpose: Purpose, failing: int, limit: float, pauses: int
) -> None:
    groups = [a_failed_group(number, purpose=purpose) for number in range(failing)]
    groups += [graded(1, number=number, purpose=purpose) for number in range(failing, 10)]
    losses = find_losses(groups, a_recipe(training={"max_failed": limit}), accepted=0)
    shares = [(lost.kind, lost.share, lost.limit) for lost in losses]
    assert shares == [("failed", failing / 10, limit)] * pauses


def test_failures_are_counted_by_reason_and_the_last_one_is_an_example() -> None:
    reasons = (
        ("deaths", "3"),
        ("failures", "RuntimeError: a: b"),
        ("failures", "x" * 10**6),
    )
    groups = [a_failed_group(number, *reason) for number, reason in enumerate(reasons)]
    (lost,) = find_losses(groups, STRICT, 0)
    assert (lost.share, lost.reasons) == (1.0, {"deaths": 1, "failures": 2})
    assert lost.example.startswith("failures: xxx")
    assert len(lost.example) < 1000


@pytest.mark.parametrize(
    ("accepted", "shares"),
    [
        (0, [1]),
        (1, [0.75]),
        (3, [0.25]),
        (4, []),
    ],
)
def test_an_accepted_loss_does_not_count_but_its_group_does(
    accepted: int, shares: list[float]
) -> None:
    failed = [a_failed_group(number) for number in range(4)]
    ungraded = [graded(UNGRADED, UNGRADED, number=number) for number in range(4)]
    for groups in (failed, ungraded):
        assert [lost.share for lost in find_losses(groups, STRICT, accepted)] == shares


@pytest.mark.parametrize("purpose", Purpose)
def test_ungradable_scores_pause_no_evaluation(purpose: Purpose) -> None:
    losses = find_losses(
        [graded(UNGRADED, purpose=purpose)],
        a_recipe(),
        accepted=0,
    )
    assert len(losses) == (purpose is not Purpose.EVAL)


def test_the_share_of_ungradable_scores_counts_only_requested_scores() -> None:
    groups = [graded(1, 1, process=[UNGRADED]), a_failed_group(1)]
    assert find_losses(groups, STRICT, 0)[1] == Lost("ungradable", 1 / 3, 0.0, {"timeout": 1})


@pytest.mark.parametrize(
    ("last", "share", "example"),
    [(1, 0.5, "kaputt 2"), (Ungradable(reason="reward_out_of_range"), 0.75, "the reward 7")],
)
def test_a_pause_for_broken_episodes_has_the_last_error_of_the_environment(
    last: Score | float, share: float, example: str
) -> None:
    group = an_episodes_group(1.0, None, None, 7.0)
    outcomes = grades([1, BROKEN, BROKEN, last])
    (lost,) = find_losses([a_graded_group(group, grades=outcomes)], STRICT, 0)
    assert (lost.share, lost.example) == (share, example)
    assert "repair the environment" in lost.message("step 1")


def test_a_job_is_unworkable_only_if_all_its_groups_are() -> None:
    unworkable = [a_failed_group(number, "unworkable", "too long") for number in (0, 1)]
    assert str(unworkable_reason(unworkable, accepted=0)).startswith("too long;")
    assert unworkable_reason(unworkable, accepted=1) is None
    for group in (graded(1, number=2), a_failed_group(2)):
        assert unworkable_reason([*unworkable, group], accepted=0) is None


def a_rollout(
    starts: int, replica: str = "rollout-1", job: str | None = "job", **fields: Any
) -> Status:
    """Return the status of a rollout whose engine was never ready after this many starts."""
    status = {
        "replica": replica,
        "ready": starts == 0,
        "doing": "starts_its_engine",
        "starts": starts,
        "failure": Failure(words=f"error {starts}", job_id=job) if starts > 1 else None,
    }
    return a_status("rollout", **{**status, **fields})


def test_the_same_error_twice_is_enough() -> None:
    starts = FailedStarts("job")
    failure = Failure(words="no such head", job_id="job")
    errors = [starts.find_error([a_rollout(number, failure=failure)]) for number in (1, 2, 3)]
    assert errors[:2] == [None, None]
    assert "no such head" in str(errors[2])


@pytest.mark.parametrize(
    ("before", "first", "was_paused", "failed_before"),
    [
        pytest.param(0, 1, False, False, id="the engine of the job before was ready"),
        pytest.param(7, 7, False, True, id="it failed for another job"),
        pytest.param(None, 7, True, True, id="an earlier attempt was paused"),
    ],
)
def test_only_starts_for_the_job_itself_count(
    before: int | None, first: int, *, was_paused: bool, failed_before: bool
) -> None:
    starts = FailedStarts("job", was_paused=was_paused)
    if before is not None:
        assert starts.find_error([a_rollout(before, job="another")]) is None
    errors = [starts.find_error([a_rollout(number)]) for number in range(first, first + 4)]
    assert errors[:3] == [None] * 3
    assert f"error {first + 3}" in str(errors[3])
    assert starts.failed_before == failed_before


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(a_rollout(1, "rollout-2"), id="at its first try"),
        pytest.param(a_rollout(0, "rollout-2"), id="serves"),
        pytest.param(a_rollout(9, "rollout-2", job=None), id="fails for no job"),
    ],
)
def test_a_job_waits_while_one_rollout_has_not_failed_for_it(other: Status) -> None:
    starts = FailedStarts("job")
    starts.find_error(
        [
            a_rollout(1),
            a_rollout(min(other.starts, 1), "rollout-2"),
        ]
    )
    assert starts.find_error([a_rollout(9), other]) is None


def test_a_failure_after_an_engine_has_served_the_job_costs_it_nothing() -> None:
    starts = FailedStarts("job")
    starts.find_error([a_rollout(0, holds={"train:0": 1.0})])
    assert starts.find_error([a_rollout(9)]) is None


class Listener:
    """An attempt and its control that record the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.recipe = a_recipe(training={"max_failed": 1.0}, reward={"max_ungradable": 1.0})
        self.number = 1

    async def warn(self, event_id: str, message: str, **values: Any) -> None:
        self.warnings.append(message)

    async def pause(self, reason: str) -> None:
        pass


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reasons", "ungraded", "warning"),
    [
        (["no_answer"] * 3, [], "step 0: none of 3 responses had a readable answer; check the"),
        (["no_answer"], [UNGRADED], "step 0: none of 1 responses"),
        (["no_answer", "wrong"], [], ""),
        ([], [UNGRADED], ""),
    ],
)
async def test_a_job_tells_where_no_response_has_a_readable_answer(
    reasons: list[str], ungraded: list[Score], warning: str
) -> None:
    listener = Listener()
    learning: Any = SimpleNamespace(
        attempt=listener,
        recipe=listener.recipe,
        progress=Progress(),
    )
    outcomes = (Graded(value=0, reason=reason) for reason in reasons)
    await check_lost(learning, [graded(*outcomes, *ungraded)], "step 0")
    assert len(listener.warnings) == bool(warning)
    assert "".join(listener.warnings).startswith(warning)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("temperature", "version", "probes", "named"),
    [
        (1.0, 0, [], []),
        (1.0, 0, [1e-6], ["the probes agree"]),
        (0.7, 0, [], ["temperature 0.7"]),
        (1.0, 3, [], ["KV cache"]),
    ],
)
async def test_sampled_tokens_that_differ_pause_for_causes_that_can_be(
    temperature: float, version: int, probes: list[float], named: list[str]
) -> None:
    listener = Listener()
    parity = Parity(cast(Any, listener), Progress(), cast(Any, listener))
    parity._first_gaps = probes
    measured = Measured({"parity_mean": 1.0, "parity_max": 1.0, "parity_tokens": 1000.0})
    await parity.check_sampled(measured, version, temperature)
    (words,) = listener.warnings
    assert "the engine computes this model differently" in words
    causes = ("the probes agree", "temperature 0.7", "KV cache", "temperature 1 ")
    assert [cause for cause in causes if cause in words] == named


SILENT = JobError(message="silent for 60 s", kind=ErrorKind.SILENT_CLIENT)


@pytest.mark.anyio
@pytest.mark.parametrize(("error", "expected"), [(SILENT, [Requested.RUN]), (None, [])])
async def test_a_pause_that_a_disk_prevents_ends_unless_a_person_asked_for_it(
    error: JobError | None, expected: list[Requested]
) -> None:
    requests = list[Requested]()

    async def request_state(_: str, requested: Requested) -> None:
        requests.append(requested)

    async def save() -> None:
        raise OSError(errno.EROFS, "read-only")

    service: Any = SimpleNamespace(exchange=SimpleNamespace(request_state=request_state))
    learning: Any = SimpleNamespace(versions=SimpleNamespace(save=save))
    nothing: Any = SimpleNamespace(id="job")
    run = Run(service, *[nothing] * 5)
    with pytest.raises(OSError, match="read-only"):
        await run.save_before_pause(learning, PauseRequested(error))
    assert requests == expected
