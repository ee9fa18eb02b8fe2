"""What the critic learns, and what is learned from right answers alone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.learner.algorithms.values import Moments, positive_nll, value_loss
from tests.unit.learner.algorithms.random_cases import double

NUMBERS = st.lists(st.floats(-2, 2), min_size=1, max_size=9)


@pytest.mark.parametrize(
    ("value", "target", "value_clip", "loss", "slope"),
    [
        (1.5, 1.0, None, 0.125, 0.5),
        (1.5, 1.0, 0.25, 0.125, 0.5),
        (1.5, 2.0, 0.25, 0.28125, 0.0),
        (0.5, 0.0, 0.25, 0.28125, 0.0),
        (1.1, 2.0, 0.25, 0.405, -0.9),
    ],
)
def test_a_value_gains_nothing_from_moving_too_far(
    value: float, target: float, value_clip: float | None, loss: float, slope: float
) -> None:
    values = double([value]).requires_grad_()
    losses = value_loss(values, double([1.0]), double([target]), value_clip=value_clip)
    losses.sum().backward()
    assert losses.item() == pytest.approx(loss)
    assert values.grad is not None
    assert values.grad.item() == pytest.approx(slope)


def test_the_loss_of_half_precision_values_is_float32() -> None:
    half = torch.tensor([1.5], dtype=torch.bfloat16)
    for value_clip in (None, 0.25):
        losses = value_loss(half, half, torch.tensor([1.0]), value_clip=value_clip)
        assert losses.dtype == torch.float32
        whole = value_loss(half, half, half * 0 + 1, value_clip=value_clip)
        assert whole.dtype == torch.float32


@given(NUMBERS, NUMBERS)
def test_the_moments_of_ranks_add_up(mine: list[float], yours: list[float]) -> None:
    one, other = (Moments.of(double(v), double(v) * 0.5 + 1) for v in (mine, yours))
    both = Moments.of(double(mine + yours), double(mine + yours) * 0.5 + 1)
    sums = [a + b for a, b in zip(vars(one).values(), vars(other).values(), strict=True)]
    assert sums == pytest.approx(list(vars(both).values()))


@pytest.mark.parametrize(
    ("values", "explained"),
    [
        ([1.0, 2.0, 3.0], 1.0),
        ([11.0, 12.0, 13.0], 1.0),
        ([5.0, 5.0, 5.0], 0.0),
        ([3.0, 2.0, 1.0], -3.0),
    ],
)
def test_how_much_a_critic_explains(values: list[float], explained: float) -> None:
    moments = Moments.of(double([1.0, 2.0, 3.0]), double(values))
    assert moments.explained_variance() == pytest.approx(explained)


def test_where_nothing_varies_there_is_nothing_to_explain() -> None:
    for returns in ([], [1.0], [0.1] * 7):
        moments = Moments.of(double(returns), double([0.5] * len(returns)))
        assert math.isnan(moments.explained_variance())
    barely = Moments.of(double([0.0, 2.1e-6]), double([0.0, 2.1e-6]))
    assert barely.explained_variance() == pytest.approx(1)
    too_little = Moments.of(double([0.0, 2e-6]), double([0.0, 0.0]))
    assert math.isnan(too_little.explained_variance())


def test_moments_of_half_precision_are_exact() -> None:
    returns = torch.ones(3000, dtype=torch.bfloat16)
    assert Moments.of(returns, returns) == Moments(3000.0, 3000.0, 3000.0, 0.0, 0.0)


def test_only_right_answers_are_imitated() -> None:
    logprobs = torch.tensor([-1.0, -math.inf, -3.0, -2.0], requires_grad=True)
    correct = torch.tensor([True, False, True, False])
    nll = positive_nll(logprobs, correct, num_positive_tokens=8)
    nll.backward()
    assert nll.item() == 0.5
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-0.125, 0.0, -0.125, 0.0]


def test_without_right_answers_nothing_is_imitated() -> None:
    logprobs = torch.tensor([-1.0, -2.0], dtype=torch.bfloat16, requires_grad=True)
    nll = positive_nll(logprobs, torch.tensor([False, False]), num_positive_tokens=0)
    nll.backward()
    assert nll.item() == 0
    assert nll.dtype == torch.float32
    assert positive_nll(logprobs, torch.tensor([True, False]), num_positive_tokens=0).item() == 1
