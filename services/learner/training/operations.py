"""What every rank does of a client's operations: forward, forward_backward and optim_step.

A loss is a sum over all positions, as the client weighs them, and gradients add up until the next
optim_step. Micro-batches end after every eight sequences at the latest. So where a client sends its
data in parts of a multiple of eight, times the ranks, the update is the same bit for bit.
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

_BLOCK = 8  # sequences
_TEMPERATURE = 1.0
Objective = Callable[[TokenBatch], tuple[Tensor, Tensor]]


def operate(models: Models, operation: Operation) -> Measured:
    """Carry out an operation; the log-probs are of each position, in the order of the data."""
    if operation.do == "optim_step":
        assert operation.adam is not None
        nothing = 0.0 * models.policy(collate([]).to(models.policy.device), _TEMPERATURE)[0].sum()
        return Measured({"grad_norm": models.policy.step(operation.adam, nothing)})
    assert operation.data is not None
    data, policy = operation.data, models.policy
    metrics = StepMetrics(policy.device, len(data.targets), copies=models.group.size)
    objective = _objective(operation)

    def loss_of(batch: MicroBatch) -> Tensor:
        logprobs, _ = policy(batch, _TEMPERATURE)
        behavior, weights = batch.behavior_logprobs, batch.advantages
        losses, _ = objective(TokenBatch(logprobs, behavior, weights, batch.sample_of))
        metrics.of_tokens(batch.places, logprobs=logprobs)
        metrics.share(loss=losses.sum().detach())
        return losses.sum() + 0.0 * logprobs.sum()

    parts = [collate_data(data, part).to(policy.device) for part in _share(models, data)]
    if operation.do == "forward_backward":
        policy.accumulate(parts, loss_of)
    else:
        with policy.frozen():
            for part in parts:
                loss_of(part)
    return Measured(metrics.reduced(1), metrics.tokens())


def _objective(operation: Operation) -> Objective:
    """The loss per position; thresholds are bounds of the ratio itself, as the API has them."""
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
    """The sequences of each of this rank's micro-batches; every rank has as many of those."""
    size = models.group.size
    num_groups = torch.distributed.get_world_size() // size
    parts = list(_parts(data.lengths, models.recipe.training.micro_batch_tokens * size))
    parts += [[] for _ in range(-len(parts) % num_groups)]
    return parts[torch.distributed.get_rank() // size :: num_groups]


def _parts(lengths: np.ndarray, max_tokens: int) -> Iterator[list[int]]:
    """Sequences in their order, in parts of at most ``max_tokens``, each within one block."""
    part: list[int] = []
    for index, length in enumerate(lengths.tolist()):
        tokens = int(lengths[part].sum())
        if part and (index % _BLOCK == 0 or tokens + length > max_tokens):
            yield part
            part = []
        part.append(index)
    yield part


def collate_data(data: Data, indexes: list[int]) -> MicroBatch:
    """Put sequences into one row, every position of which predicts its target."""
    if not indexes:
        return collate([])
    ends = np.cumsum(data.lengths)
    lengths = data.lengths[indexes]
    starts = ends[indexes] - lengths
    places = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    count = len(indexes)

    def of(values: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(values[places]).to(dtype)

    return MicroBatch(
        input_ids=of(data.input_ids, torch.int64),
        position_ids=torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])),
        bounds=torch.from_numpy(np.concatenate([[0], lengths.cumsum()])).int(),
        max_length=int(lengths.max()),
        sample_of=torch.arange(count).repeat_interleave(torch.from_numpy(lengths.astype(np.int64))),
        predictors=torch.arange(len(places)),
        targets=of(data.targets, torch.int64),
        places=torch.from_numpy(places),
        behavior_logprobs=of(data.behavior_logprobs, torch.float32),
        advantages=of(data.weights, torch.float32),
        on_version=torch.zeros(len(places), dtype=torch.bool),
        rewards=torch.zeros(count),
        correct=torch.zeros(count, dtype=torch.bool),
    )
