"""Means over tasks and their intervals, against numbers worked out elsewhere."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.cli.comparison import compare
from services.learner.job.phases.estimates import Estimate, estimate, pass_at_k


def the_interval(shares: list[float], draws: int) -> tuple[float, float]:
    result = estimate(shares, draws)
    assert result is not None
    assert result.low is not None
    assert result.high is not None
    return result.low, result.high


@pytest.mark.parametrize(
    ("graded", "correct", "k", "expected"),
    [(5, 1, 1, 0.2), (5, 2, 2, 0.7), (4, 0, 4, 0.0), (4, 1, 4, 1.0), (200, 1, 100, 0.5)],
)
def test_pass_at_k_has_known_values(graded: int, correct: int, k: int, expected: float) -> None:
    assert pass_at_k(graded, correct, k) == pytest.approx(expected)


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_correct_one(
    graded: int, data: st.DataObject
) -> None:
    correct, k = data.draw(st.integers(0, graded)), data.draw(st.integers(1, graded))
    choices = list(combinations(range(graded), k))
    passed = sum(any(i < correct for i in choice) for choice in choices)
    assert pass_at_k(graded, correct, k) == pytest.approx(passed / len(choices))


def test_pass_at_k_is_exact_for_numbers_that_no_float_holds() -> None:
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5, abs=1e-12)


def test_many_tasks_with_one_response_each_have_wilsons_interval() -> None:
    """Newcombe 1998, Table I: 81 of 263 has the Wilson interval 0.2553 to 0.3662."""
    low, high = the_interval([1.0] * 81 + [0.0] * 182, 263)
    assert (low, high) == pytest.approx((0.2553, 0.3662), abs=3e-4)


def test_few_tasks_have_students_t() -> None:
    """Ten tasks, half solved: Wilson's interval with t(9) = 2.2622 in the place of 1.96."""
    low, high = the_interval([1.0, 0.0] * 5, 10)
    half = 0.5 * (2.2622**2 / (10 + 2.2622**2)) ** 0.5
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-4)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_unanimous_tasks_have_an_interval_as_wide_as_their_number_allows(share: float) -> None:
    """With t(29) = 2.0452, t² / (30 + t²) = 0.1224: not zero, and near the rule of three, 0.1."""
    low, high = the_interval([share] * 30, 960)
    assert high - low == pytest.approx(0.1224, abs=1e-4)
    assert low <= share <= high


def test_tasks_of_equal_share_are_as_good_as_independent_responses() -> None:
    """30 tasks x 4 responses, half right everywhere: 120 draws, t(29) = 2.0452."""
    low, high = the_interval([0.5] * 30, 120)
    half = 0.5 * (2.0452**2 / (120 + 2.0452**2)) ** 0.5
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-4)


def test_more_responses_to_tasks_that_differ_tell_nothing_about_other_tasks() -> None:
    assert the_interval([1.0, 0.0] * 15, 30) == the_interval([1.0, 0.0] * 15, 30 * 32)


def test_one_task_has_no_interval_and_none_has_no_mean() -> None:
    assert estimate([0.25], 4) == Estimate(0.25, None, None)
    assert estimate([], 0) is None


@given(st.lists(st.integers(0, 4), min_size=2, max_size=40))
def test_an_interval_holds_the_mean_has_a_width_and_stays_in_bounds(correct: list[int]) -> None:
    shares = [count / 4 for count in correct]
    low, high = the_interval(shares, 4 * len(shares))
    assert 0 <= low <= sum(shares) / len(shares) + 1e-12
    assert sum(shares) / len(shares) - 1e-12 <= high <= 1
    assert high - low > 0.01


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.7), (3.0, 3.0), (5.0, 0.3)])
@pytest.mark.parametrize("samples", [1, 4, 32])
def test_the_interval_holds_the_truth_in_nearly_95_of_100_evaluations(
    a: float, b: float, samples: int
) -> None:
    assert held_in(a, b, samples) >= 0.91


@pytest.mark.parametrize(
    ("a", "b", "low", "high"),
    [
        (0.1, 2.0, 0.87, 0.93),
        (0.1, 5.0, 0.85, 0.91),
        (5.0, 0.1, 0.85, 0.91),
        (0.05, 2.0, 0.80, 0.88),
        (0.02, 2.0, 0.82, 0.89),
        (2.0, 0.05, 0.80, 0.88),
    ],
)
def test_it_holds_the_truth_less_often_where_few_tasks_hold_all_of_the_mean(
    a: float, b: float, low: float, high: float
) -> None:
    assert low <= held_in(a, b, samples=32) <= high


@pytest.mark.parametrize(
    ("a", "b", "low", "high"),
    [(0.3, 0.7, 0.95, 1.0), (0.1, 2.0, 0.86, 0.93), (0.05, 2.0, 0.82, 0.9)],
)
def test_a_gain_is_held_less_often_where_few_tasks_hold_all_of_the_mean(
    a: float, b: float, low: float, high: float
) -> None:
    """30 tasks x 32 responses, whose chances double; 400 pairs with a fixed seed."""
    random = np.random.default_rng(1)
    chances = random.beta(a, b, 10**6)
    truth = (np.minimum(2 * chances, 1) - chances).mean()
    held = 0
    for _ in range(400):
        before = random.beta(a, b, 30)
        first, last = (
            a_result(random.binomial(32, p)) for p in (before, np.minimum(2 * before, 1))
        )
        found = compare(first, last)
        assert found is not None
        held += found.low <= truth <= found.high
    assert low <= held / 400 <= high


def a_result(correct: np.ndarray) -> dict[str, Any]:
    """An evaluation of 32 responses per task, as the learner reports it."""
    found = estimate((correct / 32).tolist(), 32 * len(correct))
    assert found is not None
    return {
        "tasks": len(correct),
        "accuracy": found.mean,
        "accuracy_low": found.low,
        "accuracy_high": found.high,
        "per_task": {str(task): [int(count), 32] for task, count in enumerate(correct)},
    }


def held_in(a: float, b: float, samples: int) -> float:
    """30 tasks whose difficulty has a Beta distribution; 400 evaluations with a fixed seed."""
    random = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        shares = random.binomial(samples, random.beta(a, b, 30)) / samples
        low, high = the_interval(shares.tolist(), 30 * samples)
        held += low <= a / (a + b) <= high
    return held / 400
