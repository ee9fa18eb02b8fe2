"""Corrections and divergences at their edges."""

import math

import pytest
import torch

from services.learner.algorithms import pick
from services.learner.algorithms.correction import CORRECTIONS
from services.learner.algorithms.divergence import DIVERGENCES
from tests.unit.learner.algorithms.random_cases import double

ROWS = torch.tensor([0, 0, 1])


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_weight_is_capped_and_carries_no_gradient(name: str, dtype: torch.dtype) -> None:
    old = torch.tensor([-1.0, -1.0, -0.5], dtype=dtype, requires_grad=True)
    sampled = torch.tensor([-1.0, -300.0, -0.5], dtype=dtype)
    weights = pick(CORRECTIONS, name, {"correction_cap": 2.0})(old, sampled, ROWS)
    expected = {"none": [1, 1, 1], "token_tis": [1, 2, 1], "sequence_tis": [2, 2, 1]}
    assert weights.tolist() == expected[name]
    assert weights.dtype == torch.float32
    assert not weights.requires_grad


@pytest.mark.parametrize("name", CORRECTIONS)
def test_no_token_has_no_weight(name: str) -> None:
    nothing = torch.zeros(0)
    correction = pick(CORRECTIONS, name, {"correction_cap": 2.0})
    assert correction(nothing, nothing, nothing.long()).shape == (0,)


def test_a_cap_below_1_holds_equal_policies_too() -> None:
    same = double([-1.0, -2.0, -3.0])
    for name in ("token_tis", "sequence_tis"):
        weights = pick(CORRECTIONS, name, {"correction_cap": 0.5})(same, same, ROWS)
        assert weights.tolist() == [0.5] * 3


@pytest.mark.parametrize("name", DIVERGENCES)
def test_equal_policies_do_not_diverge(name: str) -> None:
    same = double([-1.0, -2.0])
    assert DIVERGENCES[name](same, same).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("name", "slope"), [("k1", 1.0), ("k2", -0.5), ("k3", 1 - math.exp(0.5))])
def test_the_gradient_of_a_divergence(name: str, slope: float) -> None:
    logprobs = double([-1.5]).requires_grad_()
    DIVERGENCES[name](logprobs, double([-1.0])).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(slope)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("gap", [-1e4, -100.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_no_gap_makes_a_divergence_or_a_gradient_that_is_not_finite(
    name: str, gap: float, dtype: torch.dtype
) -> None:
    logprobs = torch.tensor([0.0], dtype=dtype, requires_grad=True)
    divergence = DIVERGENCES[name](logprobs, torch.tensor([gap], dtype=dtype))
    divergence.sum().backward()
    assert divergence.isfinite().all()
    assert divergence.dtype == torch.float32
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()


def test_k3_is_exact_up_to_its_limit() -> None:
    found = DIVERGENCES["k3"](double([0.0, 0.0, 0.0, 0.0]), double([19.9, 20.0, 20.1, -50.0]))
    largest = math.exp(20.0) - 21
    expected = [math.exp(19.9) - 20.9, largest, largest, 49.0]
    assert found.tolist() == pytest.approx(expected)
