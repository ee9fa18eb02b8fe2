"""A client's operations on every rank: forward, forward_backward and optim_step.

A loss is a sum over all positions with the client's weights, and gradients add up until the next
optim_step. A micro-batch has at most eight sequences. So if a client sends its data in parts of a
multiple of eight sequences per rank, the update is the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import torch
from protocol.operations import Data, Operation
from torch import Tensor

from services.learner.algorithms.loss import (
    TokenBatch,
    cispo,
    clip,
    cross_entropy,
    importance_sampling,
)
from services.learner.training.batching import MicroBatch, collate
from services.learner.training.metrics import StepMetrics
from services.learner.training.models import Models
from services.learner.training.samples import Measured

_BLOCK_SEQUENCES = 8
_TEMPERATURE = 1.0
Objective = Callable[[TokenBatch], tuple[Tensor, Tensor]]


def operate(models: Models, operation: Operation) -> Measured:
    """Carry out an operation; log-probs are those of each position, in the order of the data."""
    if operation.do == "optim_step":
        assert operation.adam is not None
        nothing = 0.0 * models.policy(collate([]).to(models.policy.device), _TEMPERATURE)[0].sum()
        return Measured({"grad_norm": models.policy.step(operation.adam, nothing)})
    assert operation.data is not None
    data = operation.data
    policy = models.policy
    metrics = StepMetrics(policy.device, len(data.targets), copies=models.group.size)
    objective = _objective(operation)

    def compute_loss(batch: MicroBatch) -> Tensor:
        logprobs, _ = policy(batch, _TEMPERATURE)
        tokens = TokenBatch(logprobs, batch.behavior_logprobs, batch.advantages, batch.sample_of)
        losses, _ = objective(tokens)
        metrics.note_tokens(batch.places, logprobs=logprobs)
        metrics.note_share(loss=losses.sum().detach())
        return losses.sum() + 0.0 * logprobs.sum()

    parts = [collate_data(data, part).to(policy.device) for part in _share(models, data)]
    if operation.do == "forward_backward":
        policy.accumulate(parts, compute_loss)
    else:
        with policy.frozen():
            for part in parts:
                compute_loss(part)
    return Measured(metrics.reduced(1), metrics.tokens())


def _objective(operation: Operation) -> Objective:
    """Return the loss per position; in the API thresholds are bounds of the ratio itself."""
    low = operation.settings.get("clip_low_threshold", 0.8)
    high = operation.settings.get("clip_high_threshold", 1.2)
    bounds = {"clip_low": 1 - low, "clip_high": high - 1}
    objectives: Mapping[str, Objective] = {
        "cross_entropy": cross_entropy,
        "importance_sampling": importance_sampling,
        "ppo": partial(clip, **bounds),
        "cispo": partial(cispo, **bounds),
    }
    return objectives[operation.loss]


def _share(models: Models, data: Data) -> list[list[int]]:
    """Return the sequences of this rank's micro-batches; every rank has the same number."""
    size = models.group.size
    num_groups = torch.distributed.get_world_size() // size
    parts = list(_parts(data.lengths, models.recipe.training.micro_batch_tokens * size))
    parts += [[] for _ in range(-len(parts) % num_groups)]
    return parts[torch.distributed.get_rank() // size :: num_groups]


def _parts(lengths: np.ndarray, max_tokens: int) -> Iterator[list[int]]:
    """Yield sequences in their order, in parts of at most ``max_tokens`` within a block."""
    part: list[int] = []
    for index, length in enumerate(lengths.tolist()):
        tokens = int(lengths[part].sum())
        if part and (index % _BLOCK_SEQUENCES == 0 or tokens + length > max_tokens):
            yield part
            part = []
        part.append(index)
    yield part


def collate_data(data: Data, indexes: list[int]) -> MicroBatch:
    """Put sequences into one row; every position predicts its target."""
    if not indexes:
        return collate([])
    ends = np.cumsum(data.lengths)
    lengths = data.lengths[indexes]
    starts = ends[indexes] - lengths
    places = np.concatenate(
        [np.arange(start, start + size) for start, size in zip(starts, lengths, strict=True)]
    )
    count = len(indexes)

    def take(values: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(values[places]).to(dtype)

    return MicroBatch(
        input_ids=take(data.input_ids, torch.int64),
        position_ids=torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])),
        bounds=torch.from_numpy(np.concatenate([[0], lengths.cumsum()])).int(),
        max_length=int(lengths.max()),
        sample_of=torch.arange(count).repeat_interleave(torch.from_numpy(lengths.astype(np.int64))),
        predictors=torch.arange(len(places)),
        targets=take(data.targets, torch.int64),
        places=torch.from_numpy(places),
        behavior_logprobs=take(data.behavior_logprobs, torch.float32),
        advantages=take(data.weights, torch.float32),
        on_version=torch.zeros(0, dtype=torch.int64),
        rewards=torch.zeros(count),
        correct=torch.zeros(count, dtype=torch.bool),
    )
