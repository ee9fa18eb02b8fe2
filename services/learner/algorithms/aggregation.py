"""Aggregations: how the losses of tokens become one number. The denominator is always global.

An aggregation is a weight per token: a micro-batch contributes the weighted sum of its losses, and
the weights count the whole mini-batch, over all micro-batches and all ranks, so that the split
never changes the update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Totals:
    """What a mini-batch holds, over all micro-batches and all ranks."""

    tokens: int  # response tokens
    sequences: int  # responses
    positive_tokens: int  # response tokens of correct responses


def token_mean(lengths: Tensor, totals: Totals) -> Tensor:
    """1 / tokens, [token]: every token weighs the same (DAPO, arXiv:2503.14476, equation 8).

    Args:
        lengths: [token] float, the number of tokens of each token's response.
        totals: of the whole mini-batch.
    """
    return torch.full_like(lengths, 1 / max(1, totals.tokens))


def sequence_mean(lengths: Tensor, totals: Totals) -> Tensor:
    """1 / (responses x length), [token]: responses weigh the same (GRPO, arXiv:2402.03300)."""
    return 1 / (lengths * max(1, totals.sequences))


def fixed_length(lengths: Tensor, totals: Totals, *, max_tokens: int) -> Tensor:
    """1 / (responses x max_tokens), [token]: Dr. GRPO (arXiv:2503.20783), section 3.2.

    A constant, so that neither long nor short responses are favoured; never the length of a batch.
    """
    return torch.full_like(lengths, 1 / (max(1, totals.sequences) * max_tokens))


AGGREGATIONS: dict[str, Callable[..., Tensor]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "fixed_length": fixed_length,
}
