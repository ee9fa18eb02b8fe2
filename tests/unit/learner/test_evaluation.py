"""What an evaluation's groups add up to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from protocol.messages import Grade, Graded, GradedGroup, Response, Ungradable
from protocol.recipe import Purpose

from services.learner.job.phases import summary
from services.learner.job.phases.summary import summarize
from tests.builders import a_graded_group, a_group, a_request, a_span, a_task

RIGHT, WRONG = Graded(value=1.0), Graded(value=0.0)
UNGRADABLE = Ungradable(reason="the judge is away")


def graded(number: int, *grades: Grade, lengths: Sequence[int] | None = None) -> GradedGroup:
    task = a_task(id=f"task-{number}")
    request = a_request(number=number, purpose=Purpose.EVAL, group_size=len(grades), task=task)
    return a_graded_group(a_group(request, lengths), grades=grades)


def outcomes(number: int, *values: float | None) -> GradedGroup:
    scores = [UNGRADABLE if value is None else Graded(value=value) for value in values]
    return graded(number, *(Grade(outcome=score) for score in scores))


def test_accuracy_is_the_mean_over_tasks_with_its_interval() -> None:
    result = summarize(7, [outcomes(0, 1, 1), outcomes(1, 1, 0), outcomes(2, 0, 0)])
    assert (result["step"], result["tasks"], result["samples"]) == (7, 3, 6)
    assert result["accuracy"] == pytest.approx(0.5)
    assert result["accuracy_low"] == pytest.approx(1 - result["accuracy_high"])
    half = (result["accuracy_high"] - result["accuracy_low"]) / 2
    assert result["accuracy_interval"] == pytest.approx(half)
    assert 0.3 < half < 0.5


def test_every_task_counts_the_same_however_many_of_its_responses_were_graded() -> None:
    result = summarize(0, [outcomes(0, 1, None, None, None), outcomes(1, 0, 0, 0, 0)])
    assert result["accuracy"] == pytest.approx(0.5)
    assert result["ungradable"] == 3


def test_pass_at_k_doubles_k_up_to_the_samples() -> None:
    result = summarize(0, [outcomes(0, 1, 0, 0, 0, 0), outcomes(1, 0, 0, 0, 0, 0)])
    assert [key for key in result if key.startswith("pass@") and key[5:].isdigit()] == [
        "pass@1",
        "pass@2",
        "pass@4",
    ]
    assert result["pass@1"] == result["accuracy"] == pytest.approx(0.1)
    assert result["pass@2"] == pytest.approx(0.2)
    assert result["pass@4"] == pytest.approx(0.4)
    assert result["pass@4_low"] < 0.4 < result["pass@4_high"]


def test_tasks_with_fewer_graded_responses_than_k_are_left_out_and_counted() -> None:
    result = summarize(0, [outcomes(0, 1, None), outcomes(1, 0, 0), outcomes(2, None, None)])
    assert (result["tasks"], result["pass@1"], result["pass@1_left_out"]) == (2, 0.5, 0)
    assert (result["pass@2"], result["pass@2_left_out"]) == (0.0, 1)


def test_partial_credit_counts_in_accuracy_and_does_not_pass() -> None:
    result = summarize(0, [outcomes(0, 0.5, 0.5), outcomes(1, 1.0, 0.5)])
    assert result["accuracy"] == pytest.approx(0.625)
    assert (result["pass@1"], result["pass@2"]) == (0.25, 0.5)


def test_process_is_the_mean_over_correct_responses_that_have_a_score() -> None:
    grades = (
        Grade(outcome=RIGHT, process=Graded(value=0.5)),
        Grade(outcome=RIGHT, process=UNGRADABLE),
        Grade(outcome=WRONG, process=Graded(value=0.9)),
    )
    assert summarize(0, [graded(0, *grades)])["process"] == 0.5
    assert summarize(0, [outcomes(0, 1, 1)])["process"] is None


def test_length_and_truncation_are_over_all_responses() -> None:
    request = a_request(purpose=Purpose.EVAL, group_size=4)
    responses = [
        Response.model_validate({"text": "", "finish_reason": reason, "spans": [a_span(length)]})
        for length, reason in ((2, "stop"), (4, "stop"), (6, "stop"), (8, "length"))
    ]
    group = a_group(request, [2, 4, 6, 8], responses=responses)
    result = summarize(0, [a_graded_group(group, [1, 0, 0, 0])])
    assert (result["response_length"], result["truncated"]) == (5.0, 0.25)


def test_the_result_tells_every_task_by_its_id() -> None:
    failed = GradedGroup(purpose=Purpose.EVAL, number=3, failure="deaths: 3")
    groups = [outcomes(0, 1, 0), outcomes(1, None, None), outcomes(2, 0, None), failed]
    assert summarize(0, groups)["per_task"] == {"task-0": [1, 2], "task-2": [0, 1]}


def test_groups_that_failed_are_counted_beside_those_that_the_numbers_are_of() -> None:
    lost = [GradedGroup(purpose=Purpose.EVAL, number=n, failure="deaths: 3") for n in range(7)]
    whole = [outcomes(7, 1, 1), outcomes(8, 1, 0), outcomes(9, None, None)]
    result, of_the_whole = summarize(0, [*lost, *whole]), summarize(0, whole)
    counts = [result[name] for name in ("asked", "failed", "tasks", "ungradable")]
    assert counts == [10, 7, 2, 2]
    differing = {name for name in result if result[name] != of_the_whole[name]}
    assert differing == {"asked", "failed"}


def test_too_many_tasks_are_not_told_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "MAX_TASKS_TOLD", 2)
    groups = [outcomes(number, 1, 0) for number in range(3)]
    assert "per_task" in summarize(0, groups[:2])
    assert "per_task" not in summarize(0, groups)


def test_an_evaluation_without_a_single_grade_has_no_numbers() -> None:
    for groups in ([], [outcomes(0, None)]):
        result = summarize(0, groups)
        assert (result["tasks"], result["accuracy"], result["accuracy_interval"]) == (0, None, None)
