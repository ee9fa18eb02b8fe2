"""What ends an attempt, and what it costs the job: nothing, if the machine was at fault."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence

import pytest
from protocol.frames import Fields
from protocol.messages import JobState, Requested

from services.learner.supply.log import GroupLog
from services.learner.training.measured import Measured
from services.learner.training.samples import Sample
from tests.contract.attempts import Learner, until
from tests.contract.fake_team import FakeTeam

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.engine]


class Breaking(FakeTeam):
    """A team that breaks in each attempt after a number of steps, by an error of the job's own."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    async def train(self, samples: Sequence[Sample]) -> Measured:
        if self.left == 0:
            raise ValueError("no such token")
        self.left -= 1
        return await super().train(samples)


class Two(FakeTeam):
    num_ranks = 2


async def no_task_file(learner: Learner, _: pytest.MonkeyPatch) -> str:
    (learner.data_dir / "files").rename(learner.data_dir / "away")
    return "train.jsonl'; restore it, or mount the folder"


async def no_space(_: Learner, patch: pytest.MonkeyPatch) -> str:
    def append(log: GroupLog, groups: Sequence[Fields]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(log.folder / log.segment))

    patch.setattr(GroupLog, "append", append)
    return ".segment'; free space on that disk"


async def no_whole_checkpoint(learner: Learner, _: pytest.MonkeyPatch) -> str:
    for folder in learner.checkpoints:
        shutil.copy(folder / "policy/digest", learner.data_dir / folder.name)
        (folder / "policy/digest").write_text("damaged")
    return "policy/digest: damaged"


def mend(learner: Learner) -> None:
    if (learner.data_dir / "away").exists():
        (learner.data_dir / "away").rename(learner.data_dir / "files")
    for folder in learner.checkpoints:
        if (learner.data_dir / folder.name).exists():
            shutil.copy(learner.data_dir / folder.name, folder / "policy/digest")


@pytest.mark.parametrize("fault", [no_task_file, no_space, no_whole_checkpoint])
async def test_a_fault_of_the_machine_pauses_the_job_until_it_is_mended(
    learner: Learner, answers: None, monkeypatch: pytest.MonkeyPatch, fault: Callable
) -> None:
    whole = await learner.uninterrupted()
    await learner.submit()
    await learner.killed_at(step=3)
    steps: set[int] = set()  # there may be groups for another one
    with monkeypatch.context() as patch:
        remedy = await fault(learner, patch)
        for _ in range(3):
            await learner.attempt()
            record = await learner.record()
            assert (record.state, record.requested) == (JobState.PAUSED, Requested.RUN)
            assert remedy in str(record.error)
            assert record.failures == 0
            steps.add(record.step)
    events = await learner.events(kind="machine:")
    assert len(events) == len(steps) < 3
    for event in events:
        assert event.level == "warn"
        assert remedy in event.message
        assert "by itself" in event.message
    mend(learner)
    await learner.killed_at(step=0)
    assert (await learner.record()).error is None
    assert (await learner.attempt()).digest == whole
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 6)


async def test_a_job_goes_on_with_another_number_of_ranks_and_says_so(
    learner: Learner, answers: None
) -> None:
    whole = await learner.uninterrupted()
    await learner.submit()
    await learner.killed_at(step=3)
    learner.make_team = Two
    assert (await learner.attempt()).digest == whole
    assert (await learner.record()).state is JobState.SUCCEEDED
    (event,) = await learner.events(kind="ranks:")
    assert event.message == "a checkpoint of 1 ranks goes on with 2"


async def test_a_job_that_is_held_up_is_cancelled_at_once_and_its_learner_leaves_it(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    await learner.submit()
    await no_task_file(learner, monkeypatch)
    running = learner.start()
    await until(learner.is_in(JobState.PAUSED))
    await learner.exchange.request_state("job", Requested.CANCEL)
    record = await learner.record()
    assert (record.state, record.attempt, record.error) == (JobState.CANCELLED, 1, None)
    await running
    assert (await learner.record()).state is JobState.CANCELLED


async def test_tasks_with_wrong_content_fail_the_job_at_once(learner: Learner) -> None:
    await learner.submit()
    (learner.data_dir / "files/train.jsonl").write_text("{}\n")
    await learner.attempt()
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.FAILED, 1)
    assert "line 1" in str(record.error)


async def test_attempts_that_are_killed_cost_nothing_and_are_told_of(
    learner: Learner, answers: None
) -> None:
    whole = await learner.uninterrupted()
    await learner.submit()
    for _ in range(4):
        await learner.killed_at(step=0)
    assert (await learner.attempt()).digest == whole
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 5)
    (event,) = await learner.events(kind="silent:")
    assert event.level == "warn"


async def test_three_attempts_in_a_row_that_break_fail_the_job_with_the_last_error(
    learner: Learner, answers: None
) -> None:
    learner.make_team = lambda: Breaking(after=0)
    await learner.submit()
    for failures in (1, 2):
        with pytest.raises(ValueError, match="token"):
            await learner.attempt()
        record = await learner.record()
        assert (record.state, record.failures) == (JobState.RUNNING, failures)
        assert record.error == "ValueError: no such token"
    await learner.attempt()
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.FAILED, 3)
    assert str(record.error).endswith("the last one: ValueError: no such token")
    assert len(await learner.events(kind="broke:")) == 2


async def test_attempts_that_break_may_be_many_if_each_gets_on(
    learner: Learner, answers: None
) -> None:
    whole = await learner.uninterrupted()
    await learner.submit(checkpoint_every=100)
    for steps in range(1, 5):
        learner.make_team = lambda steps=steps: Breaking(after=steps)
        with pytest.raises(ValueError, match="token"):
            await learner.attempt()
        assert (await learner.record()).step == steps
    learner.make_team = FakeTeam
    assert (await learner.attempt()).digest == whole
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 5)


async def test_what_broke_before_and_after_a_replay_without_a_new_step_is_in_a_row(
    learner: Learner, answers: None
) -> None:
    await learner.submit(checkpoint_every=100)
    learner.make_team = lambda: Breaking(after=2)
    for _ in range(2):
        with pytest.raises(ValueError, match="token"):
            await learner.attempt()
    await learner.attempt()
    record = await learner.record()
    assert (record.state, record.step, record.failures) == (JobState.FAILED, 2, 2)
