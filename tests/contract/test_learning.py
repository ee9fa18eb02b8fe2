"""A job learns or says why it did not: the learner without its ranks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from protocol.messages import Failure, FailureKind, JobRecord, JobState, Requested, Status
from protocol.streams import REQUESTS
from redis import Redis

from services.learner.training.samples import Measured, Sample
from tests.builders import a_status, as_dict
from tests.contract.attempts import Learner, until
from tests.contract.fake_team import FakeTeam, Stalling

CRITIC = {"algorithm": {"advantage": "gae"}, "critic": {"pretrain_steps": 2}}
EVALUATION = {"evaluation": {"samples": 2}}
TOO_LONG = (FailureKind.UNWORKABLE, "task 'a': its prompt has 900 tokens")


@dataclass
class Measuring(FakeTeam):
    """Returns these metrics of its steps, one after the other, then none."""

    metrics: Iterator[dict[str, float]]

    async def train(self, samples: Sequence[Sample]) -> Measured:
        await super().train(samples)
        return Measured(next(self.metrics, {}))

    pretrain = train


@dataclass
class Explaining(Measuring):
    """Takes its time in the third step."""

    stalls: asyncio.Event = field(default_factory=asyncio.Event)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def before_step(self) -> None:
        if self.steps == 2:
            self.stalls.set()
            await self.goes_on.wait()


async def test_who_resumes_a_job_accepts_what_failed_and_is_asked_again_for_more(
    learner: Learner,
) -> None:
    await learner.submit(steps=4)
    failing = ("train:0", "train:1", "train:2", "train:4", "train:5")
    await learner.paused_and_resumed(*failing)
    assert "training.max_failed" in await learner.warning()
    await learner.paused_and_resumed(*failing)
    record = await learner.attempt(*failing)
    assert record.state is JobState.SUCCEEDED, record.error
    assert record.result["groups"] == {
        "asked": 8,
        "trained": 3,
        "under_way": 0,
        "dropped": {"failures": 5},
    }
    assert [as_dict(event)["share"] for event in await learner.events("failed:")] == [1.0, 1.0]


async def test_a_spent_budget_pauses_the_job_until_it_is_raised_and_the_bill_is_whole(
    learner: Learner,
) -> None:
    await learner.submit(steps=20, budget_gpu_hours=0.01 / 3600)
    record = await learner.attempt()
    assert record.state is JobState.PAUSED
    assert record.step < 20
    assert (learner.job_dir / f"checkpoints/step-{record.step:06d}").is_dir()
    assert "weir resume job --budget" in await learner.warning()
    assert str(record.error) == await learner.warning()
    spent = (await learner.exchange.cost("job"))["active_seconds"]["job"]
    await learner.exchange.request_state("job", Requested.RUN, 1.0)
    record = await learner.attempt()
    assert record.state is JobState.SUCCEEDED, record.error
    bill: Any = record.result["bill"]
    assert bill["active_seconds"] > spent >= 0.01
    assert bill["gpu_hours"] == bill["active_seconds"] / 3600
    assert bill["tokens"] == (await learner.exchange.cost("job"))["tokens"]
    counts = {name.removeprefix("train/"): count for name, count in bill["tokens"].items()}
    assert counts["trained"] == counts["judged"] == record.result["trained_tokens"]
    assert counts["sampled"] == sum(counts.values()) - counts["sampled"] - counts["judged"]


async def test_an_evaluation_counts_what_failed_and_what_was_accepted_stays_accepted(
    learner: Learner,
) -> None:
    await learner.submit(tables=EVALUATION, steps=2)
    failing = ("eval:0", "eval:1", "eval:3", "eval:5")
    await learner.paused_and_resumed(*failing)
    record = await learner.attempt(*failing)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2), record.error
    assert "60%" in await learner.warning()
    results: Any = record.result["evaluations"]
    assert [(result["asked"], result["failed"], result["tasks"]) for result in results] == [
        (5, 3, 2),
        (5, 1, 4),
    ]
    assert record.result["evaluated"] == 2


async def test_the_first_prompt_that_does_not_fit_is_an_event_and_the_result_has_the_share(
    learner: Learner,
) -> None:
    learner.failure = TOO_LONG
    await learner.submit(steps=2, max_failed=1.0)
    record = await learner.attempt("train:0", "train:3")
    assert record.state is JobState.SUCCEEDED, record.error
    assert record.result["unworkable"] == 0.5
    (event,) = await learner.events("unworkable")
    assert event.level == "warn"
    assert TOO_LONG[1] in event.message


@pytest.mark.parametrize(
    ("tables", "purpose", "moment"),
    [
        ({}, "train", "the 2 groups of step 0"),
        (EVALUATION, "eval", "the 5 groups of the evaluation at step 0"),
        (CRITIC, "pretrain", "the 2 groups of pretrain step 0"),
    ],
)
async def test_a_job_that_no_worker_can_work_on_fails_at_once_with_their_words(
    learner: Learner, tables: dict[str, Any], purpose: str, moment: str
) -> None:
    learner.failure = TOO_LONG
    await learner.submit(tables=tables, max_failed=1.0)
    record = await learner.attempt(*(f"{purpose}:{number}" for number in range(5)))
    assert (record.state, record.attempt) == (JobState.FAILED, 1)
    assert moment in str(record.error)
    assert TOO_LONG[1] in str(record.error)


async def test_a_job_that_has_learned_something_pauses_for_what_nobody_can_work_on(
    learner: Learner,
) -> None:
    learner.failure = TOO_LONG
    await learner.submit(steps=4)
    record = await learner.attempt("train:2", "train:3")
    assert (record.state, record.step) == (JobState.PAUSED, 1)


async def test_pretraining_ends_once_the_critic_explains_enough_and_what_was_asked_is_dropped(
    learner: Learner, client: Redis
) -> None:
    """Over a kill between its steps, too, for which a checkpoint has what the critic explained."""
    critic = {"pretrain_steps": 9, "pretrain_until": 0.5}
    team = Explaining(
        iter(
            {"explained_variance": share}
            for share in (
                0.3,
                0.9,
                0.4,
            )
        )
    )
    learner.make_team = lambda: team
    await learner.submit(
        tables=CRITIC | {"critic": critic},
        steps=2,
        max_staleness=1,
    )

    def has_asked_ahead() -> bool:
        stream: Any = client.xinfo_stream(REQUESTS.key("job"))
        return stream["entries-added"] > 6

    async with learner.attempting():
        await team.stalls.wait()
        await until(lambda: learner.checkpoints)
    team.stalls.clear()
    async with learner.attempting() as attempt:
        await team.stalls.wait()
        await until(has_asked_ahead)
        team.goes_on.set()
        await attempt
    record = await learner.record()
    assert (record.state, record.attempt, record.step) == (JobState.SUCCEEDED, 2, 2), record.error
    events = await learner.events("pretrain:")
    assert [event.message.endswith("enough") for event in events] == [False, False, True]
    account: Any = record.result["pretraining_groups"]
    assert (account["trained"], account["under_way"]) == (6, 0)
    assert account["asked"] == 6 + account["dropped"]["surplus"] > 6
    assert (learner.job_dir / "critic-pretrained").is_dir()


async def test_a_job_without_a_single_group_to_train_on_fails_and_says_why(
    learner: Learner,
) -> None:
    await learner.submit(steps=2, max_failed=1.0)
    record = await learner.attempt("train:0", "train:1", "train:2", "train:3")
    assert (record.state, record.attempt) == (JobState.FAILED, 1)
    assert "(failures 4)" in str(record.error)


async def test_a_step_with_a_number_that_is_not_finite_is_told_and_the_job_goes_on(
    learner: Learner,
) -> None:
    metrics = (
        {"grad_norm": 1.0},
        {
            "loss": math.nan,
            "grad_norm": math.inf,
            "updates": 0.0,
        },
    )
    learner.make_team = lambda: Measuring(iter(metrics))
    await learner.submit(steps=3)
    record = await learner.attempt()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 1), record.error
    norms = [as_dict(event).get("grad_norm", "none") for event in await learner.events("step:")]
    assert norms == [1.0, None, "none"]
    assert (await learner.warning()).startswith("step 2: not finite: loss, grad_norm;")


@pytest.mark.parametrize(
    ("tables", "name", "moment"),
    [({}, "grad_norm", "step 1:"), (CRITIC, "value_loss", "pretrain step 1:")],
)
async def test_a_job_may_pause_for_a_number_that_is_not_finite(
    learner: Learner, tables: dict[str, Any], name: str, moment: str
) -> None:
    learner.make_team = lambda: Measuring(iter([{name: math.nan}]))
    await learner.submit(tables=tables, steps=3, on_nonfinite="pause")
    await learner.paused_and_resumed()
    learner.make_team = FakeTeam
    record = await learner.attempt()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2)
    assert (await learner.warning()).startswith(f"{moment} not finite: {name};")


# ---------------------------------------- a job for which no rollout can start an engine
# Which starts count is a table of `tests/unit/learner/test_limits.py`.

WORDS = "whatever the engine says"


def a_rollout(starts: int, job: str = "job") -> Status:
    """A rollout in so many lives in a row that were never ready."""
    failure = Failure(words=WORDS, job_id=job) if starts > 1 else None
    return a_status(
        "rollout", "starts_its_engine", ready=starts == 0, starts=starts, failure=failure
    )


async def attempted(learner: Learner, starts: int) -> JobRecord:
    """The record after one more attempt, during which the rollout fails on and on."""

    async def is_announced() -> bool:
        return await learner.exchange.newest_policy("job") != last

    last = await learner.exchange.newest_policy("job")
    learner.answers_training = False
    async with learner.attempting() as attempt:
        await until(is_announced)
        while not attempt.done():
            await learner.exchange.show_status(a_rollout(starts := starts + 1))
            await asyncio.wait({attempt}, timeout=0.05)
    return await learner.record()


async def test_a_job_for_which_no_engine_starts_fails_with_the_words_of_vllm(
    learner: Learner,
) -> None:
    await learner.exchange.show_status(a_rollout(0))
    await learner.submit()
    record = await attempted(learner, starts=0)
    assert record.state is JobState.FAILED
    assert WORDS in str(record.error)
    assert not (await learner.exchange.queue()).first


async def test_a_job_waits_aside_if_the_engines_failed_before_it_came(learner: Learner) -> None:
    await learner.exchange.show_status(a_rollout(5, job="another"))
    await learner.submit()
    for starts in (5, 20):  # in its next attempt, it has failed for this job, too
        record = await attempted(learner, starts)
        assert (record.state, record.requested) == (JobState.PAUSED, Requested.RUN)
        assert WORDS in str(record.error)
        await learner.exchange.show_status(a_rollout(20))


async def test_a_job_that_was_served_in_an_earlier_attempt_waits_for_an_engine(
    learner: Learner,
) -> None:
    learner.make_team = lambda: Stalling(0)
    await learner.submit()
    await learner.killed_at(0)
    await learner.exchange.show_status(a_rollout(1))
    learner.answers_training = False
    async with learner.attempting() as attempt:
        for starts in range(2, 8):
            await learner.exchange.show_status(a_rollout(starts))
            await asyncio.wait({attempt}, timeout=0.05)
        assert not attempt.done()
    assert (await learner.record()).state is JobState.RUNNING
