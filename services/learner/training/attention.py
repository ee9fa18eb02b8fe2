"""Causal attention within samples that lie one after another in a single row, without padding.

A model loaded with ``attn_implementation=PACKED`` computes this in each layer. No token attends to
another sample, and there is no mask.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PretrainedConfig

from services.learner.training.model_check import UnsupportedModel

PACKED = "packed"
_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")
_LARGEST_HEAD = 256  # of flash attention
# torch 2.11 has no such argument: there heads always may share a key.
_HAS_GQA = "enable_gqa" in signature(varlen_attn).parameters
_GROUPED: dict[str, Any] = {"enable_gqa": True} if _HAS_GQA else {}
_HOPPER = 9  # the first part of its compute capability


def mixes_in_attention(config: PretrainedConfig) -> bool:
    """Return whether positions see each other in attention only, not by convolution or a state."""
    layer_types = getattr(config.get_text_config(), "layer_types", None) or ()
    return _ATTENTION_LAYERS.issuperset(layer_types)


def use_flash_attention(version: int) -> None:
    """Choose the attention kernel of this process on a GPU: 2 is torch's own.

    Raises:
        UnsupportedModel: if it is 3, but this GPU or the installed libraries do not support it.
    """
    if version == 2:
        return
    setting = f"training.flash_attention = {version}"
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != _HOPPER:
        raise UnsupportedModel(f"{setting} needs a Hopper GPU (H100, H200); set it to 2")
    try:
        from torch.nn.attention import activate_flash_attention_impl

        activate_flash_attention_impl("FA3")
    except (ImportError, OSError, RuntimeError) as error:
        raise UnsupportedModel(
            f"{setting}: {error}; install flash-attn-3 for torch {torch.__version__} where the "
            "learner runs, or set it to 2"
        ) from error


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    layout: tuple[Tensor, Tensor] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention for transformers; the keywords are those of its flash attention.

    Samples that share a prompt are laid out first: each gets its queries, keys and values.

    Args:
        query: [1, head, position, head size].
        key: [1, key head, position, head size]; several query heads share one.
        value: like the key.
        cu_seq_lens_q: [sample + 1] int32, where each sample begins and ends in the layout.
        max_length_q: tokens of the longest sample.
        layout: the position of each place, [place], and the first place of each position,
            [position]; None if they are the same.

    Returns:
        ([1, position, head, head size], no weights)

    Raises:
        UnsupportedModel: if the model needs more than causal attention over its whole sample, or
            does not pass the bounds of samples.
    """
    if cu_seq_lens_q is None or attention_mask is not None:
        raise _unsupported(module, "does not pass the bounds of samples, or has a mask of its own")
    _check_options(module, max_length_q, options)
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    if layout is not None:
        query, key, value = (states[layout[0]] for states in (query, key, value))
    if _has_kernel(query, value):
        attended = _attend_in_kernel(query, key, value, cu_seq_lens_q, max_length_q, scaling)
    else:
        attended = _attend_in_blocks(query, key, value, cu_seq_lens_q.tolist(), scaling)
    if layout is not None:
        attended = attended[layout[1]]
    return attended[None], None


def _check_options(module: nn.Module, max_length: int, options: dict[str, Any]) -> None:
    """Refuse options that this attention would ignore."""
    for name in _UNSUPPORTED:
        if options.get(name) is not None:
            raise _unsupported(module, f"needs {name}")
    if (options.get("sliding_window") or max_length) < max_length:
        raise _unsupported(module, "has a sliding window within a sample")


def _unsupported(module: nn.Module, problem: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"model.path: its attention, {type(module).__name__}, {problem}; choose a model with "
        "causal attention over the whole context"
    )


def _has_kernel(query: Tensor, value: Tensor) -> bool:
    halves = (torch.bfloat16, torch.float16)
    size = query.shape[-1]
    is_even = size == value.shape[-1] and size <= _LARGEST_HEAD
    return query.is_cuda and query.dtype in halves and is_even


def _attend_in_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    max_length: int,
    scaling: float | None,
) -> Tensor:
    attended = varlen_attn(
        query,
        key,
        value,
        bounds,
        bounds,
        max_length,
        max_length,
        scale=scaling,
        window_size=(-1, 0),  # causal
        **_GROUPED,
    )
    assert isinstance(attended, Tensor)
    return attended


def _attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, bounds: list[int], scaling: float | None
) -> Tensor:
    """Compute attention on any device and in any dtype: [position, head, head size] each.

    Samples of similar length form one block, right-padded: under a causal mask no real token
    attends to the padding. At most half of a block is padding.
    """
    parts: list[Tensor] = []
    places: list[Tensor] = []
    for starts, lengths in _blocks(bounds):
        columns = torch.arange(int(lengths.max()))
        real = columns < lengths[:, None]  # [sample, column]
        index = torch.where(real, starts[:, None] + columns, 0).to(query.device)
        queries, keys, values = (states[index].transpose(1, 2) for states in (query, key, value))
        block = scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scaling, enable_gqa=True
        )
        real = real.to(query.device)
        parts.append(block.transpose(1, 2)[real])
        places.append(index[real])
    attended = query.new_empty((*query.shape[:2], value.shape[-1]))
    return attended.index_put((torch.cat(places),), torch.cat(parts))


def _blocks(bounds: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (starts, lengths) of samples with equal binary digits of length, both [sample]."""
    groups: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for start, end in pairwise(bounds):
        groups[(end - start).bit_length()].append((start, end - start))
    for block in groups.values():
        starts, lengths = zip(*block, strict=True)
        yield torch.tensor(starts), torch.tensor(lengths)


AttentionInterface.register(PACKED, packed_attention)
