"""What an attempt begins from: whole checkpoints, no leftovers, the progress of a failed job."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from protocol.messages import JobState
from protocol.streams import JOBS

from tests.contract.attempts import Learner, until
from tests.contract.fake_team import FakeTeam
from tests.contract.valkey_server import Server

pytestmark = [
    *(pytest.mark.anyio, pytest.mark.redis, pytest.mark.engine),
    pytest.mark.usefixtures("answers"),
]


async def interrupted(learner: Learner) -> None:
    """An attempt that is killed with two checkpoints behind it, and steps since."""
    await learner.submit()
    await learner.killed_at(step=5)
    assert [folder.name for folder in learner.checkpoints] == ["step-000002", "step-000004"]


@pytest.mark.parametrize("damage", ["changed", "no state"])
async def test_in_the_place_of_a_damaged_checkpoint_the_one_before_is_taken(
    learner: Learner, damage: str
) -> None:
    whole = await learner.uninterrupted()
    await interrupted(learner)
    older, newest = learner.checkpoints
    if damage == "changed":
        (newest / "policy/digest").write_text("damaged")
    else:  # as a removal leaves it that was killed halfway
        (newest / "state.json").unlink()
    assert (await learner.attempt()).digest == whole
    (event,) = await learner.events(kind="damaged:")
    assert event.level == "warn"
    assert str(newest) in event.message
    assert str(older) in event.message
    assert (await learner.record()).state is JobState.SUCCEEDED
    assert [folder.name for folder in learner.checkpoints] == ["step-000002", "step-000006"]


async def test_a_job_whose_checkpoints_are_gone_waits_for_them(
    learner: Learner, tmp_path: Path
) -> None:
    whole = await learner.uninterrupted()
    await interrupted(learner)
    folder, away = learner.job_dir / "checkpoints", tmp_path / "away"
    folder.rename(away)
    await learner.attempt()
    record = await learner.record()
    assert record.state is JobState.PAUSED
    assert "WEIR_DATA_DIR/jobs/job/checkpoints has no checkpoint" in str(record.error)
    folder.rmdir()
    away.rename(folder)
    assert (await learner.attempt()).digest == whole


async def test_steps_whose_log_is_gone_are_made_anew_under_weights_that_are_published(
    learner: Learner, server: Server
) -> None:
    whole = await learner.uninterrupted()
    await interrupted(learner)
    for segment in (learner.job_dir / "log").iterdir():
        segment.unlink()
    with server.client() as client:  # nor does a rollout have the weights of the last attempt
        client.delete("weir:job:policy")
    assert (await learner.attempt()).digest == whole
    (event,) = await learner.events(kind="anew:")
    assert "from 4 to 5;" in event.message


async def test_a_checkpoint_of_an_earlier_release_is_taken_as_it_is(learner: Learner) -> None:
    whole = await learner.uninterrupted()
    await interrupted(learner)
    for folder in learner.checkpoints:
        (folder / "manifest.json").unlink()
        state = json.loads((folder / "state.json").read_text())
        del state["ranks"]
        (folder / "state.json").write_text(json.dumps(state))
    assert (await learner.attempt()).digest == whole
    begins = await learner.events(kind="attempt:2")
    assert [event.message for event in begins] == ["attempt 2 begins at step 4"]


async def test_the_log_keeps_what_its_checkpoints_need(learner: Learner) -> None:
    await learner.submit(steps=12)
    await learner.killed_at(step=9, with_log_from="000001-000001.segment")
    *_, newest = learner.checkpoints
    (newest / "policy/digest").write_text("damaged")
    await learner.attempt()
    assert (await learner.record()).state is JobState.SUCCEEDED


async def test_a_failed_job_that_is_revived_goes_on_from_its_last_checkpoint(
    learner: Learner, server: Server
) -> None:
    whole = await learner.uninterrupted()
    await interrupted(learner)
    tasks = learner.data_dir / "files/train.jsonl"
    sound = tasks.read_text()
    tasks.write_text("{}\n")
    for _ in range(2):  # it may fail, and be revived, again
        await learner.attempt()
        assert (await learner.record()).state is JobState.FAILED
        for _ in range(2):
            await learner.exchange.revive("job")
        record = await learner.record()
        assert (record.state, record.error, record.finished_at) == (JobState.QUEUED, None, None)
        assert (await learner.exchange.backlog(JOBS)).entries == 1
    tasks.write_text(sound)
    assert (await learner.attempt()).digest == whole
    record = await learner.record()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 4)
    begins = await learner.events(kind="attempt:4")
    assert [event.message for event in begins] == ["attempt 4 begins at step 4"]
    assert len(await learner.events(kind="end:failed")) == 2


async def test_weights_of_jobs_that_have_ended_or_are_unknown_are_swept(learner: Learner) -> None:
    weights = learner.data_dir / "weights"
    await learner.submit("ended")
    await learner.attempt()
    assert not (weights / "ended").exists()
    await learner.submit("waiting")
    for job_id in ("ended", "unknown", "waiting"):
        shutil.copytree(learner.data_dir / "files", weights / job_id)
    await learner.attempt()
    assert (await learner.record("waiting")).state is JobState.SUCCEEDED
    assert not (weights / "ended").exists()
    assert not (weights / "unknown").exists()


class NotingLife(FakeTeam):
    shown = False

    async def keep_alive_forever(self) -> None:
        self.shown = True
        await super().keep_alive_forever()


async def test_the_ranks_are_kept_alive_before_there_is_a_job(learner: Learner) -> None:
    learner.make_team = NotingLife
    running = learner.start()
    await until(lambda: _is_ready(learner))
    learner.services[-1].stop()
    team = await running
    assert isinstance(team, NotingLife)
    assert team.shown


async def _is_ready(learner: Learner) -> bool:
    return learner.services[-1].readiness.ready
