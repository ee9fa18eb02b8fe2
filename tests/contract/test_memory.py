"""A job whose micro-batches are too large for the memory goes on with smaller ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from protocol.messages import JobState, Requested
from protocol.recipe import Recipe

from services.learner.training.measured import Measured
from services.learner.training.ranks import BatchTooLarge
from services.learner.training.samples import Sample
from tests.contract.attempts import Learner
from tests.contract.fake_team import FakeTeam

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.engine]


class Small(FakeTeam):
    """Trains so many steps, and then only with micro-batches that are small enough."""

    def __init__(self, fits: int, steps: int, opened_with: list[int]) -> None:
        super().__init__()
        self.fits, self.left, self.opened_with = fits, steps, opened_with

    async def open(self, folder: Path, recipe: Recipe, critic_folder: Path | None = None) -> None:
        await super().open(folder, recipe, critic_folder)
        self.opened_with.append(recipe.training.micro_batch_tokens)

    async def train(self, samples: Sequence[Sample]) -> Measured:
        if self.left == 0 and self.opened_with[-1] > self.fits:
            raise BatchTooLarge("rank 1: CUDA out of memory")
        self.left -= 1
        return await super().train(samples)


class Tiny(FakeTeam):
    """Has no room for a single sample of full length."""

    async def rehearse(self, samples: Sequence[Sample]) -> None:
        raise BatchTooLarge("rank 0: CUDA out of memory")


async def test_where_the_memory_runs_out_the_next_attempt_takes_half_as_many_tokens(
    learner: Learner, answers: None
) -> None:
    opened_with: list[int] = []
    learner.make_team = lambda: Small(fits=100, steps=3, opened_with=opened_with)
    await learner.submit(micro_batch_tokens=256)
    for lower in (128, 64):
        await learner.attempt()
        record = await learner.record()
        assert (record.state, record.failures) == (JobState.RUNNING, 0)
        assert (record.micro_batch_tokens, record.attempts_since_checkpoint) == (lower, 0)
    await learner.attempt()
    assert opened_with == [256, 128, 64]
    assert (await learner.record()).state is JobState.SUCCEEDED
    first, second = await learner.events(kind="memory:")
    assert first.level == "warn"
    assert ("128" in first.message, "64" in second.message) == (True, True)


async def test_a_job_whose_single_samples_are_too_large_pauses_and_names_the_settings(
    learner: Learner,
) -> None:
    learner.make_team = Tiny
    await learner.submit(micro_batch_tokens=64)
    await learner.attempt()
    record = await learner.record()
    assert (record.state, record.requested) == (JobState.PAUSED, Requested.RUN)
    for part in ("rank 0: CUDA", "model.max_context = 64", "training.recompute_activations"):
        assert part in str(record.error)
    assert (record.micro_batch_tokens, record.step) == (None, 0)
    assert not await learner.exchange.under_way("job")
