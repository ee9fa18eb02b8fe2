"""Generalized advantage estimation, and the targets and loss of the critic.

Episodes are [sequence, token], right-padded or with gaps; ``mask`` is true for the policy's own
tokens. A masked token is skipped: it neither decays nor carries a reward, and its value has no
effect. An episode ends with its last token, after which the value is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from services.learner.algorithms.logprobs import widen


@dataclass(frozen=True)
class Episodes:
    """Responses with the value that the critic gave each state. All are [sequence, token]."""

    rewards: Tensor  # float; the reward of a response is at its last token
    values: Tensor  # float, before the token was chosen
    mask: Tensor  # bool


def discounted(episodes: Episodes, *, gamma: float, lambda_: float | Tensor) -> Tensor:
    """GAE (arXiv:1506.02438, equation 16), [sequence, token]; 0 at masked tokens.

    Args:
        gamma: discount, 1 for reasoning tasks.
        lambda_: a number, or [sequence].
    """
    rewards = widen(episodes.rewards)
    mask = episodes.mask
    values = widen(episodes.values)
    advantages = torch.zeros_like(values)
    later = values.new_zeros(values.shape[0])  # the advantage of the next unmasked token
    next_value = torch.zeros_like(later)
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        now = delta + gamma * lambda_ * later
        advantages[:, t] = torch.where(mask[:, t], now, advantages[:, t])
        later = torch.where(mask[:, t], now, later)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
    return advantages


def lambda_returns(episodes: Episodes, *, gamma: float, lambda_: float) -> Tensor:
    """The lambda-return of each token, [sequence, token]; Monte-Carlo at lambda 1."""
    advantages = discounted(episodes, gamma=gamma, lambda_=lambda_)
    return torch.where(episodes.mask, advantages + episodes.values, advantages)


def gae(episodes: Episodes, *, gamma: float, lambda_actor: float) -> tuple[Tensor, Tensor]:
    """PPO's advantages, and the critic's targets with the same lambda (arXiv:1707.06347)."""
    return decoupled_gae(
        episodes, gamma=gamma, lambda_actor=lambda_actor, lambda_critic=lambda_actor
    )


def decoupled_gae(
    episodes: Episodes, *, gamma: float, lambda_actor: float, lambda_critic: float
) -> tuple[Tensor, Tensor]:
    """Advantages with one lambda, the critic's targets with another: VC-PPO (arXiv:2503.01491)."""
    advantages = discounted(episodes, gamma=gamma, lambda_=lambda_actor)
    return advantages, lambda_returns(episodes, gamma=gamma, lambda_=lambda_critic)


def length_adaptive_gae(
    episodes: Episodes, *, gamma: float, length_alpha: float, lambda_critic: float
) -> tuple[Tensor, Tensor]:
    """Decoupled GAE whose lambda grows with the response: VAPO (arXiv:2504.05118), section 4.2."""
    lengths = episodes.mask.sum(dim=1, dtype=torch.float64)
    lambda_ = length_adaptive_lambda(lengths, length_alpha)
    advantages = discounted(episodes, gamma=gamma, lambda_=lambda_)
    return advantages, lambda_returns(episodes, gamma=gamma, lambda_=lambda_critic)


def bare_length_lambda(lengths: Tensor, alpha: float) -> Tensor:
    """1 - 1 / (alpha * length), [sequence] (VAPO): not above 0 where alpha * length is below 1."""
    return 1 - 1 / (alpha * lengths)


def length_adaptive_lambda(lengths: Tensor, alpha: float) -> Tensor:
    """The lambda of VAPO, [sequence], clamped at 0, where the paper is silent.

    >>> length_adaptive_lambda(torch.tensor([1, 40, 400]), 0.05)
    tensor([0.0000, 0.5000, 0.9500])
    """
    return bare_length_lambda(lengths, alpha).clamp(min=0)


def whitened(advantages: Tensor, add_up: Callable[[Tensor], Tensor]) -> Tensor:
    """Zero mean and unit variance over the tokens of all ranks, [token] to [token].

    The variance is unbiased, and 1e-8 is added to it, as verl does. A lone token is unchanged.

    Args:
        advantages: this rank's, without masked tokens.
        add_up: sums a tensor over all ranks, for example an all-reduce.
    """
    # In double: a float32 count of all ranks' tokens would stop at 2^24.
    precise = advantages.double()
    count, total = add_up(torch.stack([torch.ones_like(precise).sum(), precise.sum()])).unbind()
    if count < 2:
        return widen(advantages)
    centered = precise - total / count
    variance = add_up(centered.square().sum()) / (count - 1)
    whitened = centered * (variance + 1e-8).rsqrt()
    return whitened.to(widen(advantages).dtype)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, value_clip: float | None
) -> Tensor:
    """Half the squared error, [token]; with a clip the larger of the free and the clipped one.

    PPO's value clipping as its implementations have it: the value may not gain from moving further
    than ``value_clip`` from the value at sampling.
    """
    values = widen(values)
    old_values = widen(old_values)
    free = (values - returns).square()
    if value_clip is None:
        return 0.5 * free
    near = old_values + (values - old_values).clamp(-value_clip, value_clip)
    return 0.5 * torch.maximum(free, (near - returns).square())


@dataclass(frozen=True)
class Moments:
    """Sums over tokens that give the explained variance; the sums of ranks add up."""

    count: float
    returns: float
    returns_squared: float
    errors: float  # return minus value
    errors_squared: float

    @classmethod
    def of(cls, returns: Tensor, values: Tensor) -> Moments:
        """The moments of some tokens' returns and values, both [token]."""
        return cls(**{name: float(value) for name, value in moment_sums(returns, values).items()})

    def explained_variance(self) -> float:
        """1 - Var(return - value) / Var(return); NaN if all returns are the same.

        1 is a perfect critic, 0 one no better than the mean, below 0 a worse one.
        """
        variance = _variance(self.count, self.returns, self.returns_squared)
        if variance <= 1e-12:
            return math.nan
        return 1 - _variance(self.count, self.errors, self.errors_squared) / variance


def moment_sums(returns: Tensor, values: Tensor) -> dict[str, Tensor | float]:
    """Return the fields of `Moments` without waiting for the device of the tensors."""
    returns = returns.double()
    errors = returns - values.double()
    return {
        "count": float(returns.numel()),
        "returns": returns.sum(),
        "returns_squared": returns.square().sum(),
        "errors": errors.sum(),
        "errors_squared": errors.square().sum(),
    }


def _variance(count: float, total: float, squared: float) -> float:
    if count == 0:
        return 0.0
    mean = total / count
    return squared / count - mean * mean


CRITIC_ADVANTAGES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "gae": gae,
    "decoupled_gae": decoupled_gae,
    "length_adaptive_gae": length_adaptive_gae,
}
