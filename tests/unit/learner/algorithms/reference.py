"""The formulas once more, one number at a time: loops and the standard library only.

Written from the papers, in their notation, apart from the code that it checks. A response is a list
of tokens; None stands for what is missing or masked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Numbers = Sequence[float]


@dataclass
class Group:
    """The scores of one group; the lists are as long as the group."""

    outcome: list[float]
    correct: list[bool]
    process: list[float | None]
    penalty: list[float]
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0)  # in GDPO: outcome, process, penalty

    @property
    def rewards(self) -> list[float]:
        return [r + p for r, p in zip(self.outcome, self.penalty, strict=True)]


def mean(values: Numbers) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def deviation(values: Numbers, ddof: int) -> float:
    mu, total = mean(values), 0.0
    for value in values:
        total += (value - mu) ** 2
    return math.sqrt(total / (len(values) - ddof))


def standardize(
    values: Numbers,
    ddof: int,
    denominator: str,
    eps: float,
) -> list[float]:
    """(v - mean) / (std + eps), gated; or / max(std, eps); or / 1. A lone value becomes 0."""
    if len(values) < 2:
        return [0.0 for _ in values]
    mu, sigma = mean(values), deviation(values, ddof)
    if denominator == "add" and sigma <= eps:
        return [0.0 for _ in values]
    if denominator == "add":
        divisor = sigma + eps
    elif denominator == "max":
        divisor = max(sigma, eps)
    else:
        divisor = 1.0
    return [(value - mu) / divisor for value in values]


def standardize_as_verl(values: Numbers) -> list[float]:
    if len(values) == 1:
        return [values[0] / (1 + 1e-6)]
    sigma = deviation(values, 1)
    return [value / (sigma + 1e-6) for value in minus_mean(values)]


def minus_mean(values: Numbers) -> list[float]:
    mu = mean(values)
    return [value - mu for value in values]


def over_those_with(
    values: Sequence[float | None], formula: Callable[[list[float]], list[float]]
) -> list[float]:
    """The formula over the values that are there, in their places; 0 in the others'."""
    kept = [value for value in values if value is not None]
    there = iter(formula(kept) if kept else [])
    return [0.0 if value is None else next(there) for value in values]


def grpo(
    group: Group,
    ddof: int,
    denominator: str,
    std_eps: float,
) -> list[float]:
    return standardize(group.rewards, ddof, denominator, std_eps)


def grpo_trl(group: Group) -> list[float]:
    return standardize_as_trl(group.rewards)


def standardize_as_trl(values: Numbers) -> list[float]:
    if len(values) == 1:
        return [0.0]
    sigma = deviation(values, 1)
    return [value / (sigma + 1e-4) for value in minus_mean(values)]


def grpo_verl(group: Group) -> list[float]:
    return standardize_as_verl(group.rewards)


def dr_grpo(group: Group) -> list[float]:
    return minus_mean(group.rewards)


def rloo(group: Group) -> list[float]:
    rewards, result = group.rewards, []
    for i, own in enumerate(rewards):
        others = [reward for j, reward in enumerate(rewards) if j != i]
        result.append(own - mean(others) if others else 0.0)
    return result


def reinforce(group: Group) -> list[float]:
    return group.rewards


def grpo_batch(group: Group) -> list[float]:
    return minus_mean(group.rewards)  # the std is a step's


def max_rl(group: Group) -> list[float]:
    """(r - r_hat) / r_hat; K = 0 successes have no gradient."""
    rate = mean(group.outcome)
    return [value / rate if rate > 0 else 0.0 for value in minus_mean(group.rewards)]


def gdpo(group: Group) -> list[float]:
    """sum over k of w_k (r_k - mean(r_k)) / (std(r_k) + 1e-4); normalized over a step later."""
    total = [0.0 for _ in group.outcome]
    for weight, scores in zip(
        group.weights, (group.outcome, group.process, group.penalty), strict=True
    ):
        parts = over_those_with(scores, standardize_as_trl)
        total = [a + weight * b for a, b in zip(total, parts, strict=True)]
    return total


def papo(
    group: Group, lambda_process: float, ddof: int, denominator: str, std_eps: float
) -> list[float]:
    """A_out over the group, A_proc over C = {correct, with a process score}."""
    scores: list[float | None] = []
    for right, score in zip(
        group.correct,
        group.process,
        strict=True,
    ):
        scores.append(score if right else None)
    process = over_those_with(
        scores,
        lambda v: standardize(v, ddof, denominator, std_eps),
    )
    outcome = standardize(group.rewards, ddof, denominator, std_eps)
    return [a + lambda_process * b for a, b in zip(outcome, process, strict=True)]


def papo_full_norm(
    group: Group, lambda_process: float, ddof: int, denominator: str, std_eps: float
) -> list[float]:
    scores = process_where_wrong_is_0(group)
    process = over_those_with(
        scores,
        lambda v: standardize(v, ddof, denominator, std_eps),
    )
    outcome = standardize(group.rewards, ddof, denominator, std_eps)
    return [a + lambda_process * b for a, b in zip(outcome, process, strict=True)]


def multiplicative(group: Group) -> list[float]:
    rewards: list[float | None] = []
    scores = process_where_wrong_is_0(group)
    for outcome, score, penalty in zip(
        group.outcome,
        scores,
        group.penalty,
        strict=True,
    ):
        rewards.append(None if score is None else outcome * score + penalty)
    return over_the_judged(rewards)


def process_only(group: Group) -> list[float]:
    rewards: list[float | None] = []
    for score, penalty in zip(
        group.process,
        group.penalty,
        strict=True,
    ):
        rewards.append(None if score is None else score + penalty)
    return over_the_judged(rewards)


def over_the_judged(rewards: Sequence[float | None]) -> list[float]:
    """As verl over those with a reward; a lone one counts only where the group is of one."""
    kept = [reward for reward in rewards if reward is not None]
    if len(kept) == 1 and len(rewards) > 1:
        return [0.0 for _ in rewards]
    return over_those_with(rewards, standardize_as_verl)


def process_where_wrong_is_0(group: Group) -> list[float | None]:
    scores: list[float | None] = []
    for right, score in zip(group.correct, group.process, strict=True):
        scores.append(0.0 if score is None and not right else score)
    return scores


def clipped(
    ratio: float,
    advantage: float,
    low: float,
    high: float,
) -> tuple[float, int]:
    """The negative of min(r A, clip(r) A), and the bound that held it."""
    if advantage > 0 and ratio > 1 + high:
        return -(1 + high) * advantage, 1
    if advantage < 0 and ratio < 1 - low:
        return -(1 - low) * advantage, -1
    return -ratio * advantage, 0


def dual_clipped(
    ratio: float, advantage: float, low: float, high: float, c: float
) -> tuple[float, int]:
    """max(min(r A, clip(r) A), c A) for A < 0, negated."""
    if advantage < 0 and ratio > c:
        return -c * advantage, 1
    return clipped(ratio, advantage, low, high)


def cispo(
    logprob: float, ratio: float, advantage: float, low: float, high: float
) -> tuple[float, int]:
    weight, bound = ratio, 0
    if ratio > 1 + high:
        weight, bound = 1 + high, 1
    if ratio < 1 - low:
        weight, bound = 1 - low, -1
    return -weight * advantage * logprob, bound


def dppo(
    logprob: float, old: float, advantage: float, low: float, high: float
) -> tuple[float, int]:
    """M r A, negated: M = 0 where A > 0 and r > 1, or A < 0 and r < 1, and D_TV > delta."""
    divergence, ratio = abs(math.exp(logprob) - math.exp(old)), math.exp(logprob) / math.exp(old)
    if advantage > 0 and ratio > 1 and divergence > high:
        return 0.0, 1
    if advantage < 0 and ratio < 1 and divergence > low:
        return 0.0, -1
    return -ratio * advantage, 0


def ipo(
    logprob: float,
    old: float,
    advantage: float,
    low: float,
    high: float,
) -> tuple[float, int]:
    """keep r A, negated, with keep = -low <= pi - mu <= high."""
    policy, sampler = math.exp(logprob), math.exp(old)
    if -low <= policy - sampler <= high:
        return -policy / sampler * advantage, 0
    return 0.0, 1 if policy > sampler else -1


def sapo(
    ratio: float,
    advantage: float,
    positive: float,
    negative: float,
) -> tuple[float, int]:
    """f(x) = sigma(tau (x - 1)) 4 / tau."""
    tau = positive if advantage > 0 else negative
    return -4 / tau / (1 + math.exp(-tau * (ratio - 1))) * advantage, 0


def gmpo(
    logprobs: Numbers, old_logprobs: Numbers, advantages: Numbers, low: float, high: float
) -> list[tuple[float, int]]:
    """(prod of min(r^s, clip(r^s, e^-low, e^high))^s)^(1/|o|) A, negated, with s = sgn A.

    For a negative advantage r^s is 1 / r, which the bound e^low holds from above.
    """
    product, held = 1.0, []
    for new, old, advantage in zip(logprobs, old_logprobs, advantages, strict=True):
        sign = 1 if advantage > 0 else -1
        weight, most = math.exp(new - old) ** sign, math.exp(high if sign > 0 else low)
        product *= min(weight, most) ** sign
        held.append(sign if weight > most else 0)
    mean_ratio = product ** (1 / len(logprobs))
    return [(-mean_ratio * a, bound) for a, bound in zip(advantages, held, strict=True)]


def sequence_ratio(logprobs: Numbers, old_logprobs: Numbers) -> float:
    """(pi(y) / pi_old(y)) ^ (1 / |y|), equation 7 of GSPO."""
    product = 1.0
    for new, old in zip(logprobs, old_logprobs, strict=True):
        product *= math.exp(new - old)
    return product ** (1 / len(logprobs))


def token_mean(losses: Sequence[Numbers]) -> float:
    total, tokens = 0.0, 0
    for response in losses:
        for loss in response:
            total, tokens = total + loss, tokens + 1
    return total / tokens


def sequence_mean(losses: Sequence[Numbers]) -> float:
    return mean([mean(response) for response in losses])


def fixed_length(losses: Sequence[Numbers], max_tokens: int) -> float:
    return mean([mean(response) * len(response) / max_tokens for response in losses])


def importance(old: Numbers, behavior: Numbers, cap: float) -> float:
    """min(pi_old(tokens) / pi_behavior(tokens), cap)."""
    ratio = 1.0
    for a, b in zip(old, behavior, strict=True):
        ratio *= math.exp(a) / math.exp(b)
    return min(ratio, cap)


def importance_in_band(
    old: Numbers,
    behavior: Numbers,
    floor: float,
    cap: float,
) -> float:
    """M(k) of IcePop: k if it is in [alpha, beta], else 0."""
    ratio = importance(old, behavior, math.inf)
    return ratio if floor <= ratio <= cap else 0.0


def gae(
    rewards: Numbers,
    values: Numbers,
    gamma: float,
    lambda_: float,
) -> list[float]:
    """A_t = sum over l of (gamma lambda)^l delta_(t+l), written out."""
    steps, result = len(rewards), []
    for t in range(steps):
        advantage = 0.0
        for k in range(t, steps):
            following = values[k + 1] if k + 1 < steps else 0.0
            delta = rewards[k] + gamma * following - values[k]
            advantage += (gamma * lambda_) ** (k - t) * delta
        result.append(advantage)
    return result


def length_lambda(length: int, alpha: float) -> float:
    return max(0.0, 1 - 1 / (alpha * length))
