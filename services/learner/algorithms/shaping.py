"""Shaping and filtering: what a response pays, and which groups have anything to teach."""

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
        buffer: L_cache, over so many tokens before the limit it grows.
        factor: the punishment at the limit.
    """
    left = (limit - buffer) - lengths.double()
    return (left / buffer * factor).clamp(max=0.0)


def overlong_penalty(lengths: Tensor, *, limit: int, buffer: int, factor: float = 1.0) -> Tensor:
    """DAPO's soft overlong punishment, [group], in [-factor, 0] (arXiv:2503.14476, equation 13).

    >>> overlong_penalty(torch.tensor([16384, 18432, 20480, 30000]), limit=20480, buffer=4096)
    tensor([ 0.0000, -0.5000, -1.0000, -1.0000], dtype=torch.float64)
    """
    penalty = unbounded_overlong_penalty(lengths, limit=limit, buffer=buffer, factor=factor)
    return penalty.clamp(min=-factor)


def outcome_rewards(accuracy: Tensor, values: tuple[float, float]) -> Tensor:
    """What raw accuracies in [0, 1] pay when a wrong and a right answer pay ``values``, [group]."""
    wrong, right = values
    return wrong + accuracy * (right - wrong)


def accuracy_varies(scores: GroupScores) -> bool:
    """DAPO's rule of dynamic sampling (arXiv:2503.14476, equation 11): neither all right nor wrong.

    It decides where a critic estimates the advantages. A lone response is kept: it has no group to
    differ from. An empty group does not vary.
    """
    if len(scores) < 2:
        return len(scores) == 1
    return bool(scores.outcome.max() - scores.outcome.min() > SIGNAL)


def has_signal(scores: GroupScores, advantage: Advantage) -> bool:
    """Whether a group teaches anything: its advantages are not all 0 without any punishment.

    So all-correct groups count where their process differs, which is where PAPO works; accuracy
    that the advantage makes nothing of does not count, nor does an overlong punishment.
    """
    unshaped = replace(scores, penalty=torch.zeros_like(scores.penalty))
    return bool((advantage(unshaped).abs() > SIGNAL).any())
