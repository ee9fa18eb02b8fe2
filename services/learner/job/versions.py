"""Versions: the policy after each step, published to the rollouts and saved in checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from protocol.messages import Doing, PolicyVersion

from services.chassis.service import retrieve_error
from services.learner.attempt import Attempt
from services.learner.durable.checkpoint import EVALUATED, MODEL, Checkpoints
from services.learner.durable.progress import Progress
from services.learner.durable.publish import Publisher
from services.learner.durable.sample_store import SampleStore
from services.learner.job.control import Control
from services.learner.job.parity import Parity
from services.learner.supply.intake import Intake
from services.learner.training.ranks import Team

_POLL_S = 0.5  # a failed checkpoint ends the attempt this much later at most


@dataclass
class Versions:
    attempt: Attempt
    progress: Progress
    team: Team
    control: Control
    intake: Intake
    store: SampleStore
    publisher: Publisher
    checkpoints: Checkpoints
    parity: Parity
    saved: str = ""  # the name of the newest checkpoint
    _saving: asyncio.Task[None] | None = None  # the checkpoint that was begun last

    async def restore(self, checkpoint: str) -> None:
        """Continue from a checkpoint, and publish the version that an evaluation measures."""
        self.saved = checkpoint
        evaluated = self.progress.evaluating
        await self.publisher.make_room()
        if evaluated is not None and evaluated != self.progress.step:
            folder = self.checkpoints.folder / checkpoint / EVALUATED
            await self.publisher.restore_evaluated(self.team, evaluated, folder)

    async def publish(self) -> None:
        """Publish the policy, unless steps are replayed: no rollout waits for those."""
        if not self.progress.is_replayed:
            await self._publish(self.progress.step)

    async def _publish(self, step: int) -> None:
        with self.control.during(Doing.MEASURES_PARITY, timed="probe"):
            await self.parity.score(self.team, step)
        with self.control.during(Doing.PUBLISHES, step, timed="publish"):
            await self.publisher.publish(self.team, step)

    async def begin_evaluation(self, step: int) -> None:
        """Evaluate the version of a step; it is published even while steps are replayed."""
        await self.publisher.wait_announced()
        current = self.progress.step
        newest = self.publisher.newest
        if newest is None or newest.number != current:
            await self._publish(current)
        if step == current < self.attempt.recipe.training.steps:
            await self.publisher.evaluate()

    async def save(self) -> None:
        """Save everything up to this step as one checkpoint."""
        await self.begin_save()
        await self.wait_saved()

    async def begin_save(self) -> None:
        """Begin a checkpoint, after the one before is saved; training continues meanwhile."""
        with self.control.during(Doing.SAVES, timed="checkpoint"):
            await self.wait_saved()
            is_copied = asyncio.Event()
            copying = asyncio.create_task(is_copied.wait())
            self._saving = asyncio.create_task(self._save(is_copied.set))
            # The attempt may end by another error before this one is read.
            self._saving.add_done_callback(retrieve_error)
            await asyncio.wait({copying, self._saving}, return_when=asyncio.FIRST_COMPLETED)
            copying.cancel()
            self._check_saving()

    async def wait_saved(self) -> None:
        """Wait until the checkpoint that was begun last is saved.

        Raises:
            OSError: if it could not be written.
        """
        if self._saving is not None:
            with self.control.during(Doing.SAVES, timed="checkpoint"):
                await asyncio.wait({self._saving})
            self._check_saving()

    def _check_saving(self) -> None:
        if self._saving is not None and self._saving.done():
            self._saving.result()

    async def watch_forever(self) -> NoReturn:
        """Consumes nothing; produces the error of a checkpoint that could not be written.

        Waits for: a checkpoint that is being written. Unblocked by: time.
        """
        while True:
            self._check_saving()
            await asyncio.sleep(_POLL_S)

    async def _save(self, on_copied: Callable[[], None]) -> None:
        publisher = self.publisher
        progress = self.progress
        await publisher.wait_announced()
        progress.first_segment = self.intake.first_segment_needed
        policies: dict[str, PolicyVersion] = {}
        newest = None if self.attempt.recipe.only_evaluates else publisher.newest
        if newest is not None and newest.number == progress.step:
            policies[MODEL] = newest
        if publisher.evaluated is not None and publisher.evaluated.number != progress.step:
            policies[EVALUATED] = publisher.evaluated
        folders = {name: publisher.memory_folder(policy) for name, policy in policies.items()}
        with publisher.lease(*policies.values()):
            target = await self.checkpoints.save(
                self.team, progress, self._commit, folders, on_copied
            )
        self.saved = target.name
        await self.intake.drop_segments(self.checkpoints.first_segment_needed())

    async def save_if_ahead(self) -> None:
        await self.wait_saved()
        if self.saved != self.progress.checkpoint_name:
            await self.save()

    async def abandon(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.wait({self._saving})

    async def _commit(self) -> None:
        """Stop a superseded attempt before its checkpoint counts: this write is the fence."""
        await self.store.sync()
        await self.attempt.update(attempts_since_checkpoint=0, failures=0, error=None)
