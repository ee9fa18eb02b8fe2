"""Evaluations and checkpoints beside the steps: the learner, but for its ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from protocol.exchange import connect
from protocol.messages import JobState, PolicyVersion
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, GRADED

from services.learner.training.samples import Measured, Sample
from tests.builders import a_request, as_dict
from tests.contract.attempts import Learner, an_answer, until
from tests.contract.fake_team import FakeTeam
from tests.contract.valkey_server import Server

EVALUATION = {"evaluation": {"samples": 20, "every": 20}}  # of five tasks


@dataclass
class Observed(FakeTeam):
    """Notes what it scores, writes only when it may, and notes whether it might at each step."""

    scored: list[tuple[int, bool]] = field(default_factory=list)
    might_write: list[bool] = field(default_factory=list)
    may_write: asyncio.Event = field(default_factory=asyncio.Event)
    error: OSError | None = None

    async def before_step(self) -> None:
        self.might_write.append(self.may_write.is_set())

    async def score(
        self, samples: Sequence[Sample], temperature: float, *, use_snapshot: bool = False
    ) -> Measured:
        self.scored.append((len(samples), use_snapshot))
        return Measured()

    async def written(self, folder: Path) -> None:
        await self.may_write.wait()
        if self.error is not None:
            raise self.error
        await super().written(folder)


@dataclass
class Waiting(Observed):
    """Makes the fifth step when it may."""

    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def before_step(self) -> None:
        if self.steps == 4:
            await self.goes_on.wait()


@pytest.fixture
def team(learner: Learner) -> Observed:
    team = Observed()
    learner.make_team = lambda: team
    return team


async def evaluated(learner: Learner) -> PolicyVersion:
    """The version that an evaluation is asked of."""
    policy = await learner.exchange.newest_policy("job")
    assert policy is not None
    assert policy.evaluated is not None
    return policy.evaluated


async def evaluated_steps(learner: Learner) -> list[int]:
    events: list[Any] = [as_dict(event) for event in await learner.events("evaluation:")]
    return [event["evaluation"]["step"] for event in events]


async def test_steps_go_on_while_an_evaluation_is_answered(
    learner: Learner, team: Observed
) -> None:
    team.may_write.set()
    learner.answers_evaluations = False
    await learner.submit(tables=EVALUATION, steps=7)
    async with learner.attempting() as attempt:
        await learner.reach(6)
        assert not await learner.events("evaluation:")
        policy = await evaluated(learner)
        assert policy.number == 0
        assert (learner.data_dir / "weights" / policy.folder).is_dir()
        learner.answers_evaluations = True
        await attempt
    record = await learner.record()
    assert record.state is JobState.SUCCEEDED, record.error
    assert await evaluated_steps(learner) == [0, 7]
    assert record.result["evaluation_groups"] == {
        "asked": 10,
        "trained": 10,
        "under_way": 0,
        "dropped": {},
    }
    # Of 100 responses each; the policy was still the last one when its own came.
    assert [score for score in team.scored if score[0] == 64] == [(64, True), (64, False)]


async def test_who_is_killed_goes_on_with_an_evaluation_and_its_checkpoint_keeps_what_it_copies(
    learner: Learner,
) -> None:
    async def all_is_taken_in() -> bool:
        requests = await learner.exchange.backlog(EVAL_REQUESTS, "job")
        graded = await learner.exchange.backlog(GRADED, "job")
        return requests.entries == graded.entries == 0

    learner.answers_evaluations = False
    await learner.submit(tables=EVALUATION, steps=12, checkpoint_every=4)
    await learner.killed_at(5)
    team = Waiting()  # from the checkpoint of step 4
    learner.make_team = lambda: team
    async with learner.attempting() as attempt:
        await learner.reach(8)
        policy = await evaluated(learner)
        assert (policy.attempt, policy.number) == (2, 0)
        weights = learner.data_dir / "weights" / policy.folder / "model.safetensors"
        assert weights.read_text() == ""  # as it was before any step
        learner.answers_evaluations = True
        await until(all_is_taken_in)
        team.goes_on.set()
        await learner.reach(11)
        assert await learner.events("evaluation:")
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

    learner.answers_training = learner.answers_evaluations = False
    await learner.submit(tables=EVALUATION, steps=40)
    async with connect(server.url, me="rollout-9.1") as rollout, learner.attempting():
        await until(is_asked)
        await rollout.ask(a_request(number=9, purpose=Purpose.EVAL, version=0))
        *answered, surplus = await rollout.claim(
            [EVAL_REQUESTS],
            "job",
            count=6,
            wait_s=1,
        )
        for delivery in answered:
            await rollout.hand_off(delivery, GRADED, an_answer(delivery.message(), 0))
        learner.answers_training = learner.answers_evaluations = True
        await until(lambda: learner.events("evaluation:"))
        pulse = await rollout.heartbeat("rollout", [EVAL_REQUESTS], "job", leases=[surplus])
    assert pulse.lost == {surplus.place}


async def test_a_new_attempt_takes_back_what_an_earlier_one_has_left_of_an_evaluation_that_is_over(
    learner: Learner,
) -> None:
    await learner.submit(tables=EVALUATION, steps=12, checkpoint_every=4)
    await learner.killed_at(5)
    assert await learner.events("evaluation:")
    await learner.exchange.ask(
        a_request(
            number=1,
            purpose=Purpose.EVAL,
            version=0,
        )
    )
    learner.answers_evaluations = False
    async with learner.attempting():
        await learner.reach(8)
        assert (await learner.exchange.backlog(EVAL_REQUESTS, "job")).entries == 0


async def test_the_next_evaluation_begins_when_the_last_one_has_ended(
    learner: Learner, team: Observed
) -> None:
    learner.answers_evaluations = False
    await learner.submit(tables={"evaluation": {"samples": 2, "every": 2}}, steps=4)
    async with learner.attempting() as attempt:
        await learner.reach(2)
        await asyncio.sleep(0.1)
        await evaluated(learner)
        learner.answers_evaluations = True
        team.may_write.set()
        await attempt
    assert team.might_write == [False, False, True, True]
    assert await evaluated_steps(learner) == [0, 2, 4]


async def test_held_out_files_have_names_samples_and_intervals_of_their_own(
    learner: Learner,
) -> None:
    others = {
        "easy": {
            "held_out": "train",
            "samples": 1,
            "tasks": 2,
            "every": 2,
        }
    }
    await learner.submit(tables={"evaluation": {"samples": 2, "others": others}}, steps=3)
    await learner.attempt()
    names = [event.id.removeprefix("evaluation:") for event in await learner.events("evaluation:")]
    assert sorted(names) == ["0", "0:easy", "2:easy", "3", "3:easy"]
    (easy,) = await learner.events("evaluation:2:easy")
    result: Any = as_dict(easy)["other_evaluation"]
    assert [result[name] for name in ("name", "step", "asked", "samples")] == ["easy", 2, 2, 2]


async def test_steps_go_on_while_a_checkpoint_is_written_and_the_next_one_waits_for_it(
    learner: Learner, team: Observed
) -> None:
    await learner.submit()
    async with learner.attempting() as attempt:
        await learner.reach(4)
        assert not learner.checkpoints
        await asyncio.sleep(0.1)
        team.may_write.set()
        await attempt
    assert team.might_write == [False] * 4 + [True] * 2
    assert [folder.name for folder in learner.checkpoints] == ["step-000004", "step-000006"]
    assert (await learner.record()).state is JobState.SUCCEEDED


async def test_a_stop_waits_for_the_checkpoint_that_is_being_written(
    learner: Learner, team: Observed
) -> None:
    await learner.submit()
    async with learner.attempting() as attempt:
        await learner.reach(3)
        learner.service.stop()
        await asyncio.sleep(0.1)
        assert not attempt.done()
        team.may_write.set()
        await attempt
    assert "step-000002" in [folder.name for folder in learner.checkpoints]


async def test_a_checkpoint_that_cannot_be_written_holds_the_job_up(
    learner: Learner, team: Observed
) -> None:
    await learner.submit()
    team.error = OSError(28, "No space left on device")
    async with learner.attempting() as attempt:
        await learner.reach(3)
        team.may_write.set()
        await attempt
    assert (await learner.record()).state is JobState.PAUSED
    assert "No space left on device" in await learner.warning()
    assert not learner.checkpoints
