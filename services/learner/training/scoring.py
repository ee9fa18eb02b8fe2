"""Scoring: how a recipe turns a group's grades into scores, advantages and a signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import torch
from protocol.messages import Grade, GradedGroup
from protocol.recipe import Recipe, Reward
from torch import Tensor

from services.learner.algorithms import pick
from services.learner.algorithms.advantages import ADVANTAGES, REWARDS, TERMS, GroupScores
from services.learner.algorithms.gae import CRITIC_ADVANTAGES
from services.learner.algorithms.shaping import (
    accuracy_varies,
    has_signal,
    outcome_rewards,
    overlong_penalty,
)


@dataclass(frozen=True)
class Scoring:
    """The rewards and the advantage of one recipe."""

    reward: Reward
    max_tokens: int
    advantage: Callable[[GroupScores], Tensor]
    terms: Callable[[GroupScores], tuple[Tensor, Tensor]] | None = (
        None  # of the outcome, of process
    )
    rewards: Callable[[GroupScores], Tensor] = attrgetter("reward")  # which the advantage compares

    @classmethod
    def of(cls, recipe: Recipe) -> Scoring:
        """What a recipe asks for.

        Raises:
            UnknownName: if the advantage is an extension's that this process has not loaded.
        """
        name, settings = recipe.algorithm.advantage, recipe.algorithm.model_dump()
        max_tokens = recipe.rollout.sampling.max_tokens
        if name in CRITIC_ADVANTAGES:
            return cls(recipe.reward, max_tokens, _left_to_the_critic)
        terms = pick(TERMS, name, settings) if name in TERMS else None
        rewards = REWARDS.get(name, cls.rewards)
        return cls(recipe.reward, max_tokens, pick(ADVANTAGES, name, settings), terms, rewards)

    @property
    def without_advantage(self) -> Scoring:
        """For responses that are compared and not trained on: all of them, with advantage 0."""
        reward = self.reward.model_copy(update={"overlong_filter": False})
        return replace(self, reward=reward, advantage=_left_to_the_critic, terms=None)

    @property
    def gives_advantages(self) -> bool:
        """Whether there is one per response; else a critic estimates it, or nothing is trained."""
        return self.advantage is not _left_to_the_critic

    def scores(self, grades: Sequence[Grade], lengths: Sequence[int]) -> GroupScores:
        """A group's grades as tensors; every outcome must be a value.

        Args:
            grades: one per response.
            lengths: tokens of each response.
        """
        accuracy = torch.tensor([grade.accuracy for grade in grades], dtype=torch.float64)
        process = [math.nan if g.process_score is None else g.process_score for g in grades]
        return GroupScores(
            outcome=outcome_rewards(accuracy, self.reward.values),
            correct=accuracy == 1.0,
            process=torch.tensor(process, dtype=torch.float64),
            penalty=self._penalty(torch.tensor(lengths, dtype=torch.float64)),
        )

    def has_signal(self, graded: GradedGroup) -> bool:
        """Whether the group has anything to teach; one that lost all but one response has not."""
        grades, lengths = gradable(graded)
        if len(grades) < min(2, len(graded.grades)):
            return False
        scores = self.scores(grades, lengths)
        if self.gives_advantages:
            return has_signal(scores, self.advantage)
        return accuracy_varies(scores)

    def active_process(self, scores: GroupScores) -> int:
        """How many of a group's responses have an A_proc other than 0, of advantages with terms."""
        return 0 if self.terms is None else int((self.terms(scores)[1] != 0).sum())

    def _penalty(self, lengths: Tensor) -> Tensor:
        buffer = self.reward.overlong_buffer
        if buffer is None:
            return torch.zeros_like(lengths)
        factor = self.reward.overlong_factor
        return overlong_penalty(lengths, limit=self.max_tokens, buffer=buffer, factor=factor)


def gradable(graded: GradedGroup) -> tuple[list[Grade], list[int]]:
    """The grades whose outcome is a value, and the lengths of their responses in tokens."""
    assert graded.group is not None
    pairs = zip(graded.grades, graded.group.lengths.tolist(), strict=True)
    kept = [(grade, length) for grade, length in pairs if grade.accuracy is not None]
    return [grade for grade, _ in kept], [length for _, length in kept]


def _left_to_the_critic(scores: GroupScores) -> Tensor:
    """Zeros, [group]: the advantages of such a recipe are estimated per token, by the learner."""
    return torch.zeros_like(scores.outcome)
