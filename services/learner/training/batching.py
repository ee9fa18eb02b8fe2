"""From samples to micro-batches: pure arithmetic, the same on every rank.

A step's samples are split into mini-batches (one optimizer update each) along group borders, and a
mini-batch into micro-batches that fit the memory, whole samples one after another. Every rank gets
the same number of micro-batches, since collectives run in each, and about the same work. If there
are too few samples, a micro-batch is empty and has no weight.
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
    """Samples in one row without padding, and the positions of the policy's own tokens.

    Samples may share a prompt, which is in the row once: the model computes its positions once, and
    attention lays the samples out one after another, each with its prompt. Without a shared
    prompt there is no layout: places are positions. A token of a tool
    or an environment has a position, and is not a [token].
    """

    input_ids: Tensor  # [position] int64, prompts and responses
    position_ids: Tensor  # [position] int64, from 0 in each sample
    bounds: Tensor  # [sample + 1] int32, where each sample begins and ends in the layout
    max_length: int  # tokens of the longest sample
    sample_of: Tensor  # [token] int64, the sample of each own token
    predictors: Tensor  # [token] int64, the position whose logits predict it
    targets: Tensor  # [token] int64
    places: Tensor  # [token] int64, its place among the own tokens of the step
    behavior_logprobs: Tensor  # [token] float32
    advantages: Tensor  # [token] float32
    on_version: Tensor  # int64, the own tokens that the learner's current version sampled
    rewards: Tensor  # [sample] float32
    correct: Tensor  # [sample] bool
    layout: Tensor | None = None  # [place] int64, the position of each token of each sample
    first_places: Tensor | None = None  # [position] int64, its first place in the layout

    def to(self, device: torch.device) -> MicroBatch:
        """Copy to a device; to a GPU without waiting for its earlier work."""
        is_gpu = torch.cuda.is_available() and device.type != "cpu"
        tensors = {
            name: (value.pin_memory() if is_gpu else value).to(device, non_blocking=is_gpu)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **tensors)

    @property
    def num_samples(self) -> int:
        """The number of samples; an empty micro-batch has one without tokens of its own."""
        return len(self.rewards)

    def to_rows(self, values: Tensor, width: int) -> Tensor:
        """Reshape [token] to [sample, width], right-padded with zeros."""
        shape = (self.num_samples, width)
        return values.new_zeros(shape).index_put((self.sample_of, self._places), values)

    def to_tokens(self, padded: Tensor) -> Tensor:
        """The inverse of `to_rows`: [sample, width] to [token]."""
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
        """Own tokens of the response before each token, [token]."""
        starts = self._lengths.cumsum(0) - self._lengths
        tokens = torch.arange(len(self.sample_of), device=self.sample_of.device)
        return tokens - starts[self.sample_of]

    @property
    def longest(self) -> int:
        return int(self._lengths.max())


def mini_batches(samples: Sequence[Sample], num_updates: int) -> list[list[Sample]]:
    """Split a step's samples into at most ``num_updates`` parts with about as many groups each."""
    groups = sorted({sample.group for sample in samples})
    parts = [part.tolist() for part in np.array_split(np.array(groups), num_updates)]
    return [[sample for sample in samples if sample.group in part] for part in parts if part]


def micro_batches(
    samples: Sequence[Sample],
    max_tokens: int,
    num_ranks: int,
    estimate_work: Callable[[int], float] = float,
) -> list[list[Sample]]:
    """Split a mini-batch into few parts of at most ``max_tokens`` of prompts and responses.

    A longer sample is alone in a part. The number of parts is a multiple of ``num_ranks``; rank r
    takes the parts r, r + num_ranks, ... Ranks have nearly equal work at any time and in total.

    ``estimate_work`` returns the work of a sample of this length.
    """
    ordered = sorted(samples, key=_length, reverse=True)
    count = len(_deal(ordered, 0, 0, max_tokens, estimate_work))
    count += -count % num_ranks
    for even_share in (1.0, 0.75, 0.5, 0.25, 0.0):
        num_even = int(even_share * len(ordered))
        parts = _deal(ordered, count, num_even, max_tokens, estimate_work)
        if len(parts) == count:
            break
    return _arrange_rounds(parts, num_ranks, estimate_work)


def _deal(
    ordered: Sequence[Sample],
    count: int,
    num_even: int,
    max_tokens: int,
    estimate_work: Callable[[int], float],
) -> list[list[Sample]]:
    """Put each sample into a part with room: one of ``count`` parts, or more if necessary.

    The first ``num_even`` go to the part with the least work, which makes parts equal. The others
    go to the fullest part, which needs few parts: best fit decreasing, with the longest first.
    """
    parts: list[list[Sample]] = [[] for _ in range(count)]
    tokens = np.zeros(count)
    work = np.zeros(count)
    for number, sample in enumerate(ordered):
        length = _length(sample)
        has_room = (tokens == 0) | (tokens + length <= max_tokens)
        if not has_room.any():
            parts.append([])
            tokens = np.append(tokens, 0)
            work = np.append(work, 0)
            has_room = np.append(has_room, True)
        order = work if number < num_even else -tokens
        part = int(np.where(has_room, order, np.inf).argmin())
        parts[part].append(sample)
        tokens[part] += length
        work[part] += estimate_work(length)
    return parts


def _arrange_rounds(
    parts: list[list[Sample]], num_ranks: int, estimate_work: Callable[[int], float]
) -> list[list[Sample]]:
    """Order the parts in rounds of similar work; the rank with the least work gets the most."""
    work = [sum(estimate_work(_length(sample)) for sample in part) for part in parts]
    heaviest = sorted(range(len(parts)), key=work.__getitem__, reverse=True)
    totals = np.zeros(num_ranks)
    rounds: list[list[Sample]] = []
    for start in range(0, len(parts), num_ranks):
        chosen = np.zeros(num_ranks, dtype=np.int64)
        chosen[totals.argsort(kind="stable")] = heaviest[start : start + num_ranks]
        totals += np.take(work, chosen)
        rounds += [parts[part] for part in chosen]
    return rounds


def collate(samples: Sequence[Sample], *, shares_prompts: bool = True) -> MicroBatch:
    """Put samples into one row, equal prompts once; no samples are one position without weight."""
    lengths = np.array([_length(sample) for sample in samples] or [1])
    bounds = np.concatenate([[0], lengths.cumsum()])
    input_ids, position_ids, layout = _lay_out(samples, shares_prompts=shares_prompts)
    positions = np.concatenate(layout or [[0]])
    own_places = [sample.own_places for sample in samples]
    sizes = [len(places) for places in own_places]
    predictors = [
        positions[end - len(sample.token_ids) - 1 + places]
        for end, sample, places in zip(bounds[1:], samples, own_places, strict=False)
    ]
    batch = MicroBatch(
        input_ids=_tensor(input_ids or [[0]], torch.int64),
        position_ids=_tensor(position_ids or [[0]], torch.int64),
        bounds=torch.from_numpy(bounds).int(),
        max_length=int(lengths.max()),
        sample_of=torch.arange(len(sizes)).repeat_interleave(
            torch.tensor(sizes, dtype=torch.int64)
        ),
        predictors=_tensor(predictors, torch.int64),
        places=_tensor([s.first_token + np.arange(s.num_own) for s in samples], torch.int64),
        targets=_tensor(
            [s.token_ids[places] for s, places in zip(samples, own_places, strict=True)],
            torch.int64,
        ),
        behavior_logprobs=_tensor([s.behavior_logprobs for s in samples], torch.float32),
        advantages=_tensor([np.full(s.num_own, s.advantage) for s in samples], torch.float32),
        on_version=_tensor([s.on_version for s in samples], torch.bool).nonzero()[:, 0],
        rewards=_tensor([[s.reward for s in samples] or [0.0]], torch.float32),
        correct=_tensor([[s.correct for s in samples] or [False]], torch.bool),
    )
    if len(positions) == len(batch.input_ids):
        return batch
    first_places = np.unique(positions, return_index=True)[1]
    return replace(
        batch, layout=torch.from_numpy(positions), first_places=torch.from_numpy(first_places)
    )


def _lay_out(
    samples: Sequence[Sample], *, shares_prompts: bool
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Return the ids and the position ids of a row, and the positions of each sample in it."""
    input_ids: list[np.ndarray] = []
    position_ids: list[np.ndarray] = []
    layout: list[np.ndarray] = []
    prompts: dict[bytes, np.ndarray] = {}  # positions in the row
    end = 0
    for number, sample in enumerate(samples):
        key = sample.prompt_ids.tobytes() if shares_prompts else b"%d" % number
        offsets = np.arange(_length(sample))
        prompt_length = len(sample.prompt_ids)
        if key not in prompts:
            prompts[key] = end + offsets[:prompt_length]
            input_ids.append(sample.prompt_ids)
            position_ids.append(offsets[:prompt_length])
            end += prompt_length
        input_ids.append(sample.token_ids)
        position_ids.append(offsets[prompt_length:])
        layout += [prompts[key], end + offsets[: len(sample.token_ids)]]
        end += len(sample.token_ids)
    return input_ids, position_ids, layout


def largest_micro_batches(recipe: Recipe, num_ranks: int) -> list[Sample]:
    """Return samples that fill the largest possible micro-batch on every rank.

    They have full length; the last one is shorter if there is room left. An episode of several
    turns may fill the context with its response.
    """
    longest = recipe.model.max_context
    num_whole, remaining = divmod(longest_micro_batch(recipe), longest)
    lengths = [longest] * num_whole + [remaining] * (remaining > 1)
    max_response = longest if recipe.environment else recipe.rollout.sampling.max_tokens
    num_groups = num_ranks // recipe.training.sequence_parallel
    samples = [
        blank_sample(length, min(length - 1, max_response)) for length in lengths * num_groups
    ]
    for number, sample in enumerate(samples):  # as binary digits, so that none shares a prompt
        digits = np.arange(len(sample.prompt_ids))
        sample.prompt_ids[:] = (number >> digits.clip(max=60)) & 1
    return samples


def blank_sample(length: int, response: int) -> Sample:
    """Return a sample of ``length`` tokens that ends with ``response`` of them as the response."""
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


def count_totals(samples: Sequence[Sample]) -> Totals:
    """Count the denominators of a mini-batch's losses."""
    return Totals(
        tokens=sum(sample.num_own for sample in samples),
        sequences=len(samples),
        positive_tokens=sum(sample.num_own for sample in samples if sample.correct),
    )


def _length(sample: Sample) -> int:
    """Return positions in a row."""
    return len(sample.prompt_ids) + len(sample.token_ids)


def _tensor(arrays: Sequence[ArrayLike], dtype: torch.dtype) -> Tensor:
    flat = np.concatenate(arrays) if arrays else np.zeros(0)
    return torch.from_numpy(flat.copy()).to(dtype)
