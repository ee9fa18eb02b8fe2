"""Log-probabilities of tokens: from hidden states, with their entropy; and their differences."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]


def at_least_float32(values: Tensor) -> Tensor:
    """bfloat16 and float16 as float32; float32 and float64 as they are: formulas run in those."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def log_ratio(logprobs: Tensor, others: Tensor) -> Tensor:
    """How much likelier each token is than by the others, [token], nats."""
    return at_least_float32(logprobs) - at_least_float32(others)


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability (nats) of each target, and the entropy (nats) of its distribution.

    Both are of the distribution that was sampled from: after dividing by the temperature. The
    softmax runs in float32 at least, whatever the model runs in.

    Args:
        logits: [token, vocabulary].
        targets: [token], token ids.
        temperature: > 0.

    Returns:
        ([token], [token])
    """
    logprobs = (at_least_float32(logits) / temperature).log_softmax(dim=-1)
    chosen = logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen, -(logprobs.exp() * logprobs).sum(dim=-1)


def chunked_token_logprobs(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    targets: Tensor,
    temperature: float,
    chunk_tokens: int,
) -> tuple[Tensor, Tensor]:
    """`token_logprobs` of ``head(hidden)``, of which only a chunk exists at any time.

    Values and gradients are those of the dense path. The backward pass computes a chunk's logits
    again, so that memory holds ``chunk_tokens`` x vocabulary instead of token x vocabulary.

    Args:
        hidden: [token, hidden].
        head: [n, hidden] to [n, vocabulary].
        targets: [token], token ids.
        temperature: > 0.
        chunk_tokens: >= 1.
    """

    def of_chunk(part: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        return token_logprobs(head(part), wanted, temperature)

    starts = range(0, max(1, len(targets)), chunk_tokens)  # no tokens are one empty chunk
    parts: list[tuple[Tensor, Tensor]] = [
        checkpoint(of_chunk, hidden[chunk], targets[chunk], use_reentrant=False)
        for chunk in (slice(start, start + chunk_tokens) for start in starts)
    ]
    logprobs, entropies = [part[0] for part in parts], [part[1] for part in parts]
    return torch.cat(logprobs), torch.cat(entropies)
