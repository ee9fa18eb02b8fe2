"""Summaries of evaluations: means over tasks and their intervals."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from protocol.messages import GradedGroup, Ungradable
from protocol.recipe import Purpose

from services.learner.job.phases import summary
from services.learner.job.phases.summary import Estimate, estimate, pass_at_k, summarize
from tests.builders import a_failed_group, a_graded_group, a_task, an_episodes_group
from tests.unit.learner.groups import BROKEN, graded, grades


def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_correct_one() -> None:
    for total in range(1, 7):
        for correct, k in product(range(total + 1), range(1, total + 1)):
            choices = list(combinations(range(total), k))
            passed = sum(min(choice) < correct for choice in choices)
            assert pass_at_k(total, correct, k) == pytest.approx(passed / len(choices))
    # Of numbers that no float holds.
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize(
    ("shares", "draws", "low", "high"),
    [
        # Newcombe 1998, Table I: the Wilson interval of 81 of 263.
        pytest.param(
            [1.0] * 81 + [0.0] * 182,
            263,
            0.2553,
            0.3662,
            id="a response each",
        ),
        pytest.param(
            [1.0, 0.0] * 5,
            10,
            0.2091,
            0.7909,
            id="ten tasks have t(9) = 2.2622",
        ),
        pytest.param([0.5] * 30, 120, 0.4083, 0.5917, id="equal tasks are independent responses"),
        pytest.param(
            [1.0, 0.0] * 15,
            960,
            0.3251,
            0.6749,
            id="different tasks are a draw each",
        ),
        # t² / (30 + t²) with t(29) = 2.0452: near the rule of three, 0.1.
        pytest.param([0.0] * 30, 960, 0, 0.1224, id="all wrong"),
        pytest.param([1.0] * 30, 960, 0.8776, 1, id="all right"),
    ],
)
def test_an_interval_rests_on_the_effective_draws_and_on_students_t(
    shares: list[float], draws: int, low: float, high: float
) -> None:
    result = estimate(shares, draws)
    assert result is not None
    assert (result.low, result.high) == pytest.approx((low, high), abs=3e-4)


def test_one_task_has_no_interval_and_none_has_no_mean() -> None:
    assert estimate([0.25], 4) == Estimate(0.25, None, None)
    assert estimate([], 0) is None


def answered(number: int, *outcomes: float | None) -> GradedGroup:
    task = a_task(id=f"task-{number}")
    return graded(*outcomes, number=number, purpose=Purpose.EVAL, task=task)


def test_accuracy_is_the_mean_over_tasks_however_many_of_their_responses_were_graded() -> None:
    result = summarize(
        7,
        [
            answered(0, 1, None, None, None),
            answered(1, 0, 0, 0, 0),
        ],
    )
    assert (result["step"], result["tasks"], result["samples"]) == (7, 2, 8)
    assert (result["accuracy"], result["ungradable"]) == (0.5, 3)
    half = (result["accuracy_high"] - result["accuracy_low"]) / 2
    assert result["accuracy_interval"] == pytest.approx(half)
    result = summarize(0, [answered(0, None)])
    assert (result["tasks"], result["accuracy"], result["accuracy_interval"]) == (0, None, None)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        pytest.param(
            [
                answered(0, 1, 0, 0, 0, 0),
                answered(1, 0, 0, 0, 0, 0),
            ],
            {"pass@1": 0.1, "pass@2": 0.2, "pass@4": 0.4, "pass@4_left_out": 0},
            id="k doubles up to the samples",
        ),
        pytest.param(
            [
                answered(0, 1, None),
                answered(1, 0, 0),
                answered(2, None, None),
            ],
            {
                "tasks": 2,
                "pass@1": 0.5,
                "pass@1_left_out": 0,
                "pass@2": 0,
                "pass@2_left_out": 1,
            },
            id="fewer graded responses than k",
        ),
        pytest.param(
            [
                answered(0, 0.5, 0.5),
                answered(1, 0.7 + 0.2 + 0.1, 0.5),
            ],
            {"accuracy": 0.625, "pass@1": 0.25, "pass@2": 0.5},
            id="partial credit does not pass, and rounding costs nothing",
        ),
    ],
)
def test_pass_at_k_is_the_mean_over_tasks_with_k_graded_responses(
    groups: list[GradedGroup], expected: dict[str, float]
) -> None:
    result = summarize(0, groups)
    assert {key: result[key] for key in expected} == pytest.approx(expected)
    assert "pass@8" not in result
    assert result["pass@1_low"] < result["pass@1"] < result["pass@1_high"]


def test_process_is_the_mean_score_of_right_and_of_wrong_responses() -> None:
    process = [0.5, Ungradable(reason="the judge is away"), 0.9]
    result = summarize(0, [graded(1, 1, 0, process=process)])
    assert (result["process"], result["process_wrong"]) == (0.5, 0.9)
    assert summarize(0, [answered(0, 1, 1)])["process"] is None


def test_length_and_truncation_are_over_all_responses_but_broken_episodes() -> None:
    group = graded(1, 0, 0, 0, lengths=[2, 4, 6, 8], truncated=[3])
    assert group.group is not None
    for policy_mask, length in (
        (np.ones(20), 5.0),
        (np.arange(20) % 2, 2.5),
    ):
        logprobs = group.group.behavior_logprobs * policy_mask
        changes = {"own": policy_mask, "behavior_logprobs": logprobs}
        masked = group.group.model_copy(update=changes)
        result = summarize(0, [a_graded_group(masked, grades=group.grades)])
        assert (result["response_length"], result["truncated"]) == (length, 0.25)
    episodes = an_episodes_group(1.0, None, purpose=Purpose.EVAL)
    result = summarize(
        0,
        [a_graded_group(episodes, grades=grades([1, BROKEN]))],
    )
    assert (result["response_length"], result["accuracy"], result["ungradable"]) == (3, 1, 1)


def test_failed_groups_change_only_their_count(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [a_failed_group(n, purpose=Purpose.EVAL) for n in range(7)]
    whole = [
        answered(7, 1, 1),
        answered(8, 1, None),
        answered(9, None, None),
    ]
    result = summarize(0, [*lost, *whole])
    assert result == summarize(0, whole) | {"asked": 10, "failed": 7}
    assert result["per_task"] == {"task-7": [2, 2, 3, 0], "task-8": [1, 1, 3, 0]}
    monkeypatch.setattr(summary, "MAX_TASKS_REPORTED", 1)
    assert "per_task" not in summarize(0, whole)
