"""From samples to micro-batches: pure arithmetic that every rank does alike.

A step's samples are split into mini-batches (one optimizer update each) along group borders, and a
mini-batch into micro-batches that fit the memory, whole samples one after another. Every rank gets
the same number of micro-batches, since collectives run in each, and about as much work; where
samples run out, a micro-batch is empty and weighs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from protocol.recipe import Recipe
from torch import Tensor

from services.learner.algorithms.loss import Totals
from services.learner.planning.footprint import longest_micro_batch
from services.learner.training.samples import Sample


@dataclass(frozen=True)
class MicroBatch:
    """Samples one after another in a row without padding, and where the policy's own tokens are.

    Every position is read; a token of a tool or an environment is a position and no [token].
    """

    input_ids: Tensor  # [position] int64, prompt and response of each sample
    position_ids: Tensor  # [position] int64, from 0 in each sample
    bounds: Tensor  # [sample + 1] int32, where each sample begins and ends
    max_length: int  # positions of the longest sample
    sample_of: Tensor  # [token] int64, the sample of each own token
    predictors: Tensor  # [token] int64, the position whose logits predict it
    targets: Tensor  # [token] int64
    places: Tensor  # [token] int64, where each is among the own tokens of the step
    behavior_logprobs: Tensor  # [token] float32
    advantages: Tensor  # [token] float32
    on_version: Tensor  # [token] bool
    rewards: Tensor  # [sample] float32
    correct: Tensor  # [sample] bool

    def to(self, device: torch.device) -> MicroBatch:
        return replace(
            self, **{n: v.to(device) for n, v in vars(self).items() if isinstance(v, Tensor)}
        )

    @property
    def num_samples(self) -> int:
        """How many samples it has; an empty one has one without tokens of its own."""
        return len(self.rewards)

    def by_sample(self, values: Tensor, width: int) -> Tensor:
        """Lay out [token] as [sample, width], right-padded with zeros."""
        shape = (self.num_samples, width)
        return values.new_zeros(shape).index_put((self.sample_of, self._places), values)

    def by_token(self, padded: Tensor) -> Tensor:
        """The inverse of `by_sample`: [sample, width] to [token]."""
        return padded[self.sample_of, self._places]

    @property
    def last_tokens(self) -> Tensor:
        """Whether a token is its response's last own one, [token] bool."""
        return self._places == self._lengths[self.sample_of] - 1

    @property
    def _lengths(self) -> Tensor:
        """Own tokens of each sample, [sample]."""
        return torch.bincount(self.sample_of, minlength=self.num_samples)

    @property
    def _places(self) -> Tensor:
        """How many own tokens of its response come before each, [token]."""
        starts = self._lengths.cumsum(0) - self._lengths
        return (
            torch.arange(len(self.sample_of), device=self.sample_of.device) - starts[self.sample_of]
        )

    @property
    def longest(self) -> int:
        return int(self._lengths.max())


def mini_batches(samples: Sequence[Sample], num_updates: int) -> list[list[Sample]]:
    """Split a step's samples into at most ``num_updates`` parts of nearly as many groups each."""
    groups = sorted({sample.group for sample in samples})
    parts = [part.tolist() for part in np.array_split(np.array(groups), num_updates)]
    return [[s for s in samples if s.group in set(part)] for part in parts if part]


def micro_batches(
    samples: Sequence[Sample],
    max_tokens: int,
    num_ranks: int,
    work_of: Callable[[int], float] = float,
) -> list[list[Sample]]:
    """Split a mini-batch into parts of at most ``max_tokens``, as few as it can.

    A sample longer than that goes alone. The number of parts is a multiple of ``num_ranks``; rank r
    takes the parts r, r + num_ranks, ... What the ranks take at the same time is alike, and in all
    each has nearly as much work as the others.

    ``max_tokens`` are of prompt and response; ``work_of`` is the work of so many tokens.
    """
    ordered = sorted(samples, key=_length, reverse=True)
    count = len(_dealt(ordered, 0, 0, max_tokens, work_of))
    count += -count % num_ranks
    for evenly in (1.0, 0.75, 0.5, 0.25, 0.0):
        num_evenly = int(evenly * len(ordered))
        parts = _dealt(ordered, count, num_evenly, max_tokens, work_of)
        if len(parts) == count:
            break
    return _in_rounds(parts, num_ranks, work_of)


def _dealt(
    ordered: Sequence[Sample],
    count: int,
    num_evenly: int,
    max_tokens: int,
    work_of: Callable[[int], float],
) -> list[list[Sample]]:
    """Each sample goes to a part that has room; ``count`` parts, or more where they do not suffice.

    The first ``num_evenly`` go each to the part with the least work, which makes parts equal; the
    others to the fullest, which makes few do: best fit decreasing, where the longest come first.
    """
    parts: list[list[Sample]] = [[] for _ in range(count)]
    tokens, work = np.zeros(count), np.zeros(count)
    for number, sample in enumerate(ordered):
        length = _length(sample)
        has_room = (tokens == 0) | (tokens + length <= max_tokens)
        if not has_room.any():
            parts.append([])
            tokens, work, has_room = np.append(tokens, 0), np.append(work, 0), [*has_room, True]
        order = work if number < num_evenly else -tokens
        part = int(np.where(has_room, order, np.inf).argmin())
        parts[part].append(sample)
        tokens[part] += length
        work[part] += work_of(length)
    return parts


def _in_rounds(
    parts: list[list[Sample]], num_ranks: int, work_of: Callable[[int], float]
) -> list[list[Sample]]:
    """Parts of like work for all ranks at a time, the most for the rank that had the least."""
    work = [sum(work_of(_length(sample)) for sample in part) for part in parts]
    heaviest = sorted(range(len(parts)), key=work.__getitem__, reverse=True)
    totals = np.zeros(num_ranks)
    rounds: list[list[Sample]] = []
    for start in range(0, len(parts), num_ranks):
        chosen = np.zeros(num_ranks, dtype=np.int64)
        chosen[totals.argsort(kind="stable")] = heaviest[start : start + num_ranks]
        totals += np.take(work, chosen)
        rounds += [parts[part] for part in chosen]
    return rounds


def collate(samples: Sequence[Sample]) -> MicroBatch:
    """Put samples into one row; no samples make one position that weighs nothing."""
    lengths = np.array([_length(sample) for sample in samples] or [1])
    bounds = np.concatenate([[0], lengths.cumsum()])
    input_ids = [ids for sample in samples for ids in (sample.prompt_ids, sample.token_ids)]
    own = [sample.own_places for sample in samples]
    sizes = [len(places) for places in own]
    predictors = [
        end - len(sample.token_ids) - 1 + places
        for end, sample, places in zip(bounds[1:], samples, own, strict=False)
    ]
    return MicroBatch(
        input_ids=_tensor(input_ids or [[0]], torch.int64),
        position_ids=_tensor([np.arange(length) for length in lengths], torch.int64),
        bounds=torch.from_numpy(bounds).int(),
        max_length=int(lengths.max()),
        sample_of=torch.arange(len(sizes)).repeat_interleave(
            torch.tensor(sizes, dtype=torch.int64)
        ),
        predictors=_tensor(predictors, torch.int64),
        places=_tensor([s.first_token + np.arange(s.num_own) for s in samples], torch.int64),
        targets=_tensor(
            [s.token_ids[places] for s, places in zip(samples, own, strict=True)], torch.int64
        ),
        behavior_logprobs=_tensor([s.behavior_logprobs for s in samples], torch.float32),
        advantages=_tensor([np.full(s.num_own, s.advantage) for s in samples], torch.float32),
        on_version=_tensor([s.on_version for s in samples], torch.bool),
        rewards=_tensor([[s.reward for s in samples] or [0.0]], torch.float32),
        correct=_tensor([[s.correct for s in samples] or [False]], torch.bool),
    )


def largest_micro_batches(recipe: Recipe, num_ranks: int) -> list[Sample]:
    """Samples that make the largest micro-batch that there may be on every rank.

    They are as long as can be, the last one shorter if no other fits. The limit of a response is
    that of each turn of an episode, which may fill the context.
    """
    longest = recipe.model.max_context
    whole, rest = divmod(longest_micro_batch(recipe), longest)
    lengths = [longest] * whole + [rest] * (rest > 1)
    most = longest if recipe.environment else recipe.rollout.sampling.max_tokens
    num_groups = num_ranks // recipe.training.sequence_parallel
    return [blank_sample(length, min(length - 1, most)) for length in lengths * num_groups]


def blank_sample(length: int, response: int) -> Sample:
    """A sample of so many tokens, of which the last so many are the response."""
    return Sample(
        prompt_ids=np.zeros(length - response, dtype=np.int32),
        token_ids=np.zeros(response, dtype=np.int32),
        behavior_logprobs=np.zeros(response, dtype=np.float32),
        on_version=np.ones(response, dtype=np.int32),
        advantage=1.0,
        reward=1.0,
        correct=True,
        group=0,
    )


def totals_of(samples: Sequence[Sample]) -> Totals:
    """What a mini-batch holds: the denominators of its losses."""
    return Totals(
        tokens=sum(sample.num_own for sample in samples),
        sequences=len(samples),
        positive_tokens=sum(sample.num_own for sample in samples if sample.correct),
    )


def _length(sample: Sample) -> int:
    """Positions in a row: all tokens take memory and work."""
    return len(sample.prompt_ids) + len(sample.token_ids)


def _tensor(arrays: Sequence[ArrayLike], dtype: torch.dtype) -> Tensor:
    flat = np.concatenate(arrays) if arrays else np.zeros(0)
    return torch.from_numpy(flat.copy()).to(dtype)
