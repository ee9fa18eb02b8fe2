"""Causal attention within samples that lie one after another in a single row, without padding.

A model that is loaded with ``attn_implementation=PACKED`` computes this in each layer. Nothing
crosses from one sample into another, and no mask exists.
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
from transformers import AttentionInterface

from services.learner.training.model_check import UnsupportedModel

PACKED = "packed"
_MORE = ("softcap", "s_aux", "position_bias")
_LARGEST_HEAD = 256  # of flash attention
# torch 2.11 has no such argument: its kernel lets heads share a key without being asked.
_ASKED = "enable_gqa" in signature(varlen_attn).parameters
_GROUPED: dict[str, Any] = {"enable_gqa": True} if _ASKED else {}
_HOPPER = 9  # the first part of its compute capability


def use_flash_attention(version: int) -> None:
    """Choose the kernel of all attention of this process on a GPU: 2 is torch's own.

    Raises:
        UnsupportedModel: if it is 3, but this GPU or an installed library is not for it.
    """
    if version == 2:
        return
    asked = f"training.flash_attention = {version}"
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != _HOPPER:
        raise UnsupportedModel(f"{asked} needs a Hopper GPU (H100, H200); set it to 2")
    try:
        from torch.nn.attention import activate_flash_attention_impl

        activate_flash_attention_impl("FA3")
    except (ImportError, OSError, RuntimeError) as error:
        raise UnsupportedModel(
            f"{asked}: {error}; install flash-attn-3 for torch {torch.__version__} where the "
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
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers asks for it; its keywords are those of its flash attention.

    Args:
        query: [1, head, position, head size].
        key: [1, key head, position, head size]; heads of the query share one.
        value: as the key.
        cu_seq_lens_q: [sample + 1] int32, where each sample begins and ends.
        max_length_q: positions of the longest sample.

    Returns:
        ([1, position, head, head size], no weights)

    Raises:
        UnsupportedModel: if the model asks for more than causal attention to all of its sample, or
            does not say where samples begin.
    """
    if cu_seq_lens_q is None or attention_mask is not None:
        raise _unsupported(module, "does not hand on where samples begin, or masks by itself")
    _refuse_more(module, max_length_q, others)
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    if _has_kernel(query, value):
        bounds, longest = cu_seq_lens_q, max_length_q
        attended = varlen_attn(
            *(query, key, value, bounds, bounds, longest, longest),
            scale=scaling,
            window_size=(-1, 0),  # causal
            **_GROUPED,
        )
        assert isinstance(attended, Tensor)
    else:
        attended = _in_blocks(query, key, value, cu_seq_lens_q.tolist(), scaling)
    return attended[None], None


def _refuse_more(module: nn.Module, max_length: int, others: dict[str, Any]) -> None:
    """What only other attention can do must not be left out in silence."""
    for name in _MORE:
        if others.get(name) is not None:
            raise _unsupported(module, f"asks for {name}")
    if (others.get("sliding_window") or max_length) < max_length:
        raise _unsupported(module, "has a sliding window within a sample")


def _unsupported(module: nn.Module, what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"model.path: its attention, {type(module).__name__}, {what}; choose a model with causal "
        "attention over the whole context"
    )


def _has_kernel(query: Tensor, value: Tensor) -> bool:
    halves = (torch.bfloat16, torch.float16)
    size = query.shape[-1]
    is_even = size == value.shape[-1] and size <= _LARGEST_HEAD
    return query.is_cuda and query.dtype in halves and is_even


def _in_blocks(
    query: Tensor, key: Tensor, value: Tensor, bounds: list[int], scaling: float | None
) -> Tensor:
    """The same on any device and in any dtype: [position, head, head size] each.

    Samples of similar length are computed as one block, right-padded: under a causal mask what is
    real never looks right. At most half of a block is padding.
    """
    parts: list[Tensor] = []
    places: list[Tensor] = []
    for starts, lengths in _blocks(bounds):
        columns = torch.arange(int(lengths.max()))
        real = columns < lengths[:, None]  # [sample, column]
        index = torch.where(real, starts[:, None] + columns, 0).to(query.device)
        queries, keys, values = (s[index].transpose(1, 2) for s in (query, key, value))
        block = scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scaling, enable_gqa=True
        )
        real = real.to(query.device)
        parts.append(block.transpose(1, 2)[real])
        places.append(index[real])
    attended = query.new_empty((*query.shape[:2], value.shape[-1]))
    return attended.index_put((torch.cat(places),), torch.cat(parts))


def _blocks(bounds: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """(starts, lengths) of samples whose lengths have as many binary digits, both [sample]."""
    alike: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for start, end in pairwise(bounds):
        alike[(end - start).bit_length()].append((start, end - start))
    for block in alike.values():
        starts, lengths = zip(*block, strict=True)
        yield torch.tensor(starts), torch.tensor(lengths)


AttentionInterface.register(PACKED, packed_attention)
