"""Sequence parallelism: several ranks share each packed row, and exchange heads in attention.

Ulysses (arXiv:2309.14509): every rank of a group has a slice of the row's positions; before
attention the ranks exchange them for all positions of a part of the heads, and back after it.
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
    """Neighbouring ranks that share each row; of all groups this rank is in one."""

    size: int
    rank: int = 0  # within the group
    process_group: Any = None

    @classmethod
    def of(cls, size: int) -> RankGroup:
        """This rank's; every rank calls it."""
        me, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if size == 1:
            return ALONE
        groups = [
            torch.distributed.new_group(list(range(first, first + size)))
            for first in range(0, num_ranks, size)
        ]
        return cls(size, me % size, groups[me // size])

    def add_up(self, values: Tensor) -> None:
        torch.distributed.all_reduce(values, group=self.process_group)


ALONE = RankGroup(1)


def attention_over(group: RankGroup, config: PretrainedConfig) -> str:
    """The name by which a model of this shape is to ask for its attention."""
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


@dataclass(frozen=True)
class Slice:
    """This rank's slice of a row, and which of its own tokens that predicts."""

    group: RankGroup
    batch: MicroBatch

    @property
    def _width(self) -> int:
        """Positions of a slice; the last ones may be padding, a sample of its own."""
        return -(-len(self.batch.input_ids) // self.group.size)

    def hidden(self, model: nn.Module) -> Tensor:
        """The last hidden state at the position that predicts each token of its own, [own, hidden].

        The ranks call it together.
        """
        batch, width = self.batch, self._width
        padding = width * self.group.size - len(batch.input_ids)
        bounds = batch.bounds
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
        ).last_hidden_state  # [1, position of the slice, hidden]
        return states[0, batch.predictors[self.is_own] - begin]

    @property
    def is_own(self) -> Tensor:
        """Which tokens are predicted from this rank's positions, [token] bool."""
        return self.batch.predictors // self._width == self.group.rank

    def whole(self, own: Tensor) -> Tensor:
        """[own] to [token]: all values of the row, of which its own have a gradient.

        What all ranks of the group compute of it then has, added up over them, the gradient that
        one rank alone would have.
        """
        if self.group.size == 1:
            return own
        values = own.new_zeros(len(self.batch.predictors))
        values[self.is_own] = own.detach()
        self.group.add_up(values)
        return values.masked_scatter(self.is_own, own)
