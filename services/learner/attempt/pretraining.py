"""Value pretraining: the critic learns alone before the policy moves (VC-PPO, arXiv:2503.01491).

Its groups are sampled like training's, under version 0, and have numbers and a ledger of their own.
Whatever they hold is learned from: a critic needs no contrast within a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from protocol.recipe import Recipe

from services.learner.durable.checkpoint import write_whole
from services.learner.supply.feeder import Feeder
from services.learner.supply.selection import Outlook
from services.learner.training.ranks import Team


@dataclass
class Pretraining:
    """The critic's steps before the policy's first."""

    recipe: Recipe
    feeder: Feeder
    critic_folder: Path  # where the pretrained critic goes

    def is_due(self, pretrained: int) -> bool:
        """Whether the critic has to learn on after so many steps."""
        return pretrained < self.recipe.num_pretrain_steps

    def numbers_of(self, step: int) -> range:
        """The numbers of the groups of one of the critic's steps."""
        groups = self.recipe.training.groups_per_step
        return range(step * groups, (step + 1) * groups)

    def admit(self, pretrained: int) -> None:
        """Ask for the groups of all steps that are left, as far as they may be in flight."""
        position = self.numbers_of(pretrained).start
        left = self.numbers_of(self.recipe.num_pretrain_steps).start - position
        needs, most = (left,), self.recipe.groups_in_flight
        self.feeder.admit(Outlook(step=0, position=position, needs=needs, most=most))

    async def keep_critic(self, team: Team) -> None:
        """Write the pretrained critic as a folder that other recipes can start from."""
        await write_whole(self.critic_folder, team.export_critic, attempt=self.feeder.attempt)
