"""Evaluations and checkpoints beside the steps: the learner, but for its ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from protocol.exchange import connect
from protocol.messages import JobState, PolicyVersion
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, GRADED

from services.learner.training.samples import Measured, Sample
from tests.builders import a_request, as_dict
from tests.contract.attempts import Learner, an_answer, answering, until
from tests.contract.fake_team import FakeTeam
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
EVALUATION = {"evaluation": {"samples": 20, "every": 20}}  # of five tasks


class Observed(FakeTeam):
    """Notes what it scores, writes only when it may, and notes whether it might at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.scored: list[tuple[int, bool]] = []
        self.might_write: list[bool] = []
        self.may_write = asyncio.Event()
        self.error: OSError | None = None

    async def train(self, samples: Sequence[Sample]) -> Measured:
        self.might_write.append(self.may_write.is_set())
        return await super().train(samples)

    async def score(
        self, samples: Sequence[Sample], temperature: float, *, use_snapshot: bool = False
    ) -> Measured:
        self.scored.append((len(samples), use_snapshot))
        return await super().score(samples, temperature, use_snapshot=use_snapshot)

    async def written(self, folder: Path) -> None:
        await self.may_write.wait()
        if self.error is not None:
            raise self.error
        await super().written(folder)


@pytest.fixture
def team(learner: Learner) -> Observed:
    team = Observed()
    learner.make_team = lambda: team
    return team


async def newest(learner: Learner) -> PolicyVersion:
    policy = await learner.exchange.newest_policy("job")
    assert policy is not None
    return policy


async def test_steps_go_on_while_an_evaluation_is_answered(
    learner: Learner, server: Server, team: Observed
) -> None:
    team.may_write.set()
    evaluates = asyncio.Event()
    await learner.submit(tables=EVALUATION, steps=7)
    async with answering(server.url, evaluates=evaluates), learner.attempting() as attempt:
        await until(learner.has_made(6))
        assert not await learner.events(kind="evaluation:")
        policy = await newest(learner)
        assert policy.evaluated is not None
        assert (policy.number >= 5, policy.evaluated.number) == (True, 0)
        assert (learner.data_dir / "weights" / policy.evaluated.folder).is_dir()
        evaluates.set()
        await attempt
    record = await learner.record()
    assert record.state is JobState.SUCCEEDED, record.error
    told = await learner.events(kind="evaluation:")
    assert [as_dict(event)["evaluation"]["step"] for event in told] == [0, 7]
    assert record.result["evaluation_groups"] == {
        **{"asked": 10, "trained": 10, "under_way": 0},
        "dropped": {},
    }
    # Of 100 responses each; the policy was still the last one when its own came.
    assert [each for each in team.scored if each[0] == 64] == [(64, True), (64, False)]


async def test_who_is_killed_goes_on_with_an_evaluation_and_its_checkpoint_keeps_what_it_copies(
    learner: Learner, server: Server
) -> None:
    evaluates, answered = asyncio.Event(), asyncio.Event()

    class Waiting(Observed):
        """Makes the step after the checkpoint when the evaluation has been answered."""

        left = 4  # from the checkpoint of step 4

        async def train(self, samples: Sequence[Sample]) -> Measured:
            if self.left == 0:
                await answered.wait()
            self.left -= 1
            return await super().train(samples)

    async def all_is_taken_in() -> bool:
        asked = await learner.exchange.backlog(EVAL_REQUESTS, "job")
        graded = await learner.exchange.backlog(GRADED, "job")
        return asked.entries == graded.entries == 0

    team = Waiting()
    await learner.submit(tables=EVALUATION, steps=12, checkpoint_every=4)
    async with answering(server.url, evaluates=evaluates):
        await learner.killed_at(5)
        learner.make_team = lambda: team
        async with learner.attempting() as attempt:
            await until(learner.has_made(8))
            policy = await newest(learner)
            assert policy.evaluated is not None
            assert (policy.evaluated.attempt, policy.evaluated.number) == (2, 0)
            first = learner.data_dir / "weights" / policy.evaluated.folder
            assert (first / "model.safetensors").read_text() == ""  # as it was before any step
            evaluates.set()
            await until(all_is_taken_in)
            answered.set()
            await until(learner.has_made(11))
            assert await learner.events(kind="evaluation:")
            assert not (learner.checkpoints[0].parent / "step-000008").exists()
            team.may_write.set()
            await attempt
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2), record.error


async def test_what_is_asked_beyond_the_end_of_an_evaluation_is_taken_from_who_holds_it(
    learner: Learner, server: Server
) -> None:
    async def is_asked() -> bool:
        return (await learner.exchange.backlog(EVAL_REQUESTS, "job")).entries == 5

    async def is_told() -> bool:
        return bool(await learner.events(kind="evaluation:"))

    await learner.submit(tables=EVALUATION, steps=40)
    async with connect(server.url, me="rollout-9.1") as rollout, learner.attempting():
        await until(is_asked)
        await rollout.ask(a_request(number=9, purpose=Purpose.EVAL, version=0))
        *answered, left = await rollout.claim([EVAL_REQUESTS], "job", count=6, wait_s=1)
        for delivery in answered:
            await rollout.hand_off(delivery, GRADED, an_answer(delivery.message(), 0))
        async with answering(server.url):
            await until(is_told)
            pulse = await rollout.heartbeat("rollout", [EVAL_REQUESTS], "job", leases=[left])
    assert pulse.lost == {left.place}


async def test_a_new_attempt_takes_back_what_an_earlier_one_has_left_of_an_evaluation_that_is_over(
    learner: Learner, server: Server
) -> None:
    await learner.submit(tables=EVALUATION, steps=12, checkpoint_every=4)
    async with answering(server.url):
        await learner.killed_at(5)
    assert await learner.events(kind="evaluation:")
    await learner.exchange.ask(a_request(number=1, purpose=Purpose.EVAL, version=0))
    async with answering(server.url, evaluates=asyncio.Event()), learner.attempting():
        await until(learner.has_made(8))
        assert (await learner.exchange.backlog(EVAL_REQUESTS, "job")).entries == 0


async def test_the_next_evaluation_begins_when_the_last_one_has_ended(
    learner: Learner, server: Server, team: Observed
) -> None:
    evaluates = team.may_write  # both are set at once
    await learner.submit(tables={"evaluation": {"samples": 2, "every": 2}}, steps=4)
    async with answering(server.url, evaluates=evaluates), learner.attempting() as attempt:
        await until(learner.has_made(2))
        await asyncio.sleep(0.1)
        assert (await newest(learner)).evaluated is not None
        evaluates.set()
        await attempt
    assert team.might_write == [False, False, True, True]
    told = await learner.events(kind="evaluation:")
    assert [as_dict(event)["evaluation"]["step"] for event in told] == [0, 2, 4]


async def test_held_out_files_have_names_samples_and_intervals_of_their_own(
    learner: Learner, server: Server
) -> None:
    others = {"easy": {"held_out": "train", "samples": 1, "tasks": 2, "every": 2}}
    await learner.submit(tables={"evaluation": {"samples": 2, "others": others}}, steps=3)
    async with answering(server.url):
        await learner.attempt()
    told = [event.id for event in await learner.events(kind="evaluation:")]
    names = ("0", "0:easy", "2:easy", "3", "3:easy")
    assert sorted(told) == [f"evaluation:{name}" for name in names]
    (easy,) = await learner.events(kind="evaluation:2:easy")
    result = as_dict(easy)["other_evaluation"]
    assert isinstance(result, dict)
    assert [result[name] for name in ("name", "step", "asked", "samples")] == ["easy", 2, 2, 2]


async def test_steps_go_on_while_a_checkpoint_is_written_and_the_next_one_waits_for_it(
    learner: Learner, server: Server, team: Observed
) -> None:
    await learner.submit(steps=6)
    async with answering(server.url), learner.attempting() as attempt:
        await until(learner.has_made(4))
        assert not learner.checkpoints
        await asyncio.sleep(0.1)
        team.may_write.set()
        await attempt
    assert team.might_write == [False] * 4 + [True] * 2
    assert [folder.name for folder in learner.checkpoints] == ["step-000004", "step-000006"]
    assert (await learner.record()).state is JobState.SUCCEEDED


async def test_a_stop_waits_for_the_checkpoint_that_is_being_written(
    learner: Learner, server: Server, team: Observed
) -> None:
    await learner.submit(steps=6)
    async with answering(server.url), learner.attempting() as attempt:
        await until(learner.has_made(3))
        might_write = list[bool]()
        attempt.add_done_callback(lambda _: might_write.append(team.may_write.is_set()))
        learner.services[-1].stop()
        await asyncio.sleep(0.1)
        team.may_write.set()
        await attempt
    assert might_write == [True]
    assert "step-000002" in [folder.name for folder in learner.checkpoints]


async def test_a_checkpoint_that_cannot_be_written_holds_the_job_up(
    learner: Learner, server: Server, team: Observed
) -> None:
    await learner.submit(steps=6)
    team.error = OSError(28, "No space left on device")
    async with answering(server.url), learner.attempting() as attempt:
        await until(learner.has_made(3))
        team.may_write.set()
        await attempt
    assert (await learner.record()).state is JobState.PAUSED
    assert "No space left on device" in await learner.warning()
    assert not learner.checkpoints
