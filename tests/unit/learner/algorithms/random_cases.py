"""Scores of a group and random responses, as the formulas take them."""

from __future__ import annotations

import math
from random import Random

import torch
from torch import Tensor

from services.learner.algorithms.advantages import GroupScores
from services.learner.algorithms.loss import TokenBatch


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scores(
    outcome: list[float],
    process: list[float | None] | None = None,
    penalty: list[float] | None = None,
    dtype: torch.dtype = torch.float64,
) -> GroupScores:
    """Return a group where an outcome of 1 is correct and None is a missing process score."""
    outcomes = torch.tensor(outcome, dtype=dtype)
    processes = torch.full_like(outcomes, math.nan)
    for index, score in enumerate(process or []):
        if score is not None:
            processes[index] = score
    return GroupScores(
        outcome=outcomes,
        correct=outcomes == 1,
        process=processes,
        penalty=torch.tensor(penalty or [0.0] * len(outcome), dtype=dtype),
        checks=((outcomes, 1.0), (processes, 1.0)),
        penalty_weight=1.0,
    )


def random_responses(random: Random, num_responses: int = 6) -> TokenBatch:
    """Responses of 1 to 40 tokens whose probabilities moved by up to a factor of 10."""
    lengths = torch.tensor([random.randint(1, 40) for _ in range(num_responses)])
    sequence = torch.arange(num_responses).repeat_interleave(lengths)

    def draw(low: float, high: float) -> Tensor:
        return double([random.uniform(low, high) for _ in sequence])

    spread = random.choice((0.05, 0.5, 2.3))
    logprobs = draw(-5.0, 0.0)
    return TokenBatch(logprobs, logprobs + draw(-spread, spread), draw(-2.5, 2.5), sequence)
