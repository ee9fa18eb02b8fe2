"""Value pretraining: the critic learns before the policy changes (VC-PPO, arXiv:2503.01491).

Its groups are sampled like training's, with version 0, and have separate numbers and a ledger. All
of them are trained on: a critic needs no contrast within a group.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.messages import Doing, PretrainMetrics
from protocol.recipe import Purpose

from services.learner.attempt import to_json
from services.learner.durable.checkpoint import write_whole
from services.learner.job.learning import Learning
from services.learner.job.limits import check_finite, check_lost
from services.learner.supply.feeder import Feeder
from services.learner.supply.selection import Lookahead, used
from services.learner.training.samples import GroupFacts, build_samples
from services.learner.training.scoring import ScoredGroup


@dataclass
class Pretraining:
    """The critic's steps before the policy's first, until it explains enough variance."""

    learning: Learning
    feeder: Feeder

    @property
    def is_due(self) -> bool:
        return self._remaining_steps > 0

    @property
    def _remaining_steps(self) -> int:
        progress = self.learning.progress
        critic = self.learning.recipe.critic
        if critic is None or progress.explains(critic.pretrain_until):
            return 0
        return critic.pretrain_steps - progress.pretrained

    async def advance(self) -> None:
        """Consumes one step's groups, sampled under version 0; produces a better critic."""
        began = time.monotonic()
        learning = self.learning
        progress = learning.progress
        numbers = self._admit(progress.pretrained)
        groups = await learning.receive_groups(Purpose.PRETRAIN, numbers)
        await check_lost(learning, groups, f"pretrain step {progress.pretrained}")
        scored = [ScoredGroup(group, learning.scoring) for group in groups]
        samples, facts = build_samples(
            used(scored), attempt=learning.attempt.number, version=progress.step
        )
        step = progress.pretrained + 1
        with learning.control.during(Doing.PRETRAINS, step, timed="pretrain"):
            measured = await learning.team.pretrain(samples)
        await learning.settle(Purpose.PRETRAIN, scored, measured.tokens)
        progress.note_pretraining(measured.metrics)
        if not self.is_due:
            await learning.withdraw_surplus(self.feeder)
        await self._report(facts, measured.metrics, time.monotonic() - began)
        await self._save()
        await check_finite(learning, f"pretrain step {progress.pretrained}", measured.metrics)
        learning.lap()

    def _admit(self, step: int) -> range:
        """Request the remaining steps, within the groups in flight; return this step's numbers.

        Args:
            step: counted from 0.
        """
        recipe = self.learning.recipe
        groups = recipe.training.groups_per_step
        first = step * groups
        lookahead = Lookahead(
            step=0,
            position=first,
            needs=(self._remaining_steps * groups,),
            limit=recipe.groups_in_flight,
        )
        self.feeder.admit(lookahead)
        return range(first, first + groups)

    async def _report(
        self, facts: GroupFacts, metrics: Mapping[str, float], seconds: float
    ) -> None:
        learning = self.learning
        step = learning.progress.pretrained
        data = {
            **metrics,
            **facts.throughput(seconds, learning.team.num_ranks),
            **learning.progress.note_phases(learning.phase_seconds()),
            "pretrain_step": step,
            "groups": await learning.group_account(Purpose.PRETRAIN),
            "bill": await learning.make_bill(),
        }
        message = f"pretrain step {step}"
        for name in ("value_loss", "explained_variance"):
            if name in metrics:
                message += f"  {name.replace('_', ' ')} {metrics[name]:.3f}"
        if not self.is_due and step < learning.recipe.num_pretrain_steps:
            message += "  it explains enough"
        pretrain_metrics = PretrainMetrics(**to_json(data))
        await learning.attempt.report(f"pretrain:{step}", message, data=pretrain_metrics)

    async def _save(self) -> None:
        """Save a checkpoint if one is due, and at the end the critic for other recipes."""
        learning = self.learning
        is_last = not self.is_due
        if is_last:
            folder = learning.attempt.folder / "critic-pretrained"
            await write_whole(folder, learning.team.export_critic, attempt=learning.attempt.number)
        every = learning.recipe.training.checkpoint_every
        if is_last or learning.progress.pretrained % every == 0:
            await learning.versions.begin_save()
