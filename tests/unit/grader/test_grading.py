"""A group is graded as the recipe says, and what could not be graded never becomes a number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from protocol import names
from protocol.frames import decode, encode
from protocol.messages import (
    ActiveJob,
    Grade,
    Graded,
    GradedGroup,
    Mark,
    RolloutGroup,
    Score,
    Task,
    Ungradable,
)
from protocol.recipe import Purpose, Reward
from protocol.rewards import Check, ScoreModel

from services.chassis.deployment import DeploymentError
from services.grader import grading, worker
from services.grader.grading import MAX_COMMENT_CHARS, MAX_MARKS, Scored
from services.grader.pool import Pool
from services.grader.settings import Settings
from services.grader.tools import Tools
from services.grader.verifiers import VERIFIERS
from tests.builders import a_graded_group, a_group, a_recipe, a_request, a_task

OUTCOME_ONLY = Reward()
BOTH = Reward.model_validate({"process": "equation_steps"})
TEXTS = [r"1+1=2;\boxed{2}", r"1+1=3;\boxed{2}", r"1+1=2;\boxed{3}", "2"]


def a_group_of(texts: list[str], answer: str = "2") -> RolloutGroup:
    request = a_request(
        number=7, purpose=Purpose.EVAL, group_size=len(texts), task=a_task(answer=answer)
    )
    return a_group(request, texts=texts)


def test_every_verifier_that_a_recipe_may_name_exists() -> None:
    assert set(VERIFIERS) == set(names.VERIFIERS)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reward", "process"),
    [
        ({}, [None, None, None, None]),
        ({"process": "equation_steps"}, [1, 0, None, None]),
        ({"process": "equation_steps", "process_for": "all"}, [1, 0, 1, 0]),
    ],
)
async def test_the_process_is_asked_about_the_responses_that_the_recipe_says(
    reward: dict[str, str], process: list[float | None], tools: Tools
) -> None:
    grades = await grading.grade(Reward.model_validate(reward), a_group_of(TEXTS), tools)
    assert [grade.accuracy for grade in grades] == [1, 1, 0, 0]
    assert [grade.process_score for grade in grades] == process
    lost = a_group_of([r"1+1=2;\boxed{x+2}"], answer="+*")
    assert await grading.grade(Reward.model_validate(reward), lost, tools) == (
        Grade(outcome=Ungradable(reason="gold_not_parsable")),
    )


@pytest.mark.anyio
async def test_a_partial_outcome_is_not_correct(tools: Tools) -> None:
    reward = Reward.model_validate({"outcome": "equation_steps", "process": "equation_steps"})
    grades = await grading.grade(reward, a_group_of(["1+1=2;1+2=4", "1+1=2"]), tools)
    assert [grade.accuracy for grade in grades] == [0.5, 1]
    assert [grade.process_score for grade in grades] == [None, 1]


@pytest.mark.anyio
async def test_a_score_may_be_made_of_several_checks(tools: Tools) -> None:
    process = [
        {"verifier": "equation_steps", "weight": 3},
        {"verifier": "math_answer", "sees": "correct"},
    ]
    reward = Reward.model_validate({"process": process, "process_for": "all"})
    grades = await grading.grade(reward, a_group_of(TEXTS), tools)
    assert [grade.process_score for grade in grades] == [1, 0.25, 1, 0]
    first, _, third, _ = [grade.process for grade in grades]
    assert isinstance(first, Graded)
    assert isinstance(third, Graded)
    assert (first.breakdown["math_answer"], first.breakdown["equation_steps.written"]) == (1, 1)
    assert "math_answer" not in third.breakdown
    assert third.breakdown["equation_steps.written"] == 1


@pytest.mark.anyio
async def test_grades_are_counted_by_verifier_verdict_and_reason(tools: Tools) -> None:
    counter = grading.GRADES.labels("math_answer", "wrong", "no_answer")
    before = counter._value.get()
    await grading.grade(OUTCOME_ONLY, a_group_of(TEXTS), tools)
    assert counter._value.get() == before + 1


@pytest.mark.anyio
async def test_without_a_pool_there_is_no_grade(tools: Tools) -> None:
    async with Pool(1) as pool:
        pass
    group = a_group_of([r"\boxed{2}", r"\boxed{\sin x}"])
    with pytest.raises(RuntimeError, match="the pool was closed"):
        await grading.grade(BOTH, group, replace(tools, pool=pool))


@pytest.mark.anyio
async def test_a_verifier_that_raises_costs_one_response_and_says_why_in_the_log(
    tools: Tools, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def length(task: Task, text: str, check: Check, tools: Tools) -> Score:
        return Graded(value=1 / len(text))

    monkeypatch.setitem(VERIFIERS, "mine.length", length)
    reward = Reward.model_validate({"outcome": "mine.length"})
    grades = await grading.grade(reward, a_group_of(["x", "", "xx"]), tools)
    scores = [Graded(value=1), Ungradable(reason="verifier_failed"), Graded(value=0.5)]
    assert grades == tuple(Grade(outcome=score) for score in scores)
    [record] = [each for each in caplog.records if each.message == "a verifier failed"]
    assert (record.__dict__["verifier"], record.__dict__["task"]) == ("mine.length", a_task().id)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.anyio
async def test_a_score_that_no_message_can_hold_is_its_verifiers_failure(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def strange(task: Task, text: str, check: Check, tools: Tools) -> Any:
        return 1.0 if text == "a number" else Graded(value=1, breakdown={"part": float(text)})

    monkeypatch.setitem(VERIFIERS, "mine.strange", strange)
    group = a_group_of(["nan", "inf", "a number", "0.5"])
    reward = Reward.model_validate({"process": "mine.strange", "process_for": "all"})
    grades = await grading.grade(reward, group, tools)
    lost, found = Ungradable(reason="verifier_failed"), Graded(value=1, breakdown={"part": 0.5})
    assert [grade.process for grade in grades] == [lost, lost, lost, found]
    graded = a_graded_group(group, grades=grades)
    assert decode(GradedGroup, encode(graded)).grades == grades


@pytest.mark.anyio
async def test_a_rollout_group_becomes_a_graded_group(tools: Tools) -> None:
    job = ActiveJob(job_id="job", attempt=1, recipe=a_recipe())
    group = a_group_of(TEXTS)
    graded = await worker.station(tools, capacity=4).handle(job, group)
    assert (graded.key, graded.group, graded.failure) == ("eval:7", group, None)
    assert [grade.accuracy for grade in graded.grades] == [1, 1, 0, 0]
    counts = {"written": 1, "right": 1, "wrong": 0, "open": 0, "required": 0}
    assert graded.grades[0] == Grade(
        outcome=Graded(value=1, marks=(Mark(start=13, end=14, verdict="right"),)),
        process=Graded(
            value=1,
            breakdown=counts,
            marks=(Mark(start=0, end=5, verdict="right"),),
        ),
    )
    assert graded.grading_seconds > 0


@pytest.mark.parametrize("text", ["0", "-1", "many", " ", "1.5", "²"])
def test_a_wrong_setting_is_named_and_none_is_a_default(text: str) -> None:
    assert Settings.from_environment({}).groups_in_flight == 256
    with pytest.raises(DeploymentError, match="WEIR_GRADER_WORKERS"):
        Settings.from_environment({"WEIR_GRADER_WORKERS": text})


def combined(parts: list[Scored]) -> Score:
    return grading.combined(parts, of=len(parts))


LOST = Ungradable(reason="judge_timeout")


def scored(
    score: Score, *, name: str = "math_answer", weight: float = 1.0, leave_out: bool = False
) -> Scored:
    fate = "leave_out" if leave_out else "ungradable"
    return Scored(
        Check(verifier="math_answer", name=name, weight=weight, if_ungradable=fate), score
    )


def test_a_single_check_keeps_its_score() -> None:
    score = Graded(value=0.25, reason="wrong_equations", breakdown={"written": 4})
    assert combined([scored(score, weight=7)]) == score
    assert combined([scored(LOST)]) == LOST


def test_one_of_several_checks_is_named_where_only_it_sees_the_response() -> None:
    part = scored(Graded(value=0.5, breakdown={"right": 1}), name="a", weight=3)
    assert grading.combined([part], of=2) == Graded(value=0.5, breakdown={"a": 0.5, "a.right": 1})


def test_several_checks_are_a_weighted_mean_with_the_reason_of_the_lowest() -> None:
    parts = [
        scored(Graded(value=0.5, reason="missing_steps"), name="a"),
        scored(
            Graded(value=0.25, reason="wrong_equations", breakdown={"right": 1}), name="b", weight=4
        ),
    ]
    score = combined(parts)
    assert isinstance(score, Graded)
    assert (score.value, score.reason) == (0.3, "wrong_equations")
    assert score.breakdown == {"a": 0.5, "b": 0.25, "b.right": 1}


def test_a_check_that_could_not_grade_spoils_the_score() -> None:
    assert combined([scored(Graded(value=1), name="a"), scored(LOST, name="b")]) == LOST


def test_a_check_that_may_be_left_out_leaves_the_others_their_weights() -> None:
    parts = [
        scored(LOST, name="a", weight=5, leave_out=True),
        scored(Graded(value=1), name="b", weight=1),
        scored(Graded(value=0), name="c", weight=3),
    ]
    assert combined(parts) == Graded(value=0.25, breakdown={"b": 1, "c": 0})


def test_with_nothing_left_there_is_no_score() -> None:
    parts = [scored(LOST, name="a", leave_out=True), scored(LOST, name="b", leave_out=True)]
    assert combined(parts) == LOST


def reckoned(formula: str, *parts: Scored) -> Score:
    return grading.combined(parts, of=len(parts), formula=formula)


@pytest.mark.parametrize(
    ("formula", "value"), [("max(a, 0.25 * b)", 0.5), ("a + b", 1), ("a - 2 * b", 0)]
)
def test_a_formula_reckons_from_the_checks_values(formula: str, value: float) -> None:
    parts = [scored(Graded(value=0.5), name="a"), scored(Graded(value=1), name="b")]
    assert reckoned(formula, *parts) == Graded(value=value, breakdown={"a": 0.5, "b": 1})


def test_a_formula_without_a_value_is_no_score() -> None:
    parts = [scored(Graded(value=1), name="a"), scored(Graded(value=0), name="b")]
    assert reckoned("a / b", *parts) == Ungradable(reason="formula_undefined")


def test_a_formula_of_what_could_not_be_graded_is_no_score() -> None:
    assert reckoned("max(a, b)", scored(Graded(value=1), name="a"), scored(LOST, name="b")) == LOST


def test_a_formula_knows_a_model_s_number_on_its_own_scale() -> None:
    turns = ({"role": "user", "content": "?"},)
    check = ScoreModel.model_validate({"name": "a", "input": turns, "range": [0, 10]})
    score = reckoned("(a - 4) / 4", Scored(check, Graded(value=0.7)))
    assert isinstance(score, Graded)
    assert score.value == pytest.approx(0.75)


def part(name: str, **found: object) -> Scored:
    return scored(Graded.model_validate({"value": 0.5, **found}), name=name)


def mark(start: int) -> Mark:
    return Mark(start=start, end=start + 1, verdict="right")


def test_marks_and_comments_of_several_checks_come_together() -> None:
    parts = [
        part("steps", marks=(mark(1), mark(5))),
        part("judge", comments={"analysis": "Sound."}),
        scored(LOST, name="lost", leave_out=True),
        part("other", marks=(mark(3),), comments={"analysis": "Sound so far."}),
    ]
    score = combined(parts)
    assert isinstance(score, Graded)
    assert score.marks == (mark(1), mark(5), mark(3))
    assert score.comments == {"judge.analysis": "Sound.", "other.analysis": "Sound so far."}


@pytest.mark.parametrize("num_checks", [1, 2])
def test_marks_and_comments_are_bounded(num_checks: int) -> None:
    many = tuple(map(mark, range(MAX_MARKS)))
    words = {"first": "a" * MAX_COMMENT_CHARS, "second": "b" * 10}
    parts = [part(f"{at}", marks=(*many, mark(0)), comments=words) for at in range(num_checks)]
    score = combined(parts)
    assert isinstance(score, Graded)
    assert score.marks == many
    share = MAX_COMMENT_CHARS // (2 * num_checks)
    assert list(score.comments.values()) == ["a" * share, "b" * 10] * num_checks
