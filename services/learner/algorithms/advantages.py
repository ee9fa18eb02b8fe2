"""Advantages: how much better than its group was each response?

Every function maps a group's scores to one advantage per response, which then holds for each of the
response's tokens. A response whose reward is missing (NaN) takes no part: its advantage is 0, and it
enters no statistic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-6
TRL_EPS = 1e-4


@dataclass(frozen=True)
class GroupScores:
    """The scores of one group of G responses to the same task. All tensors are [group]."""

    outcome: Tensor  # float, what the raw outcome pays, for example 0 or 1, or -1 or 1
    correct: Tensor  # bool, from raw accuracy, never from a shaped reward
    process: Tensor  # float in [0, 1], NaN where there is no process score
    penalty: Tensor  # float, at most 0: the punishment of an overlong response

    def __len__(self) -> int:
        return self.outcome.shape[0]

    @property
    def reward(self) -> Tensor:
        """The shaped reward, [group]."""
        return self.outcome + self.penalty


Advantage = Callable[[GroupScores], Tensor]


def standardized(
    values: Tensor, *, ddof: int = 1, denominator: str = "add", std_eps: float = EPS
) -> Tensor:
    """(x - mean) / divisor, [n] to [n]; zeros for n < 2, and where the std is at most ``std_eps``.

    Args:
        ddof: 1 for the sample std, 0 for that of the population.
        denominator: ``add`` divides by std + eps, ``max`` by max(std, eps), ``none`` not at all.
    """
    if values.shape[0] < 2:
        return torch.zeros_like(values)
    std = values.std(correction=ddof)
    if std <= std_eps:
        return torch.zeros_like(values)
    divisors = {"add": std + std_eps, "max": std, "none": torch.ones_like(std)}
    return (values - values.mean()) / divisors[denominator]


def standardized_as_verl(values: Tensor) -> Tensor:
    """verl's convention, [n] to [n]: sample std + 1e-6, and a lone value is kept as it is."""
    if values.shape[0] == 1:
        return values / (1 + EPS)
    return (values - values.mean()) / (values.std(correction=1) + EPS)


def grpo(
    scores: GroupScores, *, ddof: int = 1, denominator: str = "add", std_eps: float = EPS
) -> Tensor:
    """Group-relative advantage, [group]: DeepSeekMath (arXiv:2402.03300), section 4.1.2.

    The paper writes (r - mean) / std and states neither ddof nor eps.
    """
    return standardized(scores.reward, ddof=ddof, denominator=denominator, std_eps=std_eps)


def grpo_trl(scores: GroupScores) -> Tensor:
    """GRPO as TRL computes it, [group]: (r - mean) / (sample std + 1e-4)."""
    rewards = scores.reward
    return (rewards - rewards.mean()) / (rewards.std(correction=1) + TRL_EPS)


def grpo_verl(scores: GroupScores) -> Tensor:
    """GRPO as verl computes it, [group]: (r - mean) / (sample std + 1e-6), r / (1 + 1e-6) alone."""
    return standardized_as_verl(scores.reward)


def dr_grpo(scores: GroupScores) -> Tensor:
    """r - mean, [group]: Dr. GRPO (arXiv:2503.20783), section 3.2; no division by the std."""
    return scores.reward - scores.reward.mean()


def rloo(scores: GroupScores) -> Tensor:
    """r minus the mean of the others, [group]: REINFORCE leave-one-out (arXiv:2402.14740)."""
    rewards, others = scores.reward, len(scores) - 1
    return rewards - (rewards.sum() - rewards) / others


def papo(
    scores: GroupScores,
    *,
    lambda_process: float = 1.0,
    ddof: int = 1,
    denominator: str = "add",
    std_eps: float = EPS,
) -> Tensor:
    """Process-aware advantage, [group]: PAPO (arXiv:2603.26535).

    ``A = A_out + lambda * A_proc``: A_out standardizes the reward over the group, A_proc the
    process scores over its correct responses only. A response that is wrong, or has no process
    score, has A_proc = 0 and does not enter the statistics. The paper has lambda = 1 and divides by
    max(std, eps); its released code, the default here, divides by std + eps: less than 1e-5 apart.
    """

    def normalize(values: Tensor) -> Tensor:
        return standardized(values, ddof=ddof, denominator=denominator, std_eps=std_eps)

    judged = scores.correct & ~scores.process.isnan()
    return normalize(scores.reward) + lambda_process * _among(judged, scores.process, normalize)


def papo_full_norm(scores: GroupScores, *, lambda_process: float = 1.0) -> Tensor:
    """PAPO's ablation that normalizes A_proc over the whole group, [group].

    A wrong response counts with a process score of 0; a correct one without a score is left out.
    """
    process = torch.where(scores.correct, scores.process, torch.zeros_like(scores.process))
    judged = ~process.isnan()
    return standardized(scores.reward) + lambda_process * _among(judged, process, standardized)


def multiplicative(scores: GroupScores) -> Tensor:
    """PAPO's ablation with the reward outcome x process, [group], under verl's GRPO.

    A correct response without a process score has no reward, and is left out.
    """
    product = torch.where(scores.correct, scores.outcome * scores.process, scores.outcome)
    return _among(~product.isnan(), product + scores.penalty, standardized_as_verl)


def process_only(scores: GroupScores) -> Tensor:
    """PAPO's ablation whose reward is the process score alone, [group], under verl's GRPO.

    Wrong responses are judged too. A response without a process score is left out.
    """
    return _among(~scores.process.isnan(), scores.process + scores.penalty, standardized_as_verl)


def order_safe_bounds(group_size: int, *, ddof: int = 1) -> dict[int, float]:
    """For each number n of correct responses, the largest lambda that keeps them above the wrong.

    With n of G responses correct, a wrong one lies ``1 / std_out`` below the correct ones in A_out,
    and A_proc is at least ``-(n - 1) / sqrt(n - 1 + (n - 1 if ddof == 0 else 1))`` for one outlier
    among n equal scores (Samuelson's inequality); the bound is the ratio of the two.
    """
    size = group_size
    bounds: dict[int, float] = {}
    for n in range(2, size):
        std_out = (n * (size - n) / (size * (size - ddof))) ** 0.5
        lowest = (n - 1) * ((n - ddof) / (n * (n - 1))) ** 0.5
        bounds[n] = 1 / (std_out * lowest)
    return bounds


def order_safe_lambda(group_size: int, *, ddof: int = 1) -> float:
    """The largest lambda for which PAPO never ranks a correct response below a wrong one.

    >>> [round(order_safe_lambda(size), 3) for size in (4, 8, 16, 64)]
    [1.732, 1.058, 0.693, 0.33]
    """
    return min(order_safe_bounds(group_size, ddof=ddof).values(), default=float("inf"))


def _among(mask: Tensor, values: Tensor, formula: Callable[[Tensor], Tensor]) -> Tensor:
    """The formula over the masked values; 0 elsewhere."""
    result = torch.zeros_like(values)
    if mask.any():
        result[mask] = formula(values[mask])
    return result


ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    "grpo": grpo,
    "grpo_trl": grpo_trl,
    "grpo_verl": grpo_verl,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "papo": papo,
    "papo_full_norm": papo_full_norm,
    "multiplicative": multiplicative,
    "process_only": process_only,
}
