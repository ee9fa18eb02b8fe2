"""Shaping and filtering: the reward of a response, and which groups have a signal."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from services.learner.algorithms.advantages import Advantage, GroupScores

SIGNAL = 1e-6


def unbounded_overlong_penalty(
    lengths: Tensor, *, limit: int, buffer: int, factor: float = 1.0
) -> Tensor:
    """The linear part of the soft overlong punishment, at most 0, [group]; as verl has it.

    Args:
        lengths: [group], generated tokens, the end of sequence included.
        limit: L_max, where the punishment reaches ``-factor``.
        buffer: L_cache, the tokens before the limit over which it grows.
        factor: the punishment at the limit.
    """
    remaining = (limit - buffer) - lengths.double()
    return (remaining / buffer * factor).clamp(max=0.0)


def overlong_penalty(lengths: Tensor, *, limit: int, buffer: int, factor: float = 1.0) -> Tensor:
    """DAPO's soft overlong punishment, [group], in [-factor, 0] (arXiv:2503.14476, equation 13).

    >>> overlong_penalty(torch.tensor([16384, 18432, 20480, 30000]), limit=20480, buffer=4096)
    tensor([ 0.0000, -0.5000, -1.0000, -1.0000], dtype=torch.float64)
    """
    penalty = unbounded_overlong_penalty(lengths, limit=limit, buffer=buffer, factor=factor)
    return penalty.clamp(min=-factor)


def outcome_rewards(accuracy: Tensor, values: tuple[float, float]) -> Tensor:
    """Return the rewards of accuracies in [0, 1]; 0 and 1 have the rewards ``values``, [group]."""
    wrong, right = values
    return wrong + accuracy * (right - wrong)


def accuracy_varies(scores: GroupScores) -> bool:
    """DAPO's rule of dynamic sampling (arXiv:2503.14476, equation 11): neither all right nor wrong.

    Used if a critic estimates the advantages. A lone response varies, an empty group does not.
    """
    if len(scores) < 2:
        return len(scores) == 1
    return bool(scores.outcome.max() - scores.outcome.min() > SIGNAL)


def has_signal(scores: GroupScores, advantage: Advantage) -> bool:
    """Whether a group has a signal: without punishments its advantages are not all 0.

    So all-correct groups count if their process scores differ, as PAPO needs. A difference in
    accuracy that leaves the advantages at 0 does not count, nor does an overlong punishment.
    """
    unshaped = replace(scores, penalty=torch.zeros_like(scores.penalty))
    return bool((advantage(unshaped).abs() > SIGNAL).any())
