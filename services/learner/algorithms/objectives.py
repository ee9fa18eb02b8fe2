"""Objectives: the loss of each token, given how its probability changed and its advantage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """The response tokens of a micro-batch, flat. All tensors are [token] and float."""

    logprobs: Tensor  # under the policy being trained; carries the gradient
    behavior_logprobs: Tensor  # under the policy that sampled the token
    advantages: Tensor

    @property
    def ratio(self) -> Tensor:
        """The importance ratio of each token, [token]."""
        return (self.logprobs - self.behavior_logprobs).exp()


def clip(tokens: TokenBatch, *, clip_low: float, clip_high: float) -> Tensor:
    """PPO's clipped surrogate as a loss, [token] (arXiv:1707.06347, equation 7).

    ``clip_high > clip_low`` is DAPO's clip-higher (arXiv:2503.14476, equation 10).
    """
    ratio = tokens.ratio
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * tokens.advantages, bounded * tokens.advantages)


OBJECTIVES: dict[str, Callable[..., Tensor]] = {
    "clip": clip,
}
