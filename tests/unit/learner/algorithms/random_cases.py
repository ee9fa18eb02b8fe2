"""Random groups and responses: of all sizes, with gaps, with scores missing, with all equal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from services.learner.algorithms.advantages import GroupScores
from services.learner.algorithms.gae import Episodes
from services.learner.algorithms.loss import TokenBatch
from tests.unit.learner.algorithms.reference import Group

TIERS = (
    (0.0, 0.5, 1.0),
    (0.0, 0.2, 0.8, 1.0),
    (0.3,),
)


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_group(random: Random) -> Group:
    """A group of 1 to 64, right or wrong by chance, with or without punishments."""
    size = random.randint(1, 64)
    accuracy = random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    wrong, right = random.choice(((0.0, 1.0), (-1.0, 1.0), (0.1, 0.7)))
    correct = [random.random() < accuracy for _ in range(size)]
    tiers, missing = random.choice((*TIERS, None)), random.choice((0.0, 0.2, 1.0))
    only_correct, punished = random.random() < 0.5, random.random() < 0.5

    def score(is_correct: bool) -> float | None:
        if random.random() < missing or (only_correct and not is_correct):
            return None
        return random.random() if tiers is None else random.choice(tiers)

    return Group(
        outcome=[right if is_correct else wrong for is_correct in correct],
        correct=correct,
        process=[score(is_correct) for is_correct in correct],
        penalty=[-random.random() if punished else 0.0 for _ in correct],
        weights=(
            random.random(),
            random.random(),
            random.random(),
        ),
    )


def scores_of(group: Group, dtype: torch.dtype = torch.float64) -> GroupScores:
    """The group as the code under test takes it."""
    of_process = [math.nan if score is None else score for score in group.process]
    outcome, process = (torch.tensor(part, dtype=dtype) for part in (group.outcome, of_process))
    return GroupScores(
        outcome=outcome,
        correct=torch.tensor(group.correct, dtype=torch.bool),
        process=process,
        penalty=torch.tensor(group.penalty, dtype=dtype),
        checks=(
            (outcome, group.weights[0]),
            (process, group.weights[1]),
        ),
        penalty_weight=group.weights[2],
    )


def group_of(
    outcome: list[float],
    process: list[float | None] | None = None,
    penalty: list[float] | None = None,
) -> Group:
    """A group where what pays 1 is correct."""
    return Group(
        outcome=list(outcome),
        correct=[value == 1 for value in outcome],
        process=[None] * len(outcome) if process is None else list(process),
        penalty=[0.0] * len(outcome) if penalty is None else list(penalty),
    )


def scores(*of_group: Any) -> GroupScores:
    """`group_of` as the code under test takes it."""
    return scores_of(group_of(*of_group))


@dataclass
class Responses:
    """Some responses, each a list of tokens, and the same tokens flat."""

    logprobs: list[list[float]]
    old: list[list[float]]
    other: list[list[float]]  # by the sampler, or the reference model
    advantages: list[list[float]]

    @property
    def rows(self) -> Tensor:
        """Which response each token belongs to, [token]."""
        lengths = torch.tensor([len(response) for response in self.logprobs])
        return torch.arange(len(lengths)).repeat_interleave(lengths)

    def batch(self) -> TokenBatch:
        """The tokens as the code under test takes them."""
        parts = (self.logprobs, self.old, self.advantages)
        return TokenBatch(*map(flat, parts), sequence=self.rows)


def flat(responses: list[list[float]]) -> Tensor:
    """All tokens one after another, [token]."""
    return double([token for response in responses for token in response])


def random_responses(random: Random, num_responses: int) -> Responses:
    """Responses of 1 to 40 tokens whose probabilities moved by up to a factor of 10."""

    def drawn(
        lengths: list[int],
        low: float,
        high: float,
    ) -> list[list[float]]:
        return [[random.uniform(low, high) for _ in range(length)] for length in lengths]

    lengths = [random.randint(1, 40) for _ in range(num_responses)]
    spread = random.choice((0.05, 0.5, 2.3))
    logprobs = drawn(lengths, -5.0, 0.0)
    return Responses(
        logprobs=logprobs,
        old=[[lp + random.uniform(-spread, spread) for lp in row] for row in logprobs],
        other=[[lp + random.uniform(-spread, spread) for lp in row] for row in logprobs],
        advantages=drawn(lengths, -2.5, 2.5),
    )


@dataclass
class RandomEpisodes:
    """Episodes in a grid with gaps and padding, whose masked places hold anything."""

    episodes: Episodes
    rewards: list[list[float]]  # of unmasked tokens only
    values: list[list[float]]


def random_episodes(random: Random, num_responses: int) -> RandomEpisodes:
    """Episodes of 0 to 24 tokens; masked places hold large numbers, infinity or NaN."""
    width, density = random.randint(1, 24), random.choice((0.3, 0.8, 1.0))
    ends = [random.randint(0, width) for _ in range(num_responses)]
    mask = [[t < end and random.random() < density for t in range(width)] for end in ends]
    rewards, kept_rewards = _grid(random, mask, 1.0)
    values, kept_values = _grid(random, mask, 2.0)
    episodes = Episodes(
        double(rewards),
        double(values),
        torch.tensor(mask),
    )
    return RandomEpisodes(episodes, kept_rewards, kept_values)


def _grid(
    random: Random, mask: list[list[bool]], scale: float
) -> tuple[list[list[float]], list[list[float]]]:
    """Numbers in a grid, and those of the unmasked places alone."""
    grid: list[list[float]] = []
    kept: list[list[float]] = []
    for ons in mask:
        row = [random.uniform(-scale, scale) for _ in ons]
        kept.append([number for number, on in zip(row, ons, strict=True) if on])
        anything = random.choice((1e6, math.nan, -math.inf))
        grid.append([number if on else anything for number, on in zip(row, ons, strict=True)])
    return grid, kept
