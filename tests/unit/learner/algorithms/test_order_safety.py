"""The largest weight of the process that never ranks a correct response below a wrong one."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from torch import Tensor

from services.learner.algorithms.advantages import papo, papo_full_norm
from services.learner.algorithms.order_safety import (
    order_safe_bounds,
    order_safe_lambda,
    order_safe_lambda_full_norm,
)
from tests.unit.learner.algorithms.random_cases import group_of, scores_of
from tests.unit.learner.algorithms.reference import Group

pytestmark = pytest.mark.parametrize("ddof", [0, 1])


def margin(
    group: Group,
    weight: float,
    ddof: int,
    formula: Callable[..., Tensor] = papo,
) -> float:
    """How far the lowest correct response is above the highest wrong one."""
    scores = scores_of(group)
    advantages = formula(
        scores,
        lambda_process=weight,
        ddof=ddof,
        denominator="max",
    )
    return (advantages[scores.correct].min() - advantages[~scores.correct].max()).item()


def test_no_group_is_out_of_order_up_to_the_bound(ddof: int) -> None:
    for seed in range(300):
        random = Random(seed)
        correct, wrong = random.randint(1, 10), random.randint(2, 10)
        outcome, size = [1.0] * correct + [0.0] * wrong, correct + wrong
        group = group_of(
            outcome,
            random.choices([None, 0.0, 0.2, 0.5, 0.8, 1.0], k=size),
        )
        assert margin(group, random.random() * order_safe_lambda(size, ddof=ddof), ddof) >= -1e-9
        whole = random.random() * order_safe_lambda_full_norm(size)
        assert margin(group, whole, ddof, papo_full_norm) >= -1e-9
        judged = replace(
            group,
            process=[
                *group.process[:correct],
                *[None] * wrong,
            ],
        )
        assert margin(judged, 100 * random.random(), ddof, papo_full_norm) >= -1e-9


@pytest.mark.parametrize("size", [3, 4, 8, 33])
def test_one_outlier_attains_the_bound(size: int, ddof: int) -> None:
    bounds = order_safe_bounds(size, ddof=ddof)
    assert list(bounds) == list(range(2, size))
    for correct, bound in bounds.items():
        outcome = [1.0] * correct + [0.0] * (size - correct)
        process = [
            0.0,
            *[1.0] * (correct - 1),
            *[None] * (size - correct),
        ]
        group = group_of(outcome, process)
        assert margin(group, bound * 1.001, ddof) < 0 < margin(group, bound * 0.999, ddof)
    assert order_safe_lambda(size, ddof=ddof) == min(bounds.values())


@pytest.mark.parametrize("size", [2, 3, 8, 33])
def test_where_wrong_ones_are_judged_a_group_attains_the_bound(size: int, ddof: int) -> None:
    correct, bound = size // 2, order_safe_lambda_full_norm(size)
    outcome = [1.0] * correct + [0.0] * (size - correct)
    group = group_of(outcome, [0.0, *[0.5] * (size - 2), 1.0])
    assert margin(group, bound * 1.001, ddof, papo_full_norm) < 0
    assert margin(group, bound * 0.999, ddof, papo_full_norm) > 0


def test_the_sample_std_is_the_default_and_a_group_too_small_has_no_bound(ddof: int) -> None:
    assert (order_safe_bounds(8) == order_safe_bounds(8, ddof=ddof)) == (ddof == 1)
    assert (order_safe_lambda(8) == order_safe_lambda(8, ddof=ddof)) == (ddof == 1)
    assert order_safe_lambda(2) == order_safe_lambda_full_norm(1) == math.inf
