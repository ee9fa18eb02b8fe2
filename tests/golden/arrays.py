"""Arrays: a case's nested lists as tensors, and tensors as nested lists."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from services.learner.algorithms.loss import TokenBatch


def tensor(values: Any) -> Tensor:
    """Nested lists as float64; None as NaN."""
    return torch.tensor(_without_none(values), dtype=torch.float64)


def mask_of(inputs: dict[str, Any]) -> Tensor:
    """The case's mask, [sequence, token] bool."""
    return torch.tensor(inputs["mask"], dtype=torch.bool)


def spread(mask: Tensor, flat: Tensor) -> list[list[float]]:
    """Values of the unmasked tokens in their places; 0 at masked ones."""
    return torch.zeros(mask.shape, dtype=flat.dtype).masked_scatter(mask, flat).tolist()


def token_batch(inputs: dict[str, Any]) -> TokenBatch:
    """The unmasked tokens of a case with logp, old_logp and adv."""
    mask = mask_of(inputs)
    flat = [tensor(inputs[name])[mask] for name in ("logp", "old_logp", "adv")]
    flat[0].requires_grad_()
    return TokenBatch(*flat, sequence=mask.nonzero()[:, 0])


def _without_none(values: Any) -> Any:
    if isinstance(values, list):
        return [_without_none(value) for value in values]
    return float("nan") if values is None else values
