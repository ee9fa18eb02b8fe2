"""Scoring: what a recipe makes of a group's grades, each part of it computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

import numpy as np
import torch
from protocol.messages import FinishReason, Grade, Graded, GradedGroup, Response, Score
from protocol.recipe import Recipe, Reward
from protocol.rewards import Check
from protocol.samples import USED
from torch import Tensor

from services.learner.algorithms import pick
from services.learner.algorithms.advantages import (
    ADVANTAGES,
    OVER_STEP,
    REWARDS,
    TERMS,
    GroupScores,
)
from services.learner.algorithms.gae import CRITIC_ADVANTAGES
from services.learner.algorithms.shaping import (
    accuracy_varies,
    has_signal,
    outcome_rewards,
    overlong_penalty,
)


@dataclass(frozen=True)
class Scoring:
    reward: Reward
    max_tokens: int
    advantage: Callable[[GroupScores], Tensor]
    terms: Callable[[GroupScores], tuple[Tensor, Tensor]] | None = (
        None  # of the outcome, of process
    )
    rewards: Callable[[GroupScores], Tensor] = attrgetter("reward")  # which the advantage compares
    over_step: Callable[[Tensor, Tensor], Tensor] | None = None  # of advantages and rewards

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
        over_step = pick(OVER_STEP, name, settings) if name in OVER_STEP else None
        advantage = pick(ADVANTAGES, name, settings)
        return cls(recipe.reward, max_tokens, advantage, terms, rewards, over_step)

    @property
    def without_advantage(self) -> Scoring:
        """For responses that are compared and not trained on: all of them, with advantage 0."""
        reward = self.reward.model_copy(update={"overlong_filter": False})
        untrained = replace(self, reward=reward, terms=None, over_step=None)
        return replace(untrained, advantage=_left_to_the_critic)

    @property
    def gives_advantages(self) -> bool:
        """Whether there is one per response; else a critic estimates it, or nothing is trained."""
        return self.advantage is not _left_to_the_critic

    def scores(self, grades: Sequence[Grade], lengths: Sequence[int]) -> GroupScores:
        """A group's grades as tensors; every outcome must be a value.

        Args:
            grades: one per response.
            lengths: the policy's own tokens of each response: others are not its to shorten.
        """
        accuracy = torch.tensor([grade.accuracy for grade in grades], dtype=torch.float64)
        process = [math.nan if g.process_score is None else g.process_score for g in grades]
        return GroupScores(
            outcome=outcome_rewards(accuracy, self.reward.values),
            correct=torch.tensor([grade.is_right for grade in grades], dtype=torch.bool),
            process=torch.tensor(process, dtype=torch.float64),
            penalty=self._penalty(torch.tensor(lengths, dtype=torch.float64)),
            checks=tuple(self._checks(grades)),
            penalty_weight=self.reward.overlong_factor,
        )

    def _checks(self, grades: Sequence[Grade]) -> Iterator[tuple[Tensor, float]]:
        """What each check gave, [group], and its weight; a formula's checks are one."""
        outcomes, reward = [grade.outcome for grade in grades], self.reward
        yield from _by_check(outcomes, reward.outcome, whole=reward.formula is not None)
        yield from _by_check([grade.process for grade in grades], reward.process)

    def _penalty(self, lengths: Tensor) -> Tensor:
        buffer = self.reward.overlong_buffer
        if buffer is None:
            return torch.zeros_like(lengths)
        factor = self.reward.overlong_factor
        return overlong_penalty(lengths, limit=self.max_tokens, buffer=buffer, factor=factor)


def _by_check(
    scores: Sequence[Score | None], checks: Sequence[Check], *, whole: bool = False
) -> Iterator[tuple[Tensor, float]]:
    if whole or len(checks) == 1:  # a lone check's score has no label
        values = [s.value if isinstance(s, Graded) else math.nan for s in scores]
        yield torch.tensor(values, dtype=torch.float64), checks[0].weight
        return
    labelled = [s.breakdown if isinstance(s, Graded) else {} for s in scores]
    for check in checks:
        values = [each.get(check.label, math.nan) for each in labelled]
        yield torch.tensor(values, dtype=torch.float64), check.weight


def _left_to_the_critic(scores: GroupScores) -> Tensor:
    """Zeros, [group]: the advantages of such a recipe are estimated per token, by the learner."""
    return torch.zeros_like(scores.outcome)


@dataclass
class ScoredGroup:
    """A graded group, and what a recipe makes of it; each value is computed when first read.

    The arrays over responses are [group]: float64, NaN where a response has no such value.
    """

    graded: GradedGroup
    scoring: Scoring
    fate: str = USED  # or why it is dropped

    def __post_init__(self) -> None:
        if self.graded.failure is not None:
            self.fate = self.graded.failure.kind

    @property
    def responses(self) -> Sequence[Response]:
        return () if self.graded.group is None else self.graded.group.responses

    @cached_property
    def is_graded(self) -> np.ndarray:
        return np.array([grade.accuracy is not None for grade in self.graded.grades], dtype=bool)

    @cached_property
    def in_loss(self) -> np.ndarray:
        """Which responses become samples, bool: those with an outcome that no filter leaves out."""
        if not self.scoring.reward.overlong_filter:
            return self.is_graded
        ended = [response.finish_reason is not FinishReason.LENGTH for response in self.responses]
        return self.is_graded & np.array(ended, dtype=bool)

    @cached_property
    def scores(self) -> GroupScores:
        grades = [grade for grade in self.graded.grades if grade.accuracy is not None]
        rollout = self.graded.group
        lengths = [] if rollout is None else rollout.own_lengths[self.is_graded].tolist()
        return self.scoring.scores(grades, lengths)

    @cached_property
    def rewards(self) -> np.ndarray:
        """What the advantage compares; NaN too where it leaves a response out."""
        return self._over_group(self.scoring.rewards(self.scores), self.is_graded)

    @cached_property
    def advantages(self) -> np.ndarray:
        """Of the responses in the loss, each that of all its tokens; 0 where a critic estimates."""
        return self._over_group(self._advantages, self.in_loss)

    @cached_property
    def outcome_advantages(self) -> np.ndarray:
        """The part of the advantages that the outcome makes, if they are such a sum."""
        return self._over_group(self._terms and self._terms[0], self.in_loss)

    @cached_property
    def process_advantages(self) -> np.ndarray:
        """The part that the process makes, before its weight."""
        return self._over_group(self._terms and self._terms[1], self.in_loss)

    @property
    def active_process(self) -> int:
        """How many responses have an advantage of the process other than 0."""
        return int((self._terms[1] != 0).sum()) if self._terms else 0

    @cached_property
    def has_signal(self) -> bool:
        """Whether it has anything to teach; a group that lost all but one response has not."""
        if len(self.scores) < min(2, len(self.graded.grades)):
            return False
        if not self.scoring.gives_advantages:
            return accuracy_varies(self.scores)
        return has_signal(self.scores, self._advantage_of)

    def _advantage_of(self, scores: GroupScores) -> Tensor:
        """Without a punishment in the group its own advantages are those without any."""
        return self.scoring.advantage(scores) if self.scores.penalty.any() else self._advantages

    @cached_property
    def _advantages(self) -> Tensor:
        return self.scoring.advantage(self.scores)

    @cached_property
    def _terms(self) -> tuple[Tensor, Tensor] | None:
        return None if self.scoring.terms is None else self.scoring.terms(self.scores)

    def _over_group(self, values: Tensor | None, kept: np.ndarray) -> np.ndarray:
        spread = np.full(kept.shape, math.nan)
        if values is not None:
            spread[self.is_graded] = values
        return np.where(kept, spread, math.nan)
