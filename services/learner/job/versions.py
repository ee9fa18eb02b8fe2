"""Versions: the policy after each step, published to the rollouts and kept in checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from protocol.messages import Doing, PolicyVersion

from services.learner.attempt import Attempt
from services.learner.durable.checkpoint import EVALUATED, MODEL, Checkpoints
from services.learner.durable.progress import Progress
from services.learner.durable.publish import Publisher
from services.learner.durable.sample_store import SampleStore
from services.learner.job.control import Control
from services.learner.job.parity import Parity
from services.learner.supply.intake import Intake
from services.learner.training.ranks import Team

_LOOK_S = 0.5


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
    _writing: asyncio.Task[None] | None = None  # the checkpoint that was begun last

    async def restore(self, checkpoint: str) -> None:
        """Go on from a checkpoint, perhaps with the version whose evaluation was under way."""
        self.saved, number = checkpoint, self.progress.evaluating
        await self.publisher.make_room()
        if number is not None and number != self.progress.step:
            folder = self.checkpoints.folder / checkpoint / EVALUATED
            await self.publisher.restore_evaluated(self.team, number, folder)

    async def publish(self) -> None:
        """Publish the policy; not while steps are replayed, for which no rollout waits."""
        if not self.progress.is_replayed:
            await self._publish(self.progress.step)

    async def _publish(self, step: int) -> None:
        with self.control.doing(Doing.MEASURES_PARITY, timed="probe"):
            await self.parity.score(self.team, step)
        with self.control.doing(Doing.PUBLISHES, step, timed="publish"):
            await self.publisher.publish(self.team, step)

    async def begin_evaluation(self, step: int) -> None:
        """Have one version answer an evaluation; it is published even where steps are replayed."""
        await self.publisher.announced()
        newest, now = self.publisher.newest, self.progress.step
        if newest is None or newest.number != now:
            await self._publish(now)
        if step == now < self.attempt.recipe.training.steps:
            await self.publisher.evaluate()

    async def save(self) -> None:
        """Make everything up to this step durable, as one checkpoint."""
        await self.begin_save()
        await self.saved_whole()

    async def begin_save(self) -> None:
        """The same, written while training continues, once the checkpoint before it is there."""
        with self.control.doing(Doing.SAVES, timed="checkpoint"):
            await self.saved_whole()
            copied = asyncio.Event()
            copying = asyncio.create_task(copied.wait())
            self._writing = asyncio.create_task(self._save(copied.set))
            # The attempt may end by another error before anybody asks for this one.
            self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.wait({copying, self._writing}, return_when=asyncio.FIRST_COMPLETED)
            copying.cancel()
            if self._writing.done():
                self._writing.result()

    async def saved_whole(self) -> None:
        """Wait until the checkpoint that was begun last is there.

        Raises:
            OSError: if it could not be written.
        """
        if self._writing is not None:
            with self.control.doing(Doing.SAVES, timed="checkpoint"):
                await asyncio.wait({self._writing})
            self._writing.result()

    async def watch_forever(self) -> NoReturn:
        """Consumes nothing; produces the error of a checkpoint that could not be written.

        Waits for: a checkpoint that is being written. Unblocked by: time.
        """
        while True:
            if self._writing is not None and self._writing.done():
                self._writing.result()
            await asyncio.sleep(_LOOK_S)

    async def _save(self, copied: Callable[[], None]) -> None:
        publisher, progress = self.publisher, self.progress
        await publisher.announced()
        progress.first_segment = self.intake.first_segment_needed
        policies: dict[str, PolicyVersion] = {}
        if publisher.newest is not None and publisher.newest.number == progress.step:
            policies[MODEL] = publisher.newest
        if publisher.evaluated is not None and publisher.evaluated.number != progress.step:
            policies[EVALUATED] = publisher.evaluated
        folders = {name: publisher.folder_of(policy) for name, policy in policies.items()}
        with publisher.keeping(*policies.values()):
            target = await self.checkpoints.save(self.team, progress, self._commit, folders, copied)
        self.saved = target.name
        await self.intake.drop_segments(self.checkpoints.first_segment_needed())

    async def save_if_ahead(self) -> None:
        await self.saved_whole()
        if self.saved != self.progress.checkpoint_name:
            await self.save()

    async def give_up(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait({self._writing})

    async def _commit(self) -> None:
        """The fence: a superseded attempt stops here, before its checkpoint counts."""
        await self.store.sync()
        await self.attempt.update(attempts_since_checkpoint=0, failures=0, error=None)
