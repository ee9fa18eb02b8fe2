"""Advantages: how much better than its group was each response?

Every function maps a group's scores to one advantage per response, which then holds for each of the
response's tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-6


@dataclass(frozen=True)
class GroupScores:
    """The scores of one group of G responses to the same task."""

    outcome: Tensor  # [group] float, the reward
    correct: Tensor  # [group] bool, from raw accuracy, never from a shaped reward
    process: Tensor  # [group] float, NaN where there is no process score

    def __len__(self) -> int:
        return self.outcome.shape[0]


Advantage = Callable[[GroupScores], Tensor]


def standardized(values: Tensor) -> Tensor:
    """(x - mean) / (std + eps) with the sample std, [n] to [n].

    Zeros if the std is at most eps, and for fewer than two values, which have no sample std.
    """
    if values.shape[0] < 2:
        return torch.zeros_like(values)
    std = values.std(unbiased=True)
    if std <= EPS:
        return torch.zeros_like(values)
    return (values - values.mean()) / (std + EPS)


def grpo(scores: GroupScores) -> Tensor:
    """Group-relative advantage, [group]: DeepSeekMath (arXiv:2402.03300), section 4.1.2."""
    return standardized(scores.outcome)


def papo(scores: GroupScores, *, lambda_process: float = 1.0) -> Tensor:
    """Process-aware advantage, [group]: PAPO (arXiv:2603.26535).

    ``A = A_out + lambda * A_proc``: A_out standardizes the outcome over the group, A_proc the
    process scores over its correct responses only. A response that is wrong, or has no process
    score, has A_proc = 0 and does not enter the statistics. The paper has lambda = 1 and divides by
    max(std, eps); this follows its released code, which differs by less than 1e-5.
    """
    judged = scores.correct & ~scores.process.isnan()
    process = torch.zeros_like(scores.outcome)
    process[judged] = standardized(scores.process[judged])
    return standardized(scores.outcome) + lambda_process * process


def order_safe_lambda(group_size: int) -> float:
    """The largest lambda for which PAPO never ranks a correct response below a wrong one.

    With n of G responses correct, a wrong one lies ``1 / std_out`` below the correct ones in A_out,
    and A_proc is at least ``-(n - 1) / sqrt(n)`` (Samuelson's inequality); the bound is the
    smallest ratio of the two over n.

    >>> [round(order_safe_lambda(size), 3) for size in (4, 8, 16, 64)]
    [1.732, 1.058, 0.693, 0.33]
    """
    size = float(group_size)
    bounds = (
        (size * (size - 1) / (n * (size - n))) ** 0.5 * n**0.5 / (n - 1)
        for n in range(2, group_size)
    )
    return min(bounds, default=float("inf"))


ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    "grpo": grpo,
    "papo": papo,
}
