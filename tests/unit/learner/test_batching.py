"""Splitting a step's samples loses none, repeats none, and keeps every token beside its numbers."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.learner.algorithms.loss import Totals
from services.learner.planning.shapes import BUILT_IN, trained_flops
from services.learner.training.batching import collate, count_totals, micro_batches, mini_batches
from services.learner.training.samples import Sample, assign_places


def a_sample(
    prompt: int,
    response: int,
    group: int = 0,
    advantage: float = 0.0,
) -> Sample:
    return Sample(
        prompt_ids=np.arange(10, 10 + prompt, dtype=np.int32),
        token_ids=np.arange(50, 50 + response, dtype=np.int32),
        behavior_logprobs=-np.arange(1, 1 + response, dtype=np.float32),
        on_version=np.ones(response, dtype=np.int32),
        advantage=advantage,
        reward=advantage / 2,
        correct=advantage > 0,
        group=group,
    )


def length(*samples: Sample) -> int:
    return sum(len(sample.prompt_ids) + len(sample.token_ids) for sample in samples)


@st.composite
def sample_lists(draw: st.DrawFn) -> list[Sample]:
    """Samples whose advantages are their positions."""
    sizes = st.tuples(
        st.integers(1, 6),
        st.integers(0, 12),
        st.integers(0, 5),
    )
    shapes = draw(st.lists(sizes, min_size=1, max_size=30))
    return [a_sample(*shape, advantage=float(index)) for index, shape in enumerate(shapes)]


def positions(parts: list[list[Sample]]) -> list[float]:
    return sorted(sample.advantage for part in parts for sample in part)


@given(
    sample_lists(),
    st.integers(1, 64),
    st.integers(1, 4),
)
def test_micro_batches_hold_every_sample_once_and_respect_the_budget(
    samples: list[Sample], max_tokens: int, num_ranks: int
) -> None:
    parts = micro_batches(samples, max_tokens, num_ranks)
    assert len(parts) % num_ranks == 0
    assert len(parts) < len(samples) + num_ranks
    assert positions(parts) == positions([samples])
    for part in parts:
        assert len(part) == 1 or length(*part) <= max_tokens


@pytest.mark.parametrize("num_ranks", [1, 8])
def test_micro_batches_are_full_and_ranks_have_equal_work(num_ranks: int) -> None:
    """Lengths of reasoning are log-normal up to 20k; the work is that of a 7B model."""
    estimate_work = partial(trained_flops, BUILT_IN["Qwen/Qwen2.5-7B"], None)
    random = np.random.default_rng(1)
    lengths = random.lognormal(8.3, 0.9, size=512).clip(30, 20_000).astype(int)
    samples = [a_sample(20, length) for length in lengths]
    parts = micro_batches(samples, 22_528, num_ranks, estimate_work)
    work = [sum(estimate_work(length(sample)) for sample in part) for part in parts]
    assert length(*samples) / len(parts) >= 0.98 * 22_528
    shares = [sum(work[rank::num_ranks]) for rank in range(num_ranks)]
    assert max(shares) <= 1.02 * min(shares)
    # Under ZeRO-3 all ranks wait for the slowest of a round.
    rounds = [work[start : start + num_ranks] for start in range(0, len(work), num_ranks)]
    assert sum(map(max, rounds)) <= 1.02 * sum(work) / num_ranks


@given(sample_lists(), st.integers(1, 8))
def test_mini_batches_split_along_group_borders(samples: list[Sample], num_updates: int) -> None:
    parts = mini_batches(samples, num_updates)
    assert positions(parts) == positions([samples])
    groups = [{sample.group for sample in part} for part in parts]
    num_groups = len(set().union(*groups))
    assert sum(map(len, groups)) == num_groups
    assert len(parts) == min(num_updates, num_groups)


def test_each_response_token_is_predicted_from_the_position_before_it() -> None:
    samples = [
        a_sample(3, 2, advantage=2.0),
        a_sample(1, 4, advantage=-1.0),
    ]
    assert count_totals(samples) == Totals(tokens=6, sequences=2, positive_tokens=2)
    batch = collate(samples)
    assert batch.input_ids.tolist() == [10, 11, 12, 50, 51, 10, 50, 51, 52, 53]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert (batch.bounds.tolist(), batch.max_length) == ([0, 5, 10], 5)
    assert batch.sample_of.tolist() == [0, 0, 1, 1, 1, 1]
    assert batch.predictors.tolist() == [2, 3, 5, 6, 7, 8]
    assert batch.input_ids[batch.predictors + 1].equal(batch.targets)
    assert batch.advantages.tolist() == [2, 2, -1, -1, -1, -1]
    assert batch.behavior_logprobs.tolist() == [-1, -2, -1, -2, -3, -4]


def test_a_prompt_that_samples_share_is_in_the_row_once() -> None:
    batch = collate([a_sample(2, 1), a_sample(1, 1), a_sample(2, 2)])
    assert batch.input_ids.tolist() == [10, 11, 50, 10, 50, 50, 51]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert (batch.bounds.tolist(), batch.max_length) == ([0, 3, 5, 9], 4)
    assert batch.predictors.tolist() == [1, 3, 1, 5]
    assert batch.layout is not None
    assert batch.layout.tolist() == [0, 1, 2, 3, 4, 0, 1, 5, 6]
    assert batch.first_places is not None
    assert batch.layout[batch.first_places].tolist() == [*range(7)]


def test_a_token_that_is_not_the_policys_is_a_position_and_nothing_else() -> None:
    indexes = np.array([0, 1, 4])
    turns = replace(
        a_sample(2, 6), own_indexes=indexes, behavior_logprobs=-indexes, on_version=indexes > 0
    )
    samples = assign_places([a_sample(1, 1), turns, a_sample(1, 1)])
    batch = collate(samples, shares_prompts=False)
    assert (batch.bounds.tolist(), batch.max_length) == ([0, 2, 10, 12], 8)
    assert batch.sample_of.tolist() == [0, 1, 1, 1, 2]
    assert batch.targets.tolist() == [50, 50, 51, 54, 50]
    assert batch.input_ids[batch.predictors + 1].equal(batch.targets)
    assert batch.predictors.tolist() == [0, 3, 4, 7, 10]
    assert batch.places.tolist() == [0, 1, 2, 3, 4]
    assert batch.behavior_logprobs.tolist() == [-1, 0, -1, -4, -1]
    assert batch.on_version.tolist() == [0, 2, 3, 4]
    assert batch.last_tokens.tolist() == [True, False, False, True, True]
    assert count_totals([turns]).tokens == 3
    assert [len(part) for part in micro_batches([turns, turns], 15, 1)] == [1, 1]


def test_an_empty_micro_batch_has_no_token_and_attends_to_something() -> None:
    batch = collate([])
    assert batch.targets.numel() == 0
    assert batch.bounds.tolist() == [0, 1]
    assert batch.targets.dtype == torch.int64


def test_tokens_are_laid_out_by_response_and_back() -> None:
    batch = collate(
        [
            a_sample(3, 2),
            a_sample(2, 0),
            a_sample(1, 4),
        ]
    )
    values = torch.arange(1.0, 7.0)
    assert batch.longest == 4
    padded = batch.to_rows(values, 5)
    assert padded.tolist() == [[1, 2, 0, 0, 0], [0, 0, 0, 0, 0], [3, 4, 5, 6, 0]]
    assert batch.to_tokens(padded).equal(values)
    assert batch.last_tokens.tolist() == [False, True, False, False, False, True]
