"""Versions: the policy after each step, published to the rollouts and kept in checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from services.learner.attempt import Attempt
from services.learner.durable.checkpoint import Checkpoints
from services.learner.durable.progress import Progress
from services.learner.durable.publish import Publisher
from services.learner.durable.sample_store import SampleStore
from services.learner.job.control import Control
from services.learner.supply.intake import Intake
from services.learner.training.ranks import Team


@dataclass
class Versions:
    """The versions that one attempt makes."""

    attempt: Attempt
    progress: Progress
    team: Team
    control: Control
    intake: Intake
    store: SampleStore
    publisher: Publisher
    checkpoints: Checkpoints
    saved: str = ""  # the name of the newest checkpoint

    async def publish(self) -> None:
        """Publish the policy, unless an earlier attempt's steps are replayed: nobody waits then."""
        step = self.progress.step
        if not self.progress.is_replayed:
            with self.control.doing(f"publishes version {step}", timed="publish"):
                await self.publisher.publish(self.team, step)

    async def save(self) -> None:
        """Make everything up to this step durable, as one checkpoint."""
        with self.control.doing("writes a checkpoint", timed="checkpoint"):
            await self.store.sync()
            await self.intake.roll_log()
            state = self.progress.state(self.intake.first_segment_needed)
            export = partial(self.publisher.export, self.team, self.progress.step)
            await self.checkpoints.save(self.team, state, self._commit, export)
            await self.intake.drop_segments(self.checkpoints.first_segment_needed())
        self.saved = self.progress.checkpoint_name

    @property
    def is_saved(self) -> bool:
        """Whether there is a checkpoint of this moment."""
        return self.saved == self.progress.checkpoint_name

    @property
    def is_ahead(self) -> bool:
        """Whether the policy is ahead of what all checkpoints hold."""
        return self.progress.step > 0 and not self.is_saved and not self.progress.is_replayed

    async def _commit(self) -> None:
        """The fence: a superseded attempt stops here, before its checkpoint counts."""
        await self.attempt.update(attempts_since_checkpoint=0, failures=0, error=None)
