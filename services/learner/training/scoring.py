"""Scoring: rewards and advantages of a group's grades by a recipe, each computed once."""

from __future__ import annotations

import math
from collections import Counter
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
    # The terms of outcome and process.
    terms: Callable[[GroupScores], tuple[Tensor, Tensor]] | None = None
    rewards: Callable[[GroupScores], Tensor] = attrgetter("reward")  # that the advantage compares
    over_step: Callable[[Tensor, Tensor], Tensor] | None = None  # of advantages and rewards

    @classmethod
    def of(cls, recipe: Recipe) -> Scoring:
        """Return the formulas of a recipe.

        Raises:
            UnknownName: if the advantage is in an extension that is not loaded.
        """
        name = recipe.algorithm.advantage
        settings = recipe.algorithm.model_dump()
        max_tokens = recipe.rollout.sampling.max_tokens
        if name in CRITIC_ADVANTAGES:
            return cls(recipe.reward, max_tokens, _zero_advantages)
        terms = pick(TERMS, name, settings) if name in TERMS else None
        rewards = REWARDS.get(name, cls.rewards)
        over_step = pick(OVER_STEP, name, settings) if name in OVER_STEP else None
        advantage = pick(ADVANTAGES, name, settings)
        return cls(recipe.reward, max_tokens, advantage, terms, rewards, over_step)

    @property
    def comparison_only(self) -> Scoring:
        """The scoring of responses that are not trained on: advantage 0, without filters."""
        reward = self.reward.model_copy(update={"overlong_filter": False})
        untrained = replace(self, reward=reward, terms=None, over_step=None)
        return replace(untrained, advantage=_zero_advantages)

    @property
    def gives_advantages(self) -> bool:
        """Whether responses have advantages; else a critic estimates them, or none are needed."""
        return self.advantage is not _zero_advantages

    def scores(self, grades: Sequence[Grade], lengths: Sequence[int]) -> GroupScores:
        """Return a group's grades as tensors; every outcome must be a value.

        Args:
            grades: one per response.
            lengths: the policy's own tokens of each response.
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
        """Yield the scores of each check, [group], and its weight; a formula is a single check."""
        outcomes = [grade.outcome for grade in grades]
        processes = [grade.process for grade in grades]
        has_formula = self.reward.formula is not None
        yield from _split_checks(outcomes, self.reward.outcome, whole=has_formula)
        yield from _split_checks(processes, self.reward.process)

    def _penalty(self, lengths: Tensor) -> Tensor:
        buffer = self.reward.overlong_buffer
        if buffer is None:
            return torch.zeros_like(lengths)
        factor = self.reward.overlong_factor
        return overlong_penalty(lengths, limit=self.max_tokens, buffer=buffer, factor=factor)


def _split_checks(
    scores: Sequence[Score | None], checks: Sequence[Check], *, whole: bool = False
) -> Iterator[tuple[Tensor, float]]:
    if whole or len(checks) == 1:  # the score of a single check has no label
        values = [score.value if isinstance(score, Graded) else math.nan for score in scores]
        yield torch.tensor(values, dtype=torch.float64), checks[0].weight
        return
    labelled = [score.breakdown if isinstance(score, Graded) else {} for score in scores]
    for check in checks:
        values = [values_by_label.get(check.label, math.nan) for values_by_label in labelled]
        yield torch.tensor(values, dtype=torch.float64), check.weight


def _zero_advantages(scores: GroupScores) -> Tensor:
    """Return zeros, [group]: a critic estimates advantages per token later."""
    return torch.zeros_like(scores.outcome)


@dataclass
class ScoredGroup:
    """A graded group with rewards and advantages by a recipe, computed at the first read.

    The arrays over responses are [group] float64, NaN if a response has no such value.
    """

    graded: GradedGroup
    scoring: Scoring
    fate: str = USED  # or the reason to drop it

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
    def has_loss(self) -> np.ndarray:
        """Whether a response becomes a sample, bool: graded, and not filtered."""
        if not self.scoring.reward.overlong_filter:
            return self.is_graded
        ended = [response.finish_reason is not FinishReason.LENGTH for response in self.responses]
        return self.is_graded & np.array(ended, dtype=bool)

    def count_tokens(self) -> Counter[str]:
        """Count the policy's tokens: sampled = trained + dropped/REASON; judged are graded.

        The reason is the fate of the group, or that of a response in a group that is used.
        """
        counts = Counter[str]()
        if self.graded.group is None:
            return counts
        graded = np.zeros(len(self.responses), dtype=bool)
        graded[: len(self.graded.grades)] = self.is_graded
        for place, length in enumerate(self.graded.group.policy_lengths.tolist()):
            fate = f"dropped/{self.fate}"
            if self.fate == USED:
                lost = "filtered" if graded[place] else "ungradable"
                fate = "trained" if self.has_loss[place] else f"dropped/{lost}"
            counts.update({"sampled": length, "judged": length * int(graded[place]), fate: length})
        return counts

    @cached_property
    def scores(self) -> GroupScores:
        grades = [grade for grade in self.graded.grades if grade.accuracy is not None]
        rollout = self.graded.group
        lengths = [] if rollout is None else rollout.policy_lengths[self.is_graded].tolist()
        return self.scoring.scores(grades, lengths)

    @cached_property
    def rewards(self) -> np.ndarray:
        """The rewards that the advantage compares; NaN if it leaves a response out."""
        return self._over_group(self.scoring.rewards(self.scores), self.is_graded)

    @cached_property
    def advantages(self) -> np.ndarray:
        """The advantages of responses in the loss, for all their tokens; 0 with a critic."""
        return self._over_group(self._advantages, self.has_loss)

    @cached_property
    def outcome_advantages(self) -> np.ndarray:
        """The term of the outcome, if the advantage has terms."""
        return self._over_group(self._terms and self._terms[0], self.has_loss)

    @cached_property
    def process_advantages(self) -> np.ndarray:
        """The term of the process, without its weight."""
        return self._over_group(self._terms and self._terms[1], self.has_loss)

    @property
    def active_process(self) -> int:
        """The number of responses with a nonzero term of the process."""
        return int((self._terms[1] != 0).sum()) if self._terms else 0

    @cached_property
    def has_signal(self) -> bool:
        """Whether it has a signal; a group that lost all but one response has none."""
        if len(self.scores) < min(2, len(self.graded.grades)):
            return False
        if not self.scoring.gives_advantages:
            return accuracy_varies(self.scores)
        return has_signal(self.scores, self._compute_advantage)

    def _compute_advantage(self, scores: GroupScores) -> Tensor:
        """Reuse the group's advantages if it has no punishments."""
        return self.scoring.advantage(scores) if self.scores.penalty.any() else self._advantages

    @cached_property
    def _advantages(self) -> Tensor:
        return self.scoring.advantage(self.scores)

    @cached_property
    def _terms(self) -> tuple[Tensor, Tensor] | None:
        return None if self.scoring.terms is None else self.scoring.terms(self.scores)

    def _over_group(self, values: Tensor | None, mask: np.ndarray) -> np.ndarray:
        spread = np.full(mask.shape, math.nan)
        if values is not None:
            spread[self.is_graded] = values
        return np.where(mask, spread, math.nan)
