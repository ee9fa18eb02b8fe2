"""What a job leaves for others to start from: models in its checkpoints, and after a cancel."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from protocol.messages import JobState, Requested

from services.learner.durable.checkpoint import Checkpoints
from tests.contract.attempts import PATIENCE_S, Learner, until
from tests.contract.fake_team import FakeTeam

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.engine]


class Counting(FakeTeam):
    """A team that counts how often it has gathered its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.exports = 0

    async def export(self, folder: Path) -> None:
        self.exports += 1
        await super().export(folder)


async def cancelled(learner: Learner, running: asyncio.Task[FakeTeam]) -> None:
    await learner.exchange.request_state("job", Requested.CANCEL)
    async with asyncio.timeout(PATIENCE_S):
        await running
    assert (await learner.record()).state is JobState.CANCELLED


async def test_a_checkpoint_holds_the_policy_as_a_model_with_the_numbers_of_its_step(
    learner: Learner, answers: None
) -> None:
    team = Counting()
    learner.make_team = lambda: team
    await learner.submit(steps=6, checkpoint_every=2)
    await learner.attempt()
    assert team.exports == 7 + 1  # the versions 0 to 6, and the final model
    assert [folder.name for folder in learner.checkpoints] == ["step-000004", "step-000006"]
    events = {event.data["step"]: event.data for event in await learner.events(kind="step:")}
    for folder in learner.checkpoints:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text())
        assert state["metrics"]["reward"] == events[state["step"]]["reward"]
        digest = (folder / "policy/digest").read_text()
        assert (folder / "model/model.safetensors").read_text() == digest
        assert [path.name for path in (folder / "model").iterdir()] == ["model.safetensors"]


async def test_a_running_job_that_is_cancelled_leaves_a_checkpoint_of_its_last_step(
    learner: Learner, answers: None
) -> None:
    await learner.submit(steps=100_000, checkpoint_every=100_000)
    running = learner.start()
    await until(learner.has_made(3))
    await cancelled(learner, running)
    (folder,) = learner.checkpoints
    assert folder.name == f"step-{(await learner.record()).step:06d}"
    digest = (folder / "policy/digest").read_text()
    assert digest == running.result().digest
    assert (folder / "model/model.safetensors").read_text() == digest


async def test_a_job_whose_last_checkpoint_no_disk_takes_is_cancelled_all_the_same(
    learner: Learner, answers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Checkpoints, "save", full)
    await learner.submit(steps=100_000, checkpoint_every=100_000)
    running = learner.start()
    await until(learner.has_made(1))
    await cancelled(learner, running)
    (event,) = await learner.events(kind="unsaved")
    assert event.level == "warn"
    assert "No space left" in event.message


async def test_a_job_starts_from_what_another_job_has_made(learner: Learner, answers: None) -> None:
    shutil.copytree(learner.models / "base-model", learner.data_dir / "jobs" / "base-model")
    learner.models = learner.data_dir / "none"
    await learner.submit()
    await learner.attempt()
    assert (await learner.record()).state is JobState.SUCCEEDED
