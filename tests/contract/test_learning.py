"""What a job learned, and what it says if that is nothing: the learner, but for its ranks."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from protocol.exchange import Exchange
from protocol.messages import JobState, Requested

from services.learner.samples import Sample
from tests.contract.conftest import OpenExchange
from tests.contract.fake_team import FakeTeam
from tests.contract.learner import Job, answered, failing

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
CRITIC = {"algorithm": {"advantage": "gae"}, "critic": {"pretrain_steps": 2}}


class Measuring(FakeTeam):
    """Returns these metrics of its steps, one after the other, then none."""

    def __init__(self, *steps: dict[str, float]) -> None:
        super().__init__()
        self._steps: Iterator[dict[str, float]] = iter(steps)

    async def train(self, samples: Sequence[Sample]) -> dict[str, float]:
        return await super().train(samples) | next(self._steps, {})

    async def pretrain(self, samples: Sequence[Sample]) -> dict[str, float]:
        return await super().pretrain(samples) | next(self._steps, {})


@pytest.fixture
async def job(exchange: Exchange, tmp_path: Path) -> Job:
    return Job(exchange, tmp_path)


@pytest.fixture
async def other(open_exchange: OpenExchange) -> AsyncIterator[Exchange]:
    async with open_exchange("other") as exchange:
        yield exchange


async def test_a_job_pauses_when_its_groups_fail_and_says_why(job: Job, other: Exchange) -> None:
    await job.submit()
    async with answered(other, failing()), job.living():
        record = await job.until_it_is(JobState.PAUSED)
    assert record.requested is Requested.PAUSE
    (warning,) = await job.warnings()
    assert "100% of the groups of step 0 failed (failures 2)" in warning
    assert "training.max_failed = 50%" in warning
    assert "RuntimeError: CUDA error" in warning


async def test_who_resumes_a_job_accepts_what_failed_and_is_asked_again_for_more(
    job: Job, other: Exchange
) -> None:
    await job.submit(training={"steps": 4})
    failures = ["train:0", "train:1", "train:2", "train:4", "train:5"]
    async with answered(other, failing(*failures)), job.living() as life:
        await job.resume()
        await job.resume()
        await life
    record = await job.record()
    assert record.state is JobState.SUCCEEDED, record.error
    assert record.result["groups"] == {
        **{"asked": 8, "trained": 3, "under_way": 0},
        "dropped": {"failures": 5},
    }
    told = [warning.split(" of the groups of ")[1] for warning in await job.warnings()]
    assert [text[:6] for text in told] == ["step 0", "step 2"]


async def test_an_evaluation_counts_what_failed_and_what_was_accepted_stays_accepted(
    job: Job, other: Exchange
) -> None:
    await job.submit(evaluation={"samples": 2})
    async with answered(other, failing("eval:0", "eval:1", "eval:3", "eval:4")):
        async with job.living():
            await job.until_it_is(JobState.PAUSED)
        await other.request_state("job", Requested.RUN)
        record = await job.live()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2), record.error
    (warning,) = await job.warnings()
    assert "75% of the groups of the evaluation at step 0 failed (failures 3)" in warning
    results: Any = record.result["evaluations"]
    told = [[result[name] for name in ("asked", "failed", "tasks")] for result in results]
    assert told == [[4, 3, 1], [4, 1, 3]]
    assert record.result["evaluated"] == 2


async def test_value_pretraining_pauses_too(job: Job, other: Exchange) -> None:
    await job.submit(**CRITIC)
    async with answered(other, failing("pretrain:2", "pretrain:3")), job.living() as life:
        await job.resume()
        await life
    assert (await job.record()).state is JobState.SUCCEEDED
    (warning,) = await job.warnings()
    assert "100% of the groups of pretrain step 1 failed" in warning


async def test_a_job_without_a_single_group_to_train_on_fails_and_says_why(
    job: Job, other: Exchange
) -> None:
    await job.submit(training={"max_failed": 1.0})
    async with answered(other, failing()):
        record = await job.live()
    assert (record.state, record.attempt) == (JobState.FAILED, 1)
    assert record.error == "nothing was learned: none of 4 groups was trained (failures 4)"


async def test_a_job_without_a_single_update_fails_and_says_why(job: Job, other: Exchange) -> None:
    await job.submit()
    none = {"grad_norm": math.inf, "updates": 0.0}
    async with answered(other):
        record = await job.live(Measuring(none, none))
    assert record.state is JobState.FAILED
    assert "no update had a loss and a gradient that were finite" in str(record.error)


async def test_a_step_with_a_number_that_is_not_finite_is_told_and_the_job_goes_on(
    job: Job, other: Exchange
) -> None:
    await job.submit(training={"steps": 3})
    steps = {"grad_norm": 1.0}, {"loss": math.nan, "grad_norm": math.inf, "updates": 0.0}
    async with answered(other):
        record = await job.live(Measuring(*steps))
    assert (record.state, record.step) == (JobState.SUCCEEDED, 3), record.error
    assert [step.get("grad_norm", "none") for step in await job.steps()] == [1.0, None, "none"]
    (warning,) = await job.warnings()
    assert warning.startswith("step 2: not finite: loss, grad_norm;")


async def test_a_job_may_pause_for_a_number_that_is_not_finite(job: Job, other: Exchange) -> None:
    await job.submit(training={"steps": 3, "on_nonfinite": "pause"})
    async with answered(other):
        async with job.living(Measuring({"grad_norm": math.inf})):
            record = await job.until_it_is(JobState.PAUSED)
            assert record.step == 1
        await other.request_state("job", Requested.RUN)
        record = await job.live()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2)
    assert len(await job.warnings()) == 1


async def test_the_critic_alone_may_be_told_of_and_pause_too(job: Job, other: Exchange) -> None:
    await job.submit(**CRITIC, training={"on_nonfinite": "pause"})
    async with answered(other), job.living(Measuring({"value_loss": math.nan})) as life:
        await job.resume()
        await life
    assert (await job.record()).state is JobState.SUCCEEDED
    (warning,) = await job.warnings()
    assert warning.startswith("pretrain step 1: not finite: value_loss;")
