"""What a job learned, and what it says if that is nothing: the learner, but for its ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from protocol.messages import JobState, Requested

from services.learner.training.samples import Measured, Sample
from tests.contract.attempts import Learner, answering
from tests.contract.fake_team import FakeTeam
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
CRITIC = {"algorithm": {"advantage": "gae"}, "critic": {"pretrain_steps": 2}}


class Measuring(FakeTeam):
    """Returns these metrics of its steps, one after the other, then none."""

    def __init__(self, *steps: dict[str, float]) -> None:
        super().__init__()
        self._steps: Iterator[dict[str, float]] = iter(steps)

    async def train(self, samples: Sequence[Sample]) -> Measured:
        await super().train(samples)
        return Measured(next(self._steps, {}))

    async def pretrain(self, samples: Sequence[Sample]) -> Measured:
        await super().pretrain(samples)
        return Measured(next(self._steps, {}))


async def test_a_job_pauses_when_its_groups_fail_and_says_why(
    learner: Learner, server: Server
) -> None:
    await learner.submit()
    async with answering(server.url, "train:0", "train:1"):
        await learner.attempt()
    record = await learner.record()
    assert (record.state, record.requested) == (JobState.PAUSED, Requested.PAUSE)
    (warning,) = await learner.warnings()
    assert record.error == warning
    for part in ("100%", "step 0", "failures 2", "training.max_failed", "CUDA error"):
        assert part in warning


async def test_who_resumes_a_job_accepts_what_failed_and_is_asked_again_for_more(
    learner: Learner, server: Server
) -> None:
    await learner.submit(steps=4)
    failing = ["train:0", "train:1", "train:2", "train:4", "train:5"]
    async with answering(server.url, *failing):
        await learner.paused()
        await learner.paused()
        await learner.attempt()
    record = await learner.record()
    assert record.state is JobState.SUCCEEDED, record.error
    assert record.result["groups"] == {
        **{"asked": 8, "trained": 3, "under_way": 0},
        "dropped": {"failures": 5},
    }
    told = [warning.split(" of the groups of ")[1] for warning in await learner.warnings()]
    assert [text[:6] for text in told] == ["step 0", "step 2"]


async def test_an_evaluation_counts_what_failed_and_what_was_accepted_stays_accepted(
    learner: Learner, server: Server
) -> None:
    await learner.submit(tables={"evaluation": {"samples": 2}}, steps=2)
    async with answering(server.url, "eval:0", "eval:1", "eval:3", "eval:5"):
        await learner.paused()
        await learner.attempt()
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2), record.error
    (warning,) = await learner.warnings()
    assert "60%" in warning
    results: Any = record.result["evaluations"]
    told = [[result[name] for name in ("asked", "failed", "tasks")] for result in results]
    assert told == [[5, 3, 2], [5, 1, 4]]
    assert record.result["evaluated"] == 2


TOO_LONG = "unworkable: task 'a': its prompt has 900 tokens"


@pytest.mark.parametrize(
    ("tables", "failing", "moment"),
    [
        ({}, ("train:0", "train:1"), "the 2 groups of step 0"),
        (
            {"evaluation": {"samples": 2}},
            [f"eval:{number}" for number in range(5)],
            "the 5 groups of the evaluation at step 0",
        ),
        (CRITIC, ("pretrain:0", "pretrain:1"), "the 2 groups of pretrain step 0"),
    ],
)
async def test_a_job_that_no_worker_can_work_on_fails_at_once_with_their_words(
    learner: Learner,
    server: Server,
    tables: dict[str, Any],
    failing: Sequence[str],
    moment: str,
) -> None:
    await learner.submit(tables=tables, max_failed=1.0)
    async with answering(server.url, *failing, why=TOO_LONG):
        await learner.attempt()
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.FAILED, 1)
    assert moment in str(record.error)
    assert "task 'a': its prompt has 900 tokens" in str(record.error)


async def test_a_job_that_has_learned_something_pauses_for_what_nobody_can_work_on(
    learner: Learner, server: Server
) -> None:
    await learner.submit(steps=4)
    async with answering(server.url, "train:2", "train:3", why=TOO_LONG):
        await learner.attempt()
    record = await learner.record()
    assert (record.state, record.step) == (JobState.PAUSED, 1)


async def test_a_job_without_a_single_group_to_train_on_fails_and_says_why(
    learner: Learner, server: Server
) -> None:
    await learner.submit(steps=2, max_failed=1.0)
    async with answering(server.url, *(f"train:{number}" for number in range(4))):
        await learner.attempt()
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.FAILED, 1)
    assert "(failures 4)" in str(record.error)


async def test_a_step_with_a_number_that_is_not_finite_is_told_and_the_job_goes_on(
    learner: Learner, server: Server
) -> None:
    steps = {"grad_norm": 1.0}, {"loss": math.nan, "grad_norm": math.inf, "updates": 0.0}
    learner.make_team = lambda: Measuring(*steps)
    await learner.submit(steps=3)
    async with answering(server.url):
        await learner.attempt()
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 1), record.error
    told = [event.data.get("grad_norm", "none") for event in await learner.events(kind="step:")]
    assert told == [1.0, None, "none"]
    (warning,) = await learner.warnings()
    assert warning.startswith("step 2: not finite: loss, grad_norm;")


@pytest.mark.parametrize(
    ("tables", "name", "moment"),
    [({}, "grad_norm", "step 1:"), (CRITIC, "value_loss", "pretrain step 1:")],
)
async def test_a_job_may_pause_for_a_number_that_is_not_finite(
    learner: Learner, server: Server, tables: dict[str, Any], name: str, moment: str
) -> None:
    learner.make_team = lambda: Measuring({name: math.nan})
    await learner.submit(tables=tables, steps=3, on_nonfinite="pause")
    async with answering(server.url):
        await learner.paused()
        learner.make_team = FakeTeam
        await learner.attempt()
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2)
    (warning,) = await learner.warnings()
    assert warning.startswith(f"{moment} not finite: {name};")
