"""Value pretraining: the critic learns alone before the policy moves (VC-PPO, arXiv:2503.01491).

Its groups are sampled like training's, under version 0, and have numbers and a ledger of their own.
Whatever they hold is learned from: a critic needs no contrast within a group.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.messages import Doing, PretrainMetrics
from protocol.recipe import Purpose

from services.learner.attempt import as_json
from services.learner.durable.checkpoint import write_whole
from services.learner.job.learning import Learning
from services.learner.job.limits import check_finite, check_lost
from services.learner.supply.feeder import Feeder
from services.learner.supply.selection import Lookahead, used
from services.learner.training.samples import GroupFacts, build_samples
from services.learner.training.scoring import ScoredGroup


@dataclass
class Pretraining:
    """The critic's steps before the policy's first, all of them or until it explains enough."""

    learning: Learning
    feeder: Feeder

    @property
    def is_due(self) -> bool:
        return self._left > 0

    @property
    def _left(self) -> int:
        """Steps that may follow: none once the critic explains as much as the recipe wants."""
        progress, critic = self.learning.progress, self.learning.recipe.critic
        if critic is None or progress.explains(critic.pretrain_until):
            return 0
        return critic.pretrain_steps - progress.pretrained

    async def advance(self) -> None:
        """Consumes one step's groups, sampled under version 0; produces a better critic."""
        began, learning, progress = time.monotonic(), self.learning, self.learning.progress
        numbers = self._admit(progress.pretrained)
        groups = await learning.groups(Purpose.PRETRAIN, numbers)
        await check_lost(learning, groups, f"pretrain step {progress.pretrained}")
        scored = [ScoredGroup(group, learning.scoring) for group in groups]
        samples, facts = build_samples(
            used(scored), attempt=learning.attempt.number, version=progress.step
        )
        step = progress.pretrained + 1
        with learning.control.doing(Doing.PRETRAINS, step, timed="pretrain"):
            measured = await learning.team.pretrain(samples)
        await learning.settle(Purpose.PRETRAIN, scored, measured.tokens)
        progress.note_pretraining(measured.metrics)
        if not self.is_due:
            await learning.drop_ahead(self.feeder)
        await self._report(facts, measured.metrics, time.monotonic() - began)
        await self._keep()
        moment = f"pretrain step {progress.pretrained}"
        await check_finite(learning, moment, measured.metrics)
        learning.lap()

    def _admit(self, step: int) -> range:
        """Ask for all steps that are left, as far as may be in flight; returns this one's numbers.

        Args:
            step: counted from 0.
        """
        recipe = self.learning.recipe
        groups = recipe.training.groups_per_step
        lookahead = Lookahead(
            step=0,
            position=step * groups,
            needs=(self._left * groups,),
            limit=recipe.groups_in_flight,
        )
        self.feeder.admit(lookahead)
        return range(step * groups, (step + 1) * groups)

    async def _report(
        self, facts: GroupFacts, metrics: Mapping[str, float], seconds: float
    ) -> None:
        learning, step = self.learning, self.learning.progress.pretrained
        data = {
            **metrics,
            **facts.throughput(seconds, learning.team.num_ranks),
            **learning.progress.note_phases(learning.phase_seconds()),
            "pretrain_step": step,
            "groups": await learning.account_of(Purpose.PRETRAIN),
        }
        message = f"pretrain step {step}"
        for name in ("value_loss", "explained_variance"):
            if name in metrics:
                message += f"  {name.replace('_', ' ')} {metrics[name]:.3f}"
        if not self.is_due and step < learning.recipe.num_pretrain_steps:
            message += "  that is enough"
        await learning.attempt.say(
            f"pretrain:{step}", message, data=PretrainMetrics(**as_json(data))
        )

    async def _keep(self) -> None:
        """Save a checkpoint if one is due, and in the end the critic for other recipes."""
        learning, attempt = self.learning, self.learning.attempt
        every = learning.recipe.training.checkpoint_every
        if not self.is_due:
            folder = attempt.folder / "critic-pretrained"
            await write_whole(folder, learning.team.export_critic, attempt=attempt.number)
        if not self.is_due or learning.progress.pretrained % every == 0:
            await learning.versions.begin_save()
