"""Log-probabilities of tokens: from hidden states, with their entropy; and their differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear


def widen(values: Tensor) -> Tensor:
    """Convert bfloat16 and float16 to float32; formulas run in float32 or float64."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Return the logarithm of the ratio of probabilities, [token], nats."""
    return widen(logprobs) - widen(old_logprobs)


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability (nats) of each target, and the entropy (nats) of its distribution.

    Both refer to the sampled distribution, after the division by the temperature. The softmax runs
    in float32 or float64.

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
    instead of token x vocabulary. The backward pass computes logits again only if there are several
    chunks, and the head learns or the loss has the entropies in it.

    Logits are float32 or float64: bfloat16 has steps of 0.25 at a logit of 45. A GPU sums products
    of narrower numbers that way; on a CPU each pass holds a copy of the weight.

    Args:
        hidden: [token, hidden].
        weight: [vocabulary, hidden], of the head.
        bias: [vocabulary], of the head; or None.
        targets: [token], token ids.
        temperature: > 0.
        chunk_tokens: >= 1.
        num_ids: rows of the head beyond this number have no token and are not in the softmax.
        compiles: use torch.compile, which fuses operations on tensors as large as the logits.
    """
    settings = (temperature, chunk_tokens, num_ids, compiles)
    apply = cast(Any, _ChunkedLogprobs).apply
    return apply(hidden, weight, bias, targets, settings)


class _ChunkedLogprobs(torch.autograd.Function):
    """Compute the gradient by a formula; autograd needs more passes and memory."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: tuple[float, int, int | None, bool],
    ) -> tuple[Tensor, Tensor]:
        temperature, chunk_tokens, num_ids, _ = settings
        learns, *head_learns = ctx.needs_input_grad[:3]
        head = _Head(weight, bias, num_ids)
        if any(head_learns) and len(targets) <= chunk_tokens:
            normalized = _normalized(head.logits(hidden), temperature)
            logprobs, entropies = _values(normalized, targets)
            saved = [normalized]
        else:
            slopes_in = head.weight.dtype if learns and not any(head_learns) else None
            logprobs, entropies, *saved = _read_chunks(head, hidden, targets, settings, slopes_in)
        ctx.settings = settings
        ctx.save_for_backward(hidden, weight, bias, targets, *saved)
        ctx.set_materialize_grads(False)  # None for an output that the loss does not use
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Any
    ) -> Any:
        by_logprobs, by_entropies = grad_outputs
        hidden, weight, bias, targets, *saved = ctx.saved_tensors
        temperature, chunk_tokens, num_ids, compiles = ctx.settings
        by_logprobs = torch.zeros_like(by_entropies) if by_logprobs is None else by_logprobs
        keeps_logits = saved and any(ctx.needs_input_grad[1:3])
        if saved and not keeps_logits and by_entropies is None:
            return (saved[0] * by_logprobs[:, None]).to(hidden.dtype), None, None, None, None
        gradient = _compiled(_gradient) if compiles else _gradient
        head = _Head(weight, bias, num_ids)
        dtype = head.weight.dtype
        inputs = (hidden, weight, bias)
        hidden_grad, weight_grad, bias_grad = (
            torch.zeros_like(tensor, dtype=dtype) if is_needed else None
            for tensor, is_needed in zip(inputs, ctx.needs_input_grad, strict=False)
        )
        for chunk in _chunks(targets, chunk_tokens):
            chunk_entropies = None if by_entropies is None else by_entropies[chunk]
            grads = (by_logprobs[chunk], chunk_entropies)
            if keeps_logits:
                logits_grad = _slopes(saved[0], targets, temperature, *grads).to(dtype)
            else:
                logits = head.logits(hidden[chunk])
                logits_grad = gradient(logits, targets[chunk], temperature, dtype, *grads)
                del logits
            if hidden_grad is not None:
                hidden_grad[chunk] = head.back(logits_grad).to(dtype)
            if weight_grad is not None:
                weight_grad[:num_ids].addmm_(logits_grad.T, hidden[chunk].to(dtype))
            if bias_grad is not None:
                bias_grad[:num_ids] += logits_grad.sum(dim=0)
            del logits_grad
        gradients = zip((hidden_grad, weight_grad, bias_grad), inputs, strict=True)
        converted = (grad if grad is None else grad.to(tensor.dtype) for grad, tensor in gradients)
        return *converted, None, None


class _Head:
    """The rows in use: in their own dtype on a GPU, and in float32 or float64 on a CPU."""

    def __init__(self, weight: Tensor, bias: Tensor | None, num_ids: int | None) -> None:
        rows = weight[:num_ids]
        self.weight = rows if rows.is_cuda else widen(rows)
        self._bias = None if bias is None else widen(bias[:num_ids])
        self._is_wide = self.weight.dtype == widen(rows[:0]).dtype

    def logits(self, hidden: Tensor) -> Tensor:
        hidden = hidden.to(self.weight.dtype)
        if self._is_wide:
            return linear(hidden, self.weight, self._bias)
        logits = torch.mm(hidden, self.weight.T, out_dtype=torch.float32)
        return logits if self._bias is None else logits + self._bias

    def back(self, logits_grad: Tensor) -> Tensor:
        """Return the gradient by hidden states from that by logits, in the weight's dtype."""
        if self._is_wide:
            return logits_grad @ self.weight
        return torch.mm(logits_grad, self.weight, out_dtype=torch.float32)


def _read_chunks(
    head: _Head,
    hidden: Tensor,
    targets: Tensor,
    settings: tuple[float, int, int | None, bool],
    slopes_in: torch.dtype | None,
) -> Iterator[Tensor]:
    """Return log-probs and entropies, and hidden's gradient by log-probs if a dtype is given."""
    temperature, chunk_tokens, _, compiles = settings
    read_logits = _compiled(_read_logits) if compiles else _read_logits
    parts: list[tuple[Tensor, ...]] = []
    for chunk in _chunks(targets, chunk_tokens):
        logits = head.logits(hidden[chunk])
        *values, slopes = read_logits(logits, targets[chunk], temperature, slopes_in)
        parts.append((*values, *map(head.back, slopes)))
        del logits, slopes  # before the next chunk's are allocated
    return map(torch.cat, zip(*parts, strict=True))


def _chunks(targets: Tensor, size: int) -> Iterator[slice]:
    for start in range(0, max(1, len(targets)), size):  # no tokens are one empty chunk
        yield slice(start, start + size)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return cast(Any, torch).compile(function, dynamic=True)


def _read_logits(
    logits: Tensor, targets: Tensor, temperature: float, slopes_in: torch.dtype | None
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return `token_logprobs`, and the gradients of the log-probs if a dtype is given."""
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
    return (widen(logits) / temperature).log_softmax(dim=-1)


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
    """Return the gradient of a loss by logits, from those by log-probs and entropies, [token].

    That of a log-prob is (1 at its target, else 0) - p, that of an entropy -p (log p + entropy),
    both over the temperature. ``normalized`` may be overwritten.
    """
    probs = normalized.exp()
    by_logprobs = by_logprobs[:, None] / temperature
    if by_entropies is None:
        slopes = probs.mul_(-by_logprobs)
    else:
        entropies = -(probs * normalized).sum(dim=-1, keepdim=True)
        by_entropies = by_entropies[:, None] / temperature
        scales = normalized.add_(entropies).mul_(by_entropies).add_(by_logprobs)
        slopes = probs.mul_(scales).neg_()
    return slopes.scatter_add_(-1, targets[:, None], by_logprobs)
