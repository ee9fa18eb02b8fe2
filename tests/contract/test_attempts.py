"""Attempts: what one begins from, what ends it, what that costs the job, and what is left."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from protocol.frames import Fields
from protocol.messages import GradedGroup, JobState, Requested, RolloutRequest
from protocol.recipe import Purpose, Recipe
from redis import Redis

from services.learner.durable.checkpoint import Checkpoints
from services.learner.supply.log import GroupLog
from services.learner.training.ranks import BatchTooLarge
from services.learner.training.samples import Sample
from tests.builders import a_graded_group, a_group, as_dict
from tests.contract import attempts
from tests.contract.attempts import PATIENCE_S, Learner, until
from tests.contract.exchange_steps import record_of
from tests.contract.fake_team import FakeTeam
from tests.kept_samples import fates

FULL = OSError(errno.ENOSPC, "No space left on device")


@dataclass
class Breaking(FakeTeam):
    """A team that breaks in each attempt after a number of steps, by an error of the job's own."""

    after: int

    async def before_step(self) -> None:
        if self.steps == self.after:
            raise ValueError("no such token")


async def broken(learner: Learner, after: int = 0) -> None:
    with pytest.raises(ValueError, match="token"):
        await learner.start(Breaking(after))


def no_task_file(learner: Learner, _: pytest.MonkeyPatch) -> str:
    (learner.data_dir / "files").rename(learner.data_dir / "away")
    return "train.jsonl'; restore it, or mount the folder"


def no_checkpoints(learner: Learner, _: pytest.MonkeyPatch) -> str:
    (learner.job_dir / "checkpoints").rename(learner.data_dir / "away")
    return "WEIR_DATA_DIR/jobs/job/checkpoints has no checkpoint"


def no_space(_: Learner, patch: pytest.MonkeyPatch) -> str:
    def append(log: GroupLog, groups: Sequence[Fields]) -> None:
        raise OSError(*FULL.args, str(log.folder / log.segment))

    patch.setattr(GroupLog, "append", append)
    return ".segment'; free space on that disk"


def no_whole_checkpoint(learner: Learner, _: pytest.MonkeyPatch) -> str:
    checkpoints = learner.job_dir / "checkpoints"
    shutil.copytree(checkpoints, learner.data_dir / "away")
    for digest in checkpoints.glob("*/policy/digest"):
        digest.write_text("damaged")
    return "policy/digest: damaged"


def mend(learner: Learner, folder: str) -> None:
    if (away := learner.data_dir / "away").exists():
        shutil.rmtree(learner.data_dir / folder, ignore_errors=True)
        away.rename(learner.data_dir / folder)


@pytest.mark.parametrize(
    ("break_machine", "folder"),
    [
        (no_task_file, "files"),
        (no_space, ""),
        (no_checkpoints, "jobs/job/checkpoints"),
        (no_whole_checkpoint, "jobs/job/checkpoints"),
    ],
)
async def test_a_fault_of_the_machine_pauses_the_job_until_it_is_mended(
    learner: Learner, monkeypatch: pytest.MonkeyPatch, break_machine: Callable, folder: str
) -> None:
    whole = await learner.uninterrupted(steps=12)
    await learner.submit(steps=12)
    await learner.killed_at(5)
    steps: set[int] = set()  # there may be groups for another one
    with monkeypatch.context() as patch:
        remedy = break_machine(learner, patch)
        for _ in range(3):
            record = await learner.attempt()
            assert (record.state, record.requested) == (JobState.PAUSED, Requested.RUN)
            assert remedy in str(record.error)
            assert record.failures == 0
            steps.add(record.step)
    events = await learner.events("machine:")
    assert len(events) == len(steps) < 3
    assert {event.level for event in events} == {"warn"}
    assert all(remedy in event.message for event in events)
    mend(learner, folder)
    record = await learner.attempt()
    assert (record.state, record.attempt, record.error) == (JobState.SUCCEEDED, 5, None)
    assert learner.team.digest == whole


async def test_a_job_that_is_held_up_is_cancelled_at_once_and_its_learner_leaves_it(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    await learner.submit()
    no_task_file(learner, monkeypatch)
    running = learner.start()

    async def is_paused() -> bool:
        return (await learner.record()).state is JobState.PAUSED

    await until(is_paused)
    await learner.exchange.request_state("job", Requested.CANCEL)
    await running
    record = await learner.record()
    assert (record.state, record.attempt, record.error) == (JobState.CANCELLED, 1, None)


async def test_attempts_that_are_killed_cost_nothing_and_are_told_of(learner: Learner) -> None:
    whole = await learner.uninterrupted()
    await learner.submit()
    for _ in range(4):
        await learner.killed_at(0)
    record = await learner.attempt()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 5)
    assert learner.team.digest == whole
    (event,) = await learner.events("silent:")
    assert event.level == "warn"


CURRICULUM: Mapping[str, Any] = {
    "tasks": {
        "train": "",
        "sources": [
            {"name": "sums", "train": "train", "weight": 3},
            {"name": "again", "train": "train", "when_exhausted": "stop"},
        ],
        "curriculum": {"retire_above": 0.8, "return_after": 4, "hard": 0.3},
    },
    "rollout": {"group_size": 4},
}


@dataclass
class Opening(FakeTeam):
    """A team that tells when it has its models."""

    num_ranks: int = 1
    is_open: asyncio.Event = field(default_factory=asyncio.Event)

    async def rehearse(self, *_: object) -> None:
        self.is_open.set()


@pytest.mark.timeout(600)
async def test_kills_rollouts_and_ranks_change_no_task_of_a_curriculum(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty attempts are killed at any moment, beside four rollouts in the place of one.

    No group is too old: that would depend on the time.
    """
    settings = {"steps": 50, "checkpoint_every": 3, "dynamic_sampling": True, "max_staleness": 2}
    chance = random.Random(40)
    asked: dict[str, dict[str, set[str]]] = {}

    def answer(request: RolloutRequest, _: int) -> GradedGroup:
        task = request.task.id
        asked.setdefault(request.job_id, {}).setdefault(request.key, set()).add(task)
        draw = random.Random(f"{task}:{request.seed}")
        solved = random.Random(task).random()
        tokens = np.array([draw.randrange(1000) for _ in range(request.group_size)])
        group = a_group(request, [1] * len(tokens), version=settings["steps"], token_ids=tokens)
        return a_graded_group(group, [float(draw.random() < solved) for _ in tokens])

    monkeypatch.setattr(attempts, "an_answer", answer)
    whole = await learner.uninterrupted(CURRICULUM, **settings)
    learner.num_answerers = 4
    learner.make_team = lambda: Opening(num_ranks=chance.randint(1, 2))
    await learner.submit("job", CURRICULUM, **settings)
    kills = 0
    while (step := (await learner.record()).step) < 48 and kills < 40:
        async with learner.attempting():
            team = learner.team
            assert isinstance(team, Opening)
            await team.is_open.wait()  # a thread that tries the model outlives a task
            await learner.reach(step + chance.randrange(2))
            await asyncio.sleep(0.1 * chance.random())
        kills += 1
    record = await learner.attempt()
    other = await record_of(learner.exchange, "other")
    assert (record.state, learner.team.digest) == (JobState.SUCCEEDED, whole)
    ledgers = [cast(dict[str, Any], job.result["groups"]) for job in (record, other)]
    fates = [(ledger["trained"], ledger["dropped"]["no_signal"]) for ledger in ledgers]
    assert fates[0] == fates[1]
    inspected = range(sum(fates[0]))
    tasks = {job: [asked[job][f"train:{n}"] for n in inspected] for job in ("job", "other")}
    assert tasks["job"] == tasks["other"]
    assert {len(names) for names in tasks["job"]} == {1}
    assert kills == 40


@dataclass
class Unopened(FakeTeam):
    """A team whose ranks may load nothing."""

    async def open(self, *_: Any, **__: Any) -> None:
        raise AssertionError("an evaluation loads no model in the ranks")

    async def publish(self, *_: Any, **__: Any) -> None:
        await self.open()

    async def save(self, *_: Any, **__: Any) -> None:
        await self.open()


async def test_an_evaluation_job_samples_and_counts_no_response_twice_over_two_kills(
    learner: Learner,
) -> None:
    learner.make_team = Unopened
    other = {"held_out": "train", "samples": 3, "tasks": 3}
    evaluation = {"samples": 2, "others": {"hard": other}}
    await learner.submit(tables={"evaluation": evaluation, "tasks": {"train": "train"}}, steps=0)
    for num_answers in (1, 2):
        learner.max_answers = num_answers
        async with learner.attempting():
            await until(lambda: learner.answers.total() == learner.max_answers)
    learner.max_answers = 3
    record = await learner.attempt()
    assert (record.state, record.attempt, record.step) == (JobState.SUCCEEDED, 3, 0), record.error
    assert learner.answers == {f"eval:{number}": 1 for number in range(3)}
    told: Any = record.result
    (result,) = told["evaluations"]
    assert (result["name"], result["asked"], result["samples"]) == ("hard", 3, 9)
    assert told["evaluation_groups"]["trained"] == 3
    assert fates(learner.job_dir / "samples", Purpose.EVAL) == dict.fromkeys(range(3), "used")
    assert not list(learner.job_dir.rglob("*.safetensors"))


async def test_three_attempts_in_a_row_that_break_fail_the_job_with_the_last_error(
    learner: Learner,
) -> None:
    await learner.submit()
    for failures in (1, 2):
        await broken(learner)
        record = await learner.record()
        assert (record.state, record.failures) == (JobState.RUNNING, failures)
        assert str(record.error) == "ValueError: no such token"
    await learner.start(Breaking(0))
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.FAILED, 3)
    assert str(record.error).endswith("the last one: ValueError: no such token")
    assert len(await learner.events("broke:")) == 2


async def test_attempts_that_break_are_in_a_row_unless_one_gets_beyond_the_replayed_steps(
    learner: Learner,
) -> None:
    await learner.submit(checkpoint_every=100)
    for steps in (1, 2, 3, 4, 4):
        await broken(learner, steps)
        record = await learner.record()
        assert (record.state, record.step) == (JobState.RUNNING, steps)
    await learner.start(Breaking(4))
    record = await learner.record()
    assert (record.state, record.step) == (JobState.FAILED, 4)


# ---------------------------------------- what an attempt begins from


async def interrupted(learner: Learner) -> str:
    """An attempt that is killed with two checkpoints behind it, and steps since.

    Returns what the model would be in the end.
    """
    whole = await learner.uninterrupted()
    await learner.submit()
    await learner.killed_at(5)
    assert [folder.name for folder in learner.checkpoints] == ["step-000002", "step-000004"]
    return whole


async def test_in_the_place_of_a_damaged_checkpoint_the_one_before_is_taken_by_any_ranks(
    learner: Learner,
) -> None:
    """It needs steps of the log, which has been cut."""
    whole = await learner.uninterrupted(steps=12)
    await learner.submit(steps=12)
    await learner.killed_at(9, with_log_from="000001-000001.segment")
    older, newest = learner.checkpoints
    (newest / "policy/digest").write_text("damaged")
    team = FakeTeam()
    team.num_ranks = 2
    await learner.start(team)
    assert team.digest == whole
    assert await learner.events("ranks:")
    (event,) = await learner.events("damaged:")
    assert event.level == "warn"
    for folder in (newest, older):
        assert f"WEIR_DATA_DIR/{folder.relative_to(learner.data_dir)}" in event.message
    assert str(learner.data_dir) not in event.message
    assert (await learner.record()).state is JobState.SUCCEEDED
    assert [folder.name for folder in learner.checkpoints] == ["step-000010", "step-000012"]


async def test_steps_whose_log_is_gone_are_made_anew_under_weights_that_are_published(
    learner: Learner, client: Redis
) -> None:
    whole = await interrupted(learner)
    for segment in (learner.job_dir / "log").iterdir():
        segment.unlink()
    # nor does a rollout have the weights of the last attempt
    client.delete("weir:job:policy")
    await learner.attempt()
    assert learner.team.digest == whole
    (event,) = await learner.events("anew:")
    assert "from 4 to 5;" in event.message


async def test_tasks_with_wrong_content_fail_a_job_which_goes_on_when_it_is_revived(
    learner: Learner,
) -> None:
    whole = await interrupted(learner)
    tasks = learner.data_dir / "files/train.jsonl"
    sound = tasks.read_text()
    tasks.write_text("{}\n")
    for _ in range(2):  # it may fail, and be revived, again
        record = await learner.attempt()
        assert (record.state, record.failures) == (JobState.FAILED, 0)
        assert "line 1" in str(record.error)
        await learner.exchange.revive("job")
    tasks.write_text(sound)
    await learner.attempt()
    assert learner.team.digest == whole
    (begins,) = await learner.events("attempt:4")
    assert begins.message == "attempt 4 begins at step 4"
    assert len(await learner.events("end:failed")) == 2


async def test_weights_of_jobs_that_have_ended_or_are_unknown_are_swept(learner: Learner) -> None:
    weights = learner.data_dir / "weights"
    await learner.submit("ended")
    await learner.start()
    assert not (weights / "ended").exists()
    await learner.submit()
    for job_id in ("ended", "unknown", "job"):
        shutil.copytree(learner.data_dir / "files", weights / job_id)
    assert (await learner.attempt()).state is JobState.SUCCEEDED
    assert not (weights / "ended").exists()
    assert not (weights / "unknown").exists()


async def test_the_ranks_are_kept_alive_before_there_is_a_job(learner: Learner) -> None:
    running = learner.start()
    await until(learner.is_ready)
    learner.service.stop()
    await running
    assert learner.team.is_kept_alive


# ---------------------------------------- what does not fit the memory


@dataclass
class Small(FakeTeam):
    """Trains three steps, and then only with micro-batches that are small enough."""

    opened_with: list[int]

    async def open(
        self,
        folder: Path,
        recipe: Recipe,
        critic_folder: Path | None = None,
    ) -> None:
        await super().open(folder, recipe, critic_folder)
        self.opened_with.append(recipe.training.micro_batch_tokens)

    async def before_step(self) -> None:
        if self.steps == 3 and self.opened_with[-1] > 100:
            raise BatchTooLarge("rank 1: CUDA out of memory")


class Tiny(FakeTeam):
    """Has no room for a single sample of full length."""

    async def rehearse(self, samples: Sequence[Sample]) -> None:
        raise BatchTooLarge("rank 0: CUDA out of memory")


async def test_where_the_memory_runs_out_the_next_attempt_takes_half_as_many_tokens(
    learner: Learner,
) -> None:
    opened_with: list[int] = []
    learner.make_team = lambda: Small(opened_with)
    await learner.submit(micro_batch_tokens=256)
    for lower in (128, 64):
        record = await learner.attempt()
        assert (record.state, record.failures) == (JobState.RUNNING, 0)
        assert (record.micro_batch_tokens, record.attempts_since_checkpoint) == (lower, 0)
    assert (await learner.attempt()).state is JobState.SUCCEEDED
    assert opened_with == [256, 128, 64]
    first, second = await learner.events("memory:")
    assert "128" in first.message
    assert "64" in second.message


async def test_a_job_whose_single_samples_are_too_large_pauses_and_names_the_settings(
    learner: Learner,
) -> None:
    learner.make_team = Tiny
    await learner.submit(micro_batch_tokens=64)
    record = await learner.attempt()
    assert (record.state, record.requested) == (JobState.PAUSED, Requested.RUN)
    for part in ("rank 0: CUDA", "model.max_context = 64", "training.recompute_activations"):
        assert part in str(record.error)


# ---------------------------------------- what a job leaves for others to start from


@dataclass
class Counting(FakeTeam):
    """A team that counts how often it has gathered its weights."""

    exports: int = 0

    async def export(self, folder: Path) -> None:
        self.exports += 1
        await super().export(folder)


async def cancelled_at(learner: Learner, step: int) -> None:
    await learner.submit(steps=100_000, checkpoint_every=100_000)
    running = learner.start()
    await learner.reach(step)
    await learner.exchange.request_state("job", Requested.CANCEL)
    async with asyncio.timeout(PATIENCE_S):
        await running
    assert (await learner.record()).state is JobState.CANCELLED


async def test_a_checkpoint_holds_the_policy_as_a_model_with_the_numbers_of_its_step(
    learner: Learner,
) -> None:
    await learner.submit(steps=6, checkpoint_every=2)
    await learner.start(team := Counting())
    assert team.exports == 7 + 1  # the versions 0 to 6, and the final model
    assert [folder.name for folder in learner.checkpoints] == ["step-000004", "step-000006"]
    events = {event.id: as_dict(event) for event in await learner.events("step:")}
    for folder in learner.checkpoints:
        state = json.loads((folder / "state.json").read_text())
        assert state["metrics"]["reward"] == events[f"step:{state['step']}"]["reward"]
        digest = (folder / "policy/digest").read_text()
        assert (folder / "model/model.safetensors").read_text() == digest
        assert [path.name for path in (folder / "model").iterdir()] == ["model.safetensors"]


async def test_a_running_job_that_is_cancelled_leaves_a_checkpoint_of_its_last_step(
    learner: Learner,
) -> None:
    await cancelled_at(learner, 3)
    (folder,) = learner.checkpoints
    assert folder.name == f"step-{(await learner.record()).step:06d}"
    digest = (folder / "policy/digest").read_text()
    assert digest == learner.team.digest
    assert (folder / "model/model.safetensors").read_text() == digest


async def test_a_job_whose_last_checkpoint_no_disk_takes_is_cancelled_all_the_same(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> Path:
        raise FULL

    monkeypatch.setattr(Checkpoints, "save", fail)
    await cancelled_at(learner, 1)
    (event,) = await learner.events("unsaved")
    assert event.level == "warn"
    assert "No space left" in event.message


async def test_a_job_starts_from_what_another_job_has_made(learner: Learner) -> None:
    shutil.copytree(learner.models / "base-model", learner.data_dir / "jobs" / "base-model")
    learner.models = learner.data_dir / "none"
    await learner.submit()
    assert (await learner.attempt()).state is JobState.SUCCEEDED
