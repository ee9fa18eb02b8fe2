"""Log-probabilities of tokens: from hidden states, with their entropy; and their differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear


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
    return _values(_normalized(logits, temperature), targets)


def chunked_token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    chunk_tokens: int,
    *,
    num_ids: int | None = None,
    compiles: bool = False,
) -> tuple[Tensor, Tensor]:
    """`token_logprobs` of a head's logits, of which only a chunk exists at any time.

    Values and gradients are those of the dense path; memory holds ``chunk_tokens`` x vocabulary
    instead of token x vocabulary. The backward pass computes logits again only if the head learns
    or the loss has the entropies in it.

    Logits are float32 at least: bfloat16 has steps of 0.25 at a logit of 45. A GPU adds up so the
    products of narrower numbers; on a CPU each pass holds one copy of the weight.

    Args:
        hidden: [token, hidden].
        weight: [vocabulary, hidden], of the head.
        bias: [vocabulary], of the head; or none.
        targets: [token], token ids.
        temperature: > 0.
        chunk_tokens: >= 1.
        num_ids: rows of the head beyond so many have no token, and no part in the softmax.
        compiles: by torch.compile, which fuses what is as large as the logits.
    """
    settings = (temperature, chunk_tokens, num_ids, compiles)
    apply = cast(Any, _ChunkedLogprobs).apply
    return apply(hidden, weight, bias, targets, settings)


class _ChunkedLogprobs(torch.autograd.Function):
    """Its gradient is a formula: autograd takes more passes over the vocabulary, and memory."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: tuple[float, int, int | None, bool],
    ) -> tuple[Tensor, Tensor]:
        temperature, chunk_tokens, num_ids, compiles = settings
        of_logits = _compiled(_of_logits) if compiles else _of_logits
        learns, *head_learns = ctx.needs_input_grad[:3]
        head = _Head(weight, bias, num_ids)
        slopes_in = head.weight.dtype if learns and not any(head_learns) else None
        parts: list[tuple[Tensor, ...]] = []
        for chunk in _chunks(targets, chunk_tokens):
            logits = head.logits(hidden[chunk])
            *values, slopes = of_logits(logits, targets[chunk], temperature, slopes_in)
            parts.append((*values, *map(head.back, slopes)))
            del logits, slopes  # or they would lie beside the next chunk's
        logprobs, entropies, *slopes = map(torch.cat, zip(*parts, strict=True))
        ctx.settings = settings
        ctx.save_for_backward(hidden, weight, bias, targets, *slopes)
        ctx.set_materialize_grads(False)  # what the loss leaves out has none
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Any
    ) -> Any:
        by_logprobs, by_entropies = grad_outputs
        hidden, weight, bias, targets, *slopes = ctx.saved_tensors
        temperature, chunk_tokens, num_ids, compiles = ctx.settings
        by_logprobs = torch.zeros_like(by_entropies) if by_logprobs is None else by_logprobs
        if slopes and by_entropies is None:
            return (slopes[0] * by_logprobs[:, None]).to(hidden.dtype), None, None, None, None
        gradient = _compiled(_gradient) if compiles else _gradient
        head = _Head(weight, bias, num_ids)
        dtype = head.weight.dtype
        of_hidden, of_weight, of_bias = (
            torch.zeros_like(each, dtype=dtype) if needed else None
            for each, needed in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        )
        for chunk in _chunks(targets, chunk_tokens):
            by_values = by_logprobs[chunk], None if by_entropies is None else by_entropies[chunk]
            logits = head.logits(hidden[chunk])
            of_logits = gradient(logits, targets[chunk], temperature, dtype, *by_values)
            if of_hidden is not None:
                of_hidden[chunk] = head.back(of_logits).to(dtype)
            if of_weight is not None:
                of_weight[:num_ids].addmm_(of_logits.T, hidden[chunk].to(dtype))
            if of_bias is not None:
                of_bias[:num_ids] += of_logits.sum(dim=0)
            del logits, of_logits
        gradients = zip((of_hidden, of_weight, of_bias), (hidden, weight, bias), strict=True)
        return *(g if g is None else g.to(each.dtype) for g, each in gradients), None, None


class _Head:
    """The rows in use, as they are multiplied: by a GPU as they are, else in float32 at least."""

    def __init__(self, weight: Tensor, bias: Tensor | None, num_ids: int | None) -> None:
        rows = weight[:num_ids]
        self.weight = rows if rows.is_cuda else at_least_float32(rows)
        self._bias = None if bias is None else at_least_float32(bias[:num_ids])
        self._is_wide = self.weight.dtype == at_least_float32(rows[:0]).dtype

    def logits(self, hidden: Tensor) -> Tensor:
        hidden = hidden.to(self.weight.dtype)
        if self._is_wide:
            return linear(hidden, self.weight, self._bias)
        logits = torch.mm(hidden, self.weight.T, out_dtype=torch.float32)
        return logits if self._bias is None else logits + self._bias

    def back(self, of_logits: Tensor) -> Tensor:
        """The gradient by hidden states; that by logits is in the weight's dtype here."""
        if self._is_wide:
            return of_logits @ self.weight
        return torch.mm(of_logits, self.weight, out_dtype=torch.float32)


def _chunks(targets: Tensor, size: int) -> Iterator[slice]:
    for start in range(0, max(1, len(targets)), size):  # no tokens are one empty chunk
        yield slice(start, start + size)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return cast(Any, torch).compile(function, dynamic=True)


def _of_logits(
    logits: Tensor, targets: Tensor, temperature: float, slopes_in: torch.dtype | None
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """`token_logprobs`; and, if asked for, the gradients of the log-probs, in a dtype."""
    normalized = _normalized(logits, temperature)
    logprobs, entropies = _values(normalized, targets)
    if slopes_in is None:
        return logprobs, entropies, []
    slopes = _slopes(normalized, targets, temperature, torch.ones_like(logprobs), None)
    return logprobs, entropies, [slopes.to(slopes_in)]


def _gradient(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    dtype: torch.dtype,
    by_logprobs: Tensor,
    by_entropies: Tensor | None,
) -> Tensor:
    normalized = _normalized(logits, temperature)
    slopes = _slopes(normalized, targets, temperature, by_logprobs, by_entropies)
    return slopes.to(dtype)


def _normalized(logits: Tensor, temperature: float) -> Tensor:
    return (at_least_float32(logits) / temperature).log_softmax(dim=-1)


def _values(normalized: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    chosen = normalized.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen, -(normalized.exp() * normalized).sum(dim=-1)


def _slopes(
    normalized: Tensor,
    targets: Tensor,
    temperature: float,
    by_logprobs: Tensor,
    by_entropies: Tensor | None,
) -> Tensor:
    """The gradient by the logits of a loss, from those by log-probs and entropies, both [token].

    A log-prob has (1 at its target, else 0) - p, an entropy -p (log p + entropy), both over the
    temperature. ``normalized`` may be overwritten.
    """
    probs, by_logprobs = normalized.exp(), by_logprobs[:, None] / temperature
    if by_entropies is None:
        slopes = probs.mul_(-by_logprobs)
    else:
        entropies = -(probs * normalized).sum(dim=-1, keepdim=True)
        by_entropies = by_entropies[:, None] / temperature
        scales = normalized.add_(entropies).mul_(by_entropies).add_(by_logprobs)
        slopes = probs.mul_(scales).neg_()
    return slopes.scatter_add_(-1, targets[:, None], by_logprobs)
