"""Summaries of evaluations: means over tasks and their intervals."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from protocol.messages import Grade, Graded, GradedGroup, Response, Ungradable
from protocol.recipe import Purpose

from services.learner.job.phases import summary
from services.learner.job.phases.summary import Estimate, estimate, pass_at_k, summarize
from tests.builders import (
    a_failed_group,
    a_graded_group,
    a_group,
    a_request,
    a_span,
    a_task,
    an_episodes_group,
)

RIGHT = Graded(value=1.0)
UNGRADABLE = Ungradable(reason="the judge is away")


def the_interval(shares: list[float], draws: int) -> tuple[float, float]:
    result = estimate(shares, draws)
    assert result is not None
    assert result.low is not None
    assert result.high is not None
    return result.low, result.high


def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_correct_one() -> None:
    for graded in range(1, 7):
        for correct in range(graded + 1):
            for k in range(1, graded + 1):
                choices = list(combinations(range(graded), k))
                passed = sum(any(i < correct for i in choice) for choice in choices)
                assert pass_at_k(graded, correct, k) == pytest.approx(passed / len(choices))
    # Of numbers that no float holds.
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5, abs=1e-12)


def test_many_tasks_with_one_response_each_have_wilsons_interval() -> None:
    """Newcombe 1998, Table I: 81 of 263 has the Wilson interval 0.2553 to 0.3662."""
    low, high = the_interval([1.0] * 81 + [0.0] * 182, 263)
    assert (low, high) == pytest.approx((0.2553, 0.3662), abs=3e-4)


@pytest.mark.parametrize(
    ("shares", "draws", "effective", "t"),
    [
        pytest.param([1.0, 0.0] * 5, 10, 10, 2.2622, id="ten tasks have t(9)"),
        pytest.param([0.5] * 30, 120, 120, 2.0452, id="equal tasks are independent responses"),
        pytest.param([1.0, 0.0] * 15, 960, 30, 2.0452, id="different tasks are one draw each"),
    ],
)
def test_an_interval_rests_on_the_effective_draws_and_on_students_t(
    shares: list[float], draws: int, effective: int, t: float
) -> None:
    low, high = the_interval(shares, draws)
    half = 0.5 * (t**2 / (effective + t**2)) ** 0.5
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-4)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_unanimous_tasks_have_an_interval_as_wide_as_their_number_allows(share: float) -> None:
    """With t(29) = 2.0452, t² / (30 + t²) = 0.1224: not zero, and near the rule of three, 0.1."""
    low, high = the_interval([share] * 30, 960)
    assert high - low == pytest.approx(0.1224, abs=1e-4)
    assert 0 <= low <= share <= high <= 1


def test_one_task_has_no_interval_and_none_has_no_mean() -> None:
    assert estimate([0.25], 4) == Estimate(0.25, None, None)
    assert estimate([], 0) is None


def graded(number: int, *grades: Grade) -> GradedGroup:
    task = a_task(id=f"task-{number}")
    request = a_request(number=number, purpose=Purpose.EVAL, group_size=len(grades), task=task)
    return a_graded_group(a_group(request), grades=grades)


def outcomes(number: int, *values: float | None) -> GradedGroup:
    scores = [UNGRADABLE if value is None else Graded(value=value) for value in values]
    return graded(number, *(Grade(outcome=score) for score in scores))


def test_accuracy_is_the_mean_over_tasks_however_many_of_their_responses_were_graded() -> None:
    result = summarize(7, [outcomes(0, 1, None, None, None), outcomes(1, 0, 0, 0, 0)])
    assert (result["step"], result["tasks"], result["samples"]) == (7, 2, 8)
    assert (result["accuracy"], result["ungradable"]) == (0.5, 3)
    half = (result["accuracy_high"] - result["accuracy_low"]) / 2
    assert result["accuracy_interval"] == pytest.approx(half)
    for groups in ([], [outcomes(0, None)]):
        result = summarize(0, groups)
        assert (result["tasks"], result["accuracy"], result["accuracy_interval"]) == (0, None, None)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        pytest.param(
            [outcomes(0, 1, 0, 0, 0, 0), outcomes(1, 0, 0, 0, 0, 0)],
            {"pass@1": 0.1, "pass@2": 0.2, "pass@4": 0.4, "pass@4_left_out": 0},
            id="k doubles up to the samples",
        ),
        pytest.param(
            [outcomes(0, 1, None), outcomes(1, 0, 0), outcomes(2, None, None)],
            {"tasks": 2, "pass@1": 0.5, "pass@1_left_out": 0, "pass@2": 0, "pass@2_left_out": 1},
            id="fewer graded responses than k",
        ),
        pytest.param(
            [outcomes(0, 0.5, 0.5), outcomes(1, 0.7 + 0.2 + 0.1, 0.5)],
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
    grades = (
        Grade(outcome=RIGHT, process=Graded(value=0.5)),
        Grade(outcome=RIGHT, process=UNGRADABLE),
        Grade(outcome=Graded(value=0.0), process=Graded(value=0.9)),
    )
    result = summarize(0, [graded(0, *grades)])
    assert (result["process"], result["process_wrong"]) == (0.5, 0.9)
    assert summarize(0, [outcomes(0, 1, 1)])["process"] is None


def test_length_and_truncation_are_over_all_responses() -> None:
    responses = [
        Response.model_validate({"text": "", "finish_reason": reason, "spans": [a_span(length)]})
        for length, reason in ((2, "stop"), (4, "stop"), (6, "stop"), (8, "length"))
    ]
    request = a_request(purpose=Purpose.EVAL, group_size=4)
    for policy_mask, length in ((np.ones(20), 5.0), (np.arange(20) % 2, 2.5)):
        group = a_group(request, [2, 4, 6, 8], responses=responses, own=policy_mask)
        result = summarize(0, [a_graded_group(group, [1, 0, 0, 0])])
        assert (result["response_length"], result["truncated"]) == (length, 0.25)


def test_broken_episodes_have_no_length() -> None:
    lost = Grade(outcome=UNGRADABLE)
    group = an_episodes_group(1.0, None, purpose=Purpose.EVAL)
    result = summarize(0, [a_graded_group(group, grades=[Grade(outcome=RIGHT), lost])])
    assert (result["response_length"], result["accuracy"], result["ungradable"]) == (3, 1, 1)


def test_failed_groups_change_only_their_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = [a_failed_group(n, purpose=Purpose.EVAL) for n in range(7)]
    whole = [outcomes(7, 1, 1), outcomes(8, 1, None), outcomes(9, None, None)]
    result = summarize(0, [*lost, *whole])
    expected = summarize(0, whole)
    assert result["per_task"] == {"task-7": [2, 2], "task-8": [1, 1]}
    assert (result["asked"], result["failed"]) == (10, 7)
    differing = {name for name in result if result[name] != expected[name]}
    assert differing == {"asked", "failed"}
    monkeypatch.setattr(summary, "MAX_TASKS_REPORTED", 1)
    assert "per_task" not in summarize(0, whole)
