"""A job learns or says why it did not: the learner without its ranks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from protocol.messages import FailureKind, JobState
from protocol.streams import REQUESTS

from services.learner.training.samples import Measured, Sample
from tests.builders import as_dict
from tests.contract.attempts import Learner, answering, until
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

    pretrain = train


class Explaining(Measuring):
    """Takes its time in the third step of the critic alone."""

    def __init__(self, *steps: dict[str, float]) -> None:
        super().__init__(*steps)
        self.stalls = asyncio.Event()
        self.goes_on = asyncio.Event()
        self._pretrained = 0

    async def pretrain(self, samples: Sequence[Sample]) -> Measured:
        if self._pretrained == 2:
            self.stalls.set()
            await self.goes_on.wait()
        self._pretrained += 1
        return await self.train(samples)


async def test_who_resumes_a_job_accepts_what_failed_and_is_asked_again_for_more(
    learner: Learner, server: Server
) -> None:
    await learner.submit(steps=4)
    failing = ["train:0", "train:1", "train:2", "train:4", "train:5"]
    async with answering(server.url, *failing):
        await learner.paused_and_resumed()
        assert "training.max_failed" in await learner.warning()
        await learner.paused_and_resumed()
        await learner.attempt()
    record = await learner.record()
    assert record.state is JobState.SUCCEEDED, record.error
    assert record.result["groups"] == {
        **{"asked": 8, "trained": 3, "under_way": 0},
        "dropped": {"failures": 5},
    }
    events = [as_dict(event)["share"] for event in await learner.events(kind="failed:")]
    assert events == [1.0, 1.0]


async def test_an_evaluation_counts_what_failed_and_what_was_accepted_stays_accepted(
    learner: Learner, server: Server
) -> None:
    await learner.submit(tables={"evaluation": {"samples": 2}}, steps=2)
    async with answering(server.url, "eval:0", "eval:1", "eval:3", "eval:5"):
        await learner.paused_and_resumed()
        await learner.attempt()
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2), record.error
    assert "60%" in await learner.warning()
    results: Any = record.result["evaluations"]
    events = [[result[name] for name in ("asked", "failed", "tasks")] for result in results]
    assert events == [[5, 3, 2], [5, 1, 4]]
    assert record.result["evaluated"] == 2


async def test_the_first_prompt_that_does_not_fit_is_an_event_and_the_result_has_the_share(
    learner: Learner, server: Server
) -> None:
    await learner.submit(steps=2, max_failed=1.0)
    async with answering(server.url, "train:0", "train:3", why=TOO_LONG):
        await learner.attempt()
    record = await learner.record()
    assert record.state is JobState.SUCCEEDED, record.error
    assert record.result["unworkable"] == 0.5
    (event,) = await learner.events(kind="unworkable")
    assert (event.level, event.message) == (
        "warn",
        f"a group is left out, {TOO_LONG[0]}: {TOO_LONG[1]}",
    )


TOO_LONG = (FailureKind.UNWORKABLE, "task 'a': its prompt has 900 tokens")


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
    for part in (moment, "task 'a': its prompt has 900 tokens"):
        assert part in str(record.error)


async def test_a_job_that_has_learned_something_pauses_for_what_nobody_can_work_on(
    learner: Learner, server: Server
) -> None:
    await learner.submit(steps=4)
    async with answering(server.url, "train:2", "train:3", why=TOO_LONG):
        await learner.attempt()
    record = await learner.record()
    assert (record.state, record.step) == (JobState.PAUSED, 1)


async def test_pretraining_ends_once_the_critic_explains_enough_and_what_was_asked_is_dropped(
    learner: Learner, server: Server
) -> None:
    """Over a kill between its steps, too, for which a checkpoint has what the critic explained."""
    critic = {"pretrain_steps": 9, "pretrain_until": 0.5}
    tables = {"algorithm": {"advantage": "gae"}, "critic": critic}
    team = Explaining(*[{"explained_variance": share} for share in (0.3, 0.9, 0.4)])
    learner.make_team = lambda: team
    await learner.submit(tables=tables, steps=2, max_staleness=1)

    async def has_saved() -> bool:
        return bool(learner.checkpoints)

    async def has_asked_ahead() -> bool:
        with server.client() as client:
            stream: Any = client.xinfo_stream(REQUESTS.key("job"))
        return stream["entries-added"] > 6

    async with answering(server.url), learner.attempting():
        await team.stalls.wait()
        await until(has_saved)
    team.stalls.clear()
    async with answering(server.url), learner.attempting() as attempt:
        await team.stalls.wait()
        await until(has_asked_ahead)
        team.goes_on.set()
        await attempt
    record = await learner.record()
    assert (record.state, record.attempt, record.step) == (JobState.SUCCEEDED, 2, 2), record.error
    events = [event.message for event in await learner.events(kind="pretrain:")]
    assert [message.endswith("enough") for message in events] == [False, False, True]
    account: Any = record.result["pretraining_groups"]
    assert (account["trained"], account["under_way"]) == (6, 0)
    assert account["asked"] == 6 + account["dropped"]["surplus"] > 6
    assert (learner.job_dir / "critic-pretrained").is_dir()


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
    events = [
        as_dict(event).get("grad_norm", "none") for event in await learner.events(kind="step:")
    ]
    assert events == [1.0, None, "none"]
    assert (await learner.warning()).startswith("step 2: not finite: loss, grad_norm;")


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
        await learner.paused_and_resumed()
        learner.make_team = FakeTeam
        await learner.attempt()
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2)
    assert (await learner.warning()).startswith(f"{moment} not finite: {name};")
