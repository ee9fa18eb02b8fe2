"""Aggregations: how the losses of tokens become one number. The denominator is always global.

A micro-batch contributes its share of the sum; the denominator counts the whole mini-batch, over
all micro-batches and all ranks, so that the split never changes the update.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def token_mean(losses: Tensor, *, num_tokens: int) -> Tensor:
    """The share of a micro-batch in the mean over all tokens, scalar (arXiv:2503.14476, eq. 8).

    Args:
        losses: [token], of this micro-batch.
        num_tokens: response tokens of the whole mini-batch, over all ranks.
    """
    return losses.sum() / num_tokens


AGGREGATIONS: dict[str, Callable[..., Tensor]] = {
    "token_mean": token_mean,
}
