"""From logits to the log-probabilities of given tokens, and the entropy of their distributions."""

from __future__ import annotations

from torch import Tensor


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability (nats) of each target, and the entropy (nats) of its distribution.

    Both are of the distribution that was sampled from: after dividing by the temperature. The
    softmax runs in float32 whatever the model runs in.

    Args:
        logits: [token, vocabulary].
        targets: [token], token ids.
        temperature: > 0.

    Returns:
        ([token], [token]); the entropy carries no gradient.
    """
    logprobs = (logits.float() / temperature).log_softmax(dim=-1)
    chosen = logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    detached = logprobs.detach()
    return chosen, -(detached.exp() * detached).sum(dim=-1)
