"""Sequence parallelism: several ranks share each packed row, and exchange heads in attention.

Ulysses (arXiv:2309.14509): every rank of a group has a slice of the row's positions. For attention
the ranks exchange slices so that each has all positions of some heads, and exchange back after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, PretrainedConfig

from services.learner.training.attention import packed_attention
from services.learner.training.batching import MicroBatch
from services.learner.training.engine import ulysses_attention


@dataclass(frozen=True)
class RankGroup:
    """The group of neighbouring ranks, this one included, that share each row."""

    size: int
    rank: int = 0  # within the group
    process_group: Any = None

    @classmethod
    def create(cls, size: int) -> RankGroup:
        """Create the groups on every rank; return this rank's."""
        rank = torch.distributed.get_rank()
        num_ranks = torch.distributed.get_world_size()
        if size == 1:
            return ALONE
        groups = [
            torch.distributed.new_group(list(range(first, first + size)))
            for first in range(0, num_ranks, size)
        ]
        return cls(size, rank % size, groups[rank // size])

    def add_up(self, values: Tensor) -> None:
        torch.distributed.all_reduce(values, group=self.process_group)


ALONE = RankGroup(1)


def register_attention(group: RankGroup, config: PretrainedConfig) -> str:
    """Register attention for a model of this shape; return its name."""
    shape = config.get_text_config()
    heads = shape.num_attention_heads
    key_value_heads = getattr(shape, "num_key_value_heads", None) or heads
    size = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    name = f"packed-over-{group.size}-{heads}-{key_value_heads}-{size}"
    attention = ulysses_attention(
        packed_attention,
        group.process_group,
        attn_head_count=heads,
        attn_head_size=size,
        kv_head_count=key_value_heads,
        num_hidden_layers=shape.num_hidden_layers,
    )
    AttentionInterface.register(name, attention)
    return name


def _lengthen(values: Tensor, start: int, count: int) -> Tensor:
    return torch.cat([values, torch.arange(start, start + count, device=values.device)])


@dataclass(frozen=True)
class Slice:
    """This rank's slice of a row, and the own tokens that it predicts."""

    group: RankGroup
    batch: MicroBatch

    @property
    def _width(self) -> int:
        """Positions of a slice; padding at the end of the row is a sample of its own."""
        return -(-len(self.batch.input_ids) // self.group.size)

    def hidden(self, model: nn.Module) -> Tensor:
        """Return the hidden states that predict the slice's tokens, [own, hidden].

        The ranks of a group call it together.
        """
        batch = self.batch
        width = self._width
        length = len(batch.input_ids)
        padding = width * self.group.size - length
        bounds = batch.bounds
        layout = None
        if batch.layout is not None and batch.first_places is not None:
            layout = (
                _lengthen(batch.layout, length, padding),
                _lengthen(batch.first_places, len(batch.layout), padding),
            )
        if padding:
            bounds = torch.cat([bounds, bounds[-1:] + padding])
        begin = self.group.rank * width
        inputs = (batch.input_ids, batch.position_ids)
        ids, positions = (pad(row, (0, padding))[None, begin : begin + width] for row in inputs)
        longest = max(batch.max_length, padding)
        states = model(
            input_ids=ids,
            position_ids=positions,
            use_cache=False,
            cu_seq_lens_q=bounds,
            cu_seq_lens_k=bounds,
            max_length_q=longest,
            max_length_k=longest,
            layout=layout,
        ).last_hidden_state  # [1, position of the slice, hidden]
        return states[0, batch.predictors[self.own] - begin]

    @property
    def own(self) -> Tensor | slice:
        """The tokens that a position of this rank predicts, as an index of [token]."""
        if self.group.size == 1:
            return slice(None)  # a mask would wait for the GPU
        return self._is_own

    @property
    def _is_own(self) -> Tensor:
        return self.batch.predictors // self._width == self.group.rank

    def whole(self, local: Tensor) -> Tensor:
        """[own] to [token]: return all values of the row; this rank's have a gradient.

        Summed over the ranks of the group, gradients are those of a single rank.
        """
        if self.group.size == 1:
            return local
        values = local.new_zeros(len(self.batch.predictors))
        values[self._is_own] = local.detach()
        self.group.add_up(values)
        return values.masked_scatter(self._is_own, local)
