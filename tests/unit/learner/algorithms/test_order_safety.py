"""The largest weight of the process that never ranks a correct response below a wrong one."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from services.learner.algorithms.advantages import papo, papo_full_norm
from services.learner.algorithms.order_safety import (
    order_safe_bounds,
    order_safe_lambda,
    order_safe_lambda_full_norm,
)
from tests.unit.learner.algorithms.groups import groups, scores
from tests.unit.learner.algorithms.random_cases import scores_of
from tests.unit.learner.algorithms.reference import Group

sample_or_population = pytest.mark.parametrize("ddof", [0, 1])


def margin(
    group: Group, lambda_process: float, ddof: int, formula: Callable[..., Tensor] = papo
) -> float:
    """How far the lowest correct response is above the highest wrong one."""
    found = scores_of(group)
    advantages = formula(found, lambda_process=lambda_process, ddof=ddof, denominator="max")
    return (advantages[found.correct].min() - advantages[~found.correct].max()).item()


def with_an_outlier(size: int, num_correct: int) -> Group:
    wrong = size - num_correct
    return Group(
        outcome=[1.0] * num_correct + [0.0] * wrong,
        correct=[True] * num_correct + [False] * wrong,
        process=[0.0] + [1.0] * (num_correct - 1) + [None] * wrong,
        penalty=[0.0] * size,
    )


@sample_or_population
@given(group=groups(min_size=3, max_size=20, punished=False), share=st.floats(0, 1))
def test_no_group_is_out_of_order_up_to_the_bound(group: Group, share: float, ddof: int) -> None:
    if len(set(group.correct)) < 2:
        return
    bound = order_safe_lambda(len(group.outcome), ddof=ddof)
    assert margin(group, share * bound, ddof) >= -1e-9


@sample_or_population
@pytest.mark.parametrize("size", [3, 4, 8, 16, 33, 64])
def test_one_outlier_attains_the_bound(size: int, ddof: int) -> None:
    bounds = order_safe_bounds(size, ddof=ddof)
    assert list(bounds) == list(range(2, size))
    for num_correct, bound in bounds.items():
        group = with_an_outlier(size, num_correct)
        assert margin(group, bound, ddof) == pytest.approx(0, abs=1e-9)
        assert margin(group, bound * 1.001, ddof) < 0 < margin(group, bound * 0.999, ddof)
    assert order_safe_lambda(size, ddof=ddof) == min(bounds.values())


@sample_or_population
@pytest.mark.parametrize("size", [1, 2])
def test_a_group_too_small_for_a_process_has_no_bound(size: int, ddof: int) -> None:
    assert order_safe_lambda(size, ddof=ddof) == math.inf


def test_the_sample_std_is_the_default() -> None:
    assert order_safe_bounds(8) == order_safe_bounds(8, ddof=1) != order_safe_bounds(8, ddof=0)
    assert order_safe_lambda(8) == order_safe_lambda(8, ddof=1) != order_safe_lambda(8, ddof=0)


def test_the_papers_weight_is_safe_for_8_and_not_for_16() -> None:
    assert margin(with_an_outlier(8, 6), 1.0, 1) > 0
    assert margin(with_an_outlier(16, 14), 1.0, 1) < 0


def test_a_punishment_may_put_a_correct_response_below_a_wrong_one() -> None:
    long = scores([1, 1, 0, 0], [1.0, 1.0, None, None], [0.0, -1.0, 0.0, 0.0])
    assert torch.allclose(papo(long)[1], papo(long)[2])


def half_correct_one_worst_and_a_wrong_one_best(size: int) -> Group:
    correct = size // 2
    return Group(
        outcome=[1.0] * correct + [0.0] * (size - correct),
        correct=[True] * correct + [False] * (size - correct),
        process=[0.0, *[0.5] * (size - 2), 1.0],
        penalty=[0.0] * size,
    )


@sample_or_population
@given(group=groups(min_size=2, max_size=20, punished=False), share=st.floats(0, 1))
def test_where_wrong_ones_are_judged_no_group_is_out_of_order_up_to_the_bound(
    group: Group, share: float, ddof: int
) -> None:
    if len(set(group.correct)) < 2:
        return
    bound = order_safe_lambda_full_norm(len(group.outcome))
    assert margin(group, share * bound, ddof, papo_full_norm) >= -1e-9


@sample_or_population
@pytest.mark.parametrize("size", [2, 3, 4, 8, 16, 33])
def test_where_wrong_ones_are_judged_a_group_attains_the_bound(size: int, ddof: int) -> None:
    group, bound = (
        half_correct_one_worst_and_a_wrong_one_best(size),
        order_safe_lambda_full_norm(size),
    )
    assert margin(group, bound, ddof, papo_full_norm) == pytest.approx(0, abs=1e-9)
    assert margin(group, bound * 1.001, ddof, papo_full_norm) < 0
    assert margin(group, bound * 0.999, ddof, papo_full_norm) > 0


@sample_or_population
@given(group=groups(min_size=2, max_size=20, punished=False), weight=st.floats(0, 100))
def test_where_only_correct_ones_are_judged_the_whole_group_keeps_the_order_with_any_weight(
    group: Group, weight: float, ddof: int
) -> None:
    if len(set(group.correct)) < 2:
        return
    pairs = zip(group.process, group.correct, strict=True)
    judged = replace(group, process=[score if correct else None for score, correct in pairs])
    assert margin(judged, weight, ddof, papo_full_norm) >= -1e-9


def test_a_lone_response_has_no_order_to_lose() -> None:
    assert order_safe_lambda_full_norm(1) == math.inf
