"""Advantages: how much better than its group was each response?

Every function maps a group's scores to one advantage per response, which then holds for each of the
response's tokens. Ungradable responses are dropped before, so every response has an outcome.
A missing process score (NaN) enters no statistic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from services.learner.algorithms.logprobs import widen

EPS = 1e-6
TRL_EPS = 1e-4


@dataclass(frozen=True)
class GroupScores:
    """The scores of one group of G responses to the same task. All tensors are [group]."""

    outcome: Tensor  # float, the reward of the raw outcome, for example 0 or 1, or -1 or 1
    correct: Tensor  # bool, from raw accuracy, never from a shaped reward
    process: Tensor  # float in [0, 1], NaN without a process score
    penalty: Tensor  # float, at most 0: the punishment of an overlong response
    # The scores of each check of outcome and process, NaN without a score, and its weight.
    checks: tuple[tuple[Tensor, float], ...] = ()
    penalty_weight: float = 1.0

    def __len__(self) -> int:
        return self.outcome.shape[0]

    @property
    def reward(self) -> Tensor:
        """The shaped reward, [group]."""
        return self.outcome + self.penalty


Advantage = Callable[[GroupScores], Tensor]


def centered(values: Tensor) -> Tensor:
    """x - mean, [n] to [n]; exactly 0 if all are equal, however the mean is rounded."""
    values = widen(values)
    if (values == values[:1]).all():
        return torch.zeros_like(values)
    return values - values.mean()


def standardized(
    values: Tensor, *, ddof: int = 1, denominator: str = "add", std_eps: float = EPS
) -> Tensor:
    """(x - mean) / divisor, [n] to [n]; zeros for n < 2.

    Args:
        ddof: 1 for the sample std, 0 for that of the population.
        denominator: ``add`` divides by std + eps, and gives zeros if the std is at most eps;
            ``max`` divides by max(std, eps); ``none`` does not divide.
    """
    deviations = centered(values)
    if values.shape[0] < 2 or denominator == "none":
        return deviations
    std = widen(values).std(correction=ddof)
    if denominator == "add" and std <= std_eps:
        return torch.zeros_like(deviations)
    divisors = {"add": std + std_eps, "max": std.clamp(min=std_eps)}
    return deviations / divisors[denominator]


def standardized_as_verl(values: Tensor) -> Tensor:
    """verl's convention, [n] to [n]: sample std + 1e-6, and a lone value is divided by 1 + 1e-6."""
    if values.shape[0] == 1:
        return widen(values) / (1 + EPS)
    return _over_sample_std(values)


def reinforce(scores: GroupScores) -> Tensor:
    """The reward, [group]: REINFORCE; with ``whiten``, REINFORCE++ (arXiv:2501.03262).

    Responses are compared with those of the whole step, so a group of one, or with equal rewards,
    has a signal too.
    """
    return widen(scores.reward)


def grpo(
    scores: GroupScores, *, ddof: int = 1, denominator: str = "add", std_eps: float = EPS
) -> Tensor:
    """Group-relative advantage, [group]: DeepSeekMath (arXiv:2402.03300), section 4.1.2.

    The paper writes (r - mean) / std and states neither ddof nor eps.
    """
    return standardized(scores.reward, ddof=ddof, denominator=denominator, std_eps=std_eps)


def grpo_trl(scores: GroupScores) -> Tensor:
    """GRPO of TRL, [group]: (r - mean) / (sample std + 1e-4); 0 for one response."""
    return _over_sample_std(scores.reward, TRL_EPS)


def grpo_verl(scores: GroupScores) -> Tensor:
    """GRPO of verl, [group]: (r - mean) / (sample std + 1e-6); r / (1 + 1e-6) for one response."""
    return standardized_as_verl(scores.reward)


def dr_grpo(scores: GroupScores) -> Tensor:
    """r - mean, [group]: Dr. GRPO (arXiv:2503.20783), section 3.2; no division by the std.

    With ``whiten`` it is REINFORCE++ with baseline (arXiv:2501.03262): normalized over the tokens
    of the step, as in verl. Dynamic sampling then leaves out groups that whitening would count.
    """
    return centered(scores.reward)


def rloo(scores: GroupScores) -> Tensor:
    """r - mean of the other responses, [group]: REINFORCE leave-one-out (arXiv:2402.14740).

    0 alone. The mean without r lies as far from r as the mean with it, times n / (n - 1).
    """
    return centered(scores.reward) * (len(scores) / max(1, len(scores) - 1))


def grpo_batch(scores: GroupScores) -> Tensor:
    """(r - mean of the group) / std of the step, [group]: Lite PPO (arXiv:2508.08221).

    This is the group's own part, r - mean. `over_sample_std` divides once the step has its groups.
    """
    return centered(scores.reward)


def over_sample_std(advantages: Tensor, rewards: Tensor) -> Tensor:
    """Advantages / (sample std of the rewards + 1e-4), both [response of a step]; as TRL has it."""
    if rewards.shape[0] < 2:
        return advantages
    return advantages / (rewards.std(correction=1) + TRL_EPS)


def max_rl(scores: GroupScores) -> Tensor:
    """(r - mean) / mean of outcomes, [group]: MaxRL (arXiv:2602.02710); 0 if no response is right.

    For outcomes of 0 and 1 the mean is the rate of success, so the harder a task the more its rare
    success weighs: up to the order of the group's size this is the gradient of the log-likelihood
    of a right answer, where GRPO's is that of its probability.
    """
    rate = widen(scores.outcome).mean()
    return centered(scores.reward) / torch.where(rate > 0, rate, torch.inf)


def gdpo(scores: GroupScores) -> Tensor:
    """Weighted sum of (r_k - mean) / std of each check k, [group]: GDPO (arXiv:2601.05242).

    With the sample std + 1e-4, as in the authors' code; the overlong punishment is a check too. A
    response without a check's score takes no part in that check. `normalized_over_step` follows
    once the step has its groups.
    """
    normalize = partial(_over_sample_std, eps=TRL_EPS)
    parts = (*scores.checks, (scores.penalty, scores.penalty_weight))
    return torch.stack([w * _among(~r.isnan(), r, normalize) for r, w in parts]).sum(0)


def normalized_over_step(advantages: Tensor, rewards: Tensor) -> Tensor:
    """(A - mean) / (sample std + 1e-4), [response of a step]: the second half of GDPO."""
    return _over_sample_std(advantages, TRL_EPS)


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
    outcome, process = papo_terms(scores, ddof=ddof, denominator=denominator, std_eps=std_eps)
    return outcome + lambda_process * process


def papo_terms(
    scores: GroupScores, *, ddof: int = 1, denominator: str = "add", std_eps: float = EPS
) -> tuple[Tensor, Tensor]:
    """A_out and A_proc of `papo`, each [group]."""
    normalize = partial(standardized, ddof=ddof, denominator=denominator, std_eps=std_eps)
    judged = scores.correct & ~scores.process.isnan()
    return normalize(scores.reward), _among(judged, scores.process, normalize)


def papo_full_norm(
    scores: GroupScores,
    *,
    lambda_process: float = 1.0,
    ddof: int = 1,
    denominator: str = "add",
    std_eps: float = EPS,
) -> Tensor:
    """The ablation of PAPO that normalizes A_proc over the whole group, [group].

    As in the released code, correctness does not matter: a wrong response with a process score
    enters with it. A wrong one without counts as 0; a correct one without is left out.
    """
    outcome, process = papo_full_norm_terms(
        scores, ddof=ddof, denominator=denominator, std_eps=std_eps
    )
    return outcome + lambda_process * process


def papo_full_norm_terms(
    scores: GroupScores, *, ddof: int = 1, denominator: str = "add", std_eps: float = EPS
) -> tuple[Tensor, Tensor]:
    """A_out and A_proc of `papo_full_norm`, each [group]."""
    normalize = partial(standardized, ddof=ddof, denominator=denominator, std_eps=std_eps)
    process = _process_of_all(scores)
    return normalize(scores.reward), _among(~process.isnan(), process, normalize)


def multiplicative(scores: GroupScores) -> Tensor:
    """The ablation of PAPO with outcome x process as the reward, [group], under verl's GRPO.

    Made for outcomes of 0 and 1. The process score of a wrong response without one is 0; a correct
    one without has no reward, and is left out.
    """
    return _normalize_judged(_product(scores))


def process_only(scores: GroupScores) -> Tensor:
    """The ablation of PAPO with the process score as the reward, [group], under verl's GRPO.

    Wrong responses are judged too. A response without a process score is left out.
    """
    return _normalize_judged(_process_alone(scores))


def _product(scores: GroupScores) -> Tensor:
    return scores.outcome * _process_of_all(scores) + scores.penalty


def _process_alone(scores: GroupScores) -> Tensor:
    return scores.process + scores.penalty


def _over_sample_std(values: Tensor, eps: float = EPS) -> Tensor:
    """(x - mean) / (sample std + eps), [n] to [n]; zeros for n < 2."""
    if values.shape[0] < 2:
        return centered(values)
    return centered(values) / (widen(values).std(correction=1) + eps)


def _normalize_judged(rewards: Tensor) -> Tensor:
    """Return verl's GRPO over the rewards that are not NaN, [group]; a lone one becomes 0."""
    formula = standardized_as_verl if rewards.shape[0] == 1 else _over_sample_std
    return _among(~rewards.isnan(), rewards, formula)


def _process_of_all(scores: GroupScores) -> Tensor:
    """The process scores, [group]: 0 for a wrong response without one, NaN for a correct one."""
    is_wrong = scores.process.isnan() & ~scores.correct
    return scores.process.masked_fill(is_wrong, 0.0)


def _among(mask: Tensor, values: Tensor, formula: Callable[[Tensor], Tensor]) -> Tensor:
    """The formula over the masked values, [group]; 0 elsewhere."""
    results = formula(values[mask])
    return results.new_zeros(values.shape).masked_scatter(mask, results)


ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    "grpo": grpo,
    "grpo_trl": grpo_trl,
    "grpo_verl": grpo_verl,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce": reinforce,
    "grpo_batch": grpo_batch,
    "max_rl": max_rl,
    "gdpo": gdpo,
    "papo": papo,
    "papo_full_norm": papo_full_norm,
    "multiplicative": multiplicative,
    "process_only": process_only,
}

# The rewards that an advantage compares within the group, [group], if they are not the shaped ones;
# NaN for a response that it leaves out.
REWARDS: dict[str, Callable[[GroupScores], Tensor]] = {
    "multiplicative": _product,
    "process_only": _process_alone,
}

# Formulas over the advantages and rewards of all responses of a step, both [response], after those
# of the groups. Dynamic sampling judges a group before that, by its own advantages.
OVER_STEP: dict[str, Callable[..., Tensor]] = {
    "grpo_batch": over_sample_std,
    "gdpo": normalized_over_step,
}

# The two terms of an advantage; lambda_process multiplies the second.
TERMS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "papo": papo_terms,
    "papo_full_norm": papo_full_norm_terms,
}
