"""A group is graded as the recipe says, and what could not be graded never becomes a number."""

import tomllib
from dataclasses import replace
from typing import Any

import pytest
from protocol.frames import decode, encode
from protocol.messages import (
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
from services.chassis.pool import Pool
from services.grader import grading
from services.grader.grading import MAX_COMMENT_CHARS, MAX_MARKS, Scored
from services.grader.tools import Settings, Tools
from services.grader.verifiers import VERIFIERS
from tests.builders import a_graded_group, a_group, a_request, a_task, an_episodes_group

TEXTS = [r"1+1=2;\boxed{2}", r"1+1=3;\boxed{2}", r"1+1=2;\boxed{3}", "2"]


def make_group(texts: list[str], answer: str = "2") -> RolloutGroup:
    request = a_request(
        number=7, purpose=Purpose.EVAL, group_size=len(texts), task=a_task(answer=answer)
    )
    return a_group(request, texts=texts)


async def grade_group(tools: Tools, group: RolloutGroup, **reward: Any) -> tuple[Grade, ...]:
    return await grading.grade(Reward.model_validate(reward), group, tools)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("settings", "process"),
    [
        ("", [None, None, None, None]),
        ("process = 'equation_steps'", [1, 0, None, None]),
        ("process = 'equation_steps'\nprocess_for = 'all'", [1, 0, 1, None]),
        (
            """process = [
                { verifier = 'equation_steps', weight = 3 },
                { verifier = 'math_answer', sees = 'correct' },
            ]
            process_for = 'all'""",
            [1, 0.25, 1, None],
        ),
    ],
)
async def test_the_process_is_graded_for_the_responses_that_the_recipe_names(
    settings: str, process: list[float | None], tools: Tools
) -> None:
    reward = tomllib.loads(settings)
    wrong = grading.GRADES.labels("math_answer", "wrong", "no_answer")
    before = wrong._value.get()
    grades = await grade_group(tools, make_group(TEXTS), **reward)
    assert [grade.accuracy for grade in grades] == [1, 1, 0, 0]
    assert [grade.process_score for grade in grades] == process
    assert wrong._value.get() == before + 1
    lost = make_group([r"1+1=2;\boxed{x+2}"], answer="+*")
    assert await grade_group(tools, lost, **reward) == (
        Grade(outcome=Ungradable(reason="gold_not_parsable")),
    )


def test_weights_that_add_up_to_1_but_for_rounding_make_a_right_response() -> None:
    reward = Reward.model_validate({"process": "equation_steps"})
    assert grading.select_process_checks(reward, Graded(value=0.7 + 0.2 + 0.1)) == reward.process
    assert grading.select_process_checks(reward, Graded(value=1 - 1e-8)) == ()


@pytest.mark.anyio
async def test_thinking_that_the_prompt_has_begun_holds_no_answer(
    tools: Tools,
) -> None:
    texts = [r"1+1=2, perhaps \boxed{2}. Wait", r"1+1=2</think>\boxed{2}", r"<think>\boxed{2}"]
    reward = {"process": "equation_steps", "process_for": "all"}
    begun = make_group(texts).model_copy(update={"begins_thinking": True})
    grades = await grade_group(tools, begun, **reward)
    assert [grade.accuracy for grade in grades] == [0, 1, 0]
    assert [grade.outcome.reason for grade in grades] == ["no_answer", None, "no_answer"]
    places = [
        [text[mark.start : mark.end] for mark in grade.process.marks]
        for text, grade in zip(texts, grades, strict=True)
        if isinstance(grade.process, Graded)
    ]
    assert places[:2] == [["1+1=2"], ["1+1=2"]]
    assert isinstance(grades[1].outcome, Graded)
    (mark,) = grades[1].outcome.marks
    assert texts[1][mark.start : mark.end] == "2"
    check = """[outcome]
        verifier = "string_check"
        input = "{{sample.output_text}}"
        operation = "eq"
        reference = ""
    """
    grades = await grade_group(tools, begun, **tomllib.loads(check))
    assert [grade.accuracy for grade in grades] == [1, 0, 1]


@pytest.mark.anyio
async def test_a_partial_outcome_is_not_correct(tools: Tools) -> None:
    group = make_group(["1+1=2;1+2=4", "1+1=2"])
    grades = await grade_group(tools, group, outcome="equation_steps", process="equation_steps")
    assert [(grade.accuracy, grade.process_score) for grade in grades] == [(0.5, None), (1, 1)]


@pytest.mark.anyio
@pytest.mark.parametrize("check", ["environment", "math_answer"])
async def test_an_episode_that_broke_has_no_grade_by_any_check(check: str, tools: Tools) -> None:
    group = an_episodes_group(0.5, None, 1.5, task=a_task(answer="0"))
    first, broken, last = await grade_group(tools, group, outcome=check, process="equation_steps")
    assert broken == Grade(outcome=Ungradable(reason="episode_failed"))
    if check == "environment":
        assert first.outcome == Graded(value=0.5)
        assert last.outcome == Ungradable(reason="reward_out_of_range")
    else:
        assert first.accuracy == 1


@pytest.mark.anyio
async def test_without_a_pool_there_is_no_grade(tools: Tools) -> None:
    async with Pool(1) as pool:
        pass
    group = make_group([r"\boxed{2}", r"\boxed{\sin x}"])
    with pytest.raises(RuntimeError, match="the pool was closed"):
        await grade_group(replace(tools, pool=pool), group, process="equation_steps")


@pytest.mark.anyio
async def test_a_verifier_that_fails_costs_one_response_and_says_why_in_the_log(
    tools: Tools, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def strange(task: Task, text: str, check: Check, tools: Tools) -> Any:
        return 1.0 if text == "a number" else Graded(value=1, breakdown={"part": float(text)})

    monkeypatch.setitem(VERIFIERS, "mine.strange", strange)
    group = make_group(["nan", "inf", "a number", "no number", "0.5"])
    grades = await grade_group(tools, group, outcome="mine.strange")
    failed = Grade(outcome=Ungradable(reason="verifier_failed"))
    assert grades[:4] == (failed,) * 4
    assert grades[4].outcome == Graded(value=1, breakdown={"part": 0.5})
    graded = a_graded_group(group, grades=grades)
    assert decode(GradedGroup, encode(graded)).grades == grades
    records = [vars(record) for record in caplog.records if record.msg == "a verifier failed"]
    assert len(records) == 4
    assert (records[0]["verifier"], records[0]["task"]) == ("mine.strange", "sum-1")
    assert "could not convert string to float: 'no number'" in caplog.text


LOST = Ungradable(reason="judge_timeout")


def part(name: str, score: Score | float, *, leave_out: bool = False, weight: float = 1) -> Scored:
    fate = "leave_out" if leave_out else "ungradable"
    check = Check(verifier="math_answer", name=name, weight=weight, if_ungradable=fate)
    return Scored(check, Graded(value=score) if isinstance(score, float | int) else score)


def combined(*parts: Scored, formula: str | None = None) -> Score:
    return grading.combine(parts, num_checks=len(parts), formula=formula)


ODD = Graded(value=0.25, reason="wrong_equations", breakdown={"right": 1})
MISSING = Graded(value=0.5, reason="missing_steps")
TURNS = ({"role": "user", "content": "?"},)
TO_TEN = ScoreModel.model_validate({"name": "a", "input": TURNS, "range": [0, 10]})
HALF_AND_ONE = [part("a", 0.5), part("b", 1)]
OF_BOTH = {"a": 0.5, "b": 1.0}
QUARTER = Graded(value=0.25, breakdown={"a": 0.5})


@pytest.mark.parametrize(
    ("parts", "formula", "score"),
    [
        ([part("a", ODD, weight=7)], None, ODD),
        ([part("a", LOST)], None, LOST),
        (
            [part("a", MISSING), part("b", ODD, weight=4)],
            None,
            ODD.model_copy(update={"value": 0.3, "breakdown": {"a": 0.5, "b": 0.25, "b.right": 1}}),
        ),
        ([part("a", 1), part("b", LOST)], None, LOST),
        (
            [part("a", LOST, weight=5, leave_out=True), part("b", 1), part("c", 0, weight=3)],
            None,
            Graded(value=0.25, breakdown={"b": 1, "c": 0}),
        ),
        ([part("a", LOST, leave_out=True), part("b", LOST, leave_out=True)], None, LOST),
        (HALF_AND_ONE, "max(a, 0.25 * b)", Graded(value=0.5, breakdown=OF_BOTH)),
        (HALF_AND_ONE, "a + b", Graded(value=1, breakdown=OF_BOTH)),  # cut to 1
        (HALF_AND_ONE, "a - 2 * b", Graded(value=0, breakdown=OF_BOTH)),
        ([part("a", 1), part("b", 0)], "a / b", Ungradable(reason="formula_undefined")),
        ([part("a", 1), part("b", LOST)], "max(a, b)", LOST),
        # A formula knows a model's number on its own scale.
        ([Scored(TO_TEN, Graded(value=0.5))], "(a - 4) / 4", QUARTER),
    ],
)
def test_several_checks_are_a_weighted_mean_with_the_reason_of_the_lowest_or_a_formula(
    parts: list[Scored], formula: str | None, score: Score
) -> None:
    assert combined(*parts, formula=formula) == score


def mark(start: int) -> Mark:
    return Mark(start=start, end=start + 1, verdict="right")


def test_marks_and_comments_of_several_checks_come_together() -> None:
    score = combined(
        part("steps", Graded(value=1, marks=(mark(1), mark(5)))),
        part("judge", Graded(value=1, comments={"analysis": "Sound."})),
        part("lost", LOST, leave_out=True),
        part("other", Graded(value=1, marks=(mark(3),), comments={"analysis": "Sound so far."})),
    )
    assert isinstance(score, Graded)
    assert score.marks == (mark(1), mark(5), mark(3))
    assert score.comments == {"judge.analysis": "Sound.", "other.analysis": "Sound so far."}


@pytest.mark.parametrize("num_checks", [1, 2])
def test_marks_and_comments_are_bounded(num_checks: int) -> None:
    marks = tuple(map(mark, range(MAX_MARKS)))
    comments = {"first": "a" * MAX_COMMENT_CHARS, "second": "b" * 10}
    talkative = Graded(value=1, marks=(*marks, mark(0)), comments=comments)
    score = combined(*(part(f"{number}", talkative) for number in range(num_checks)))
    assert isinstance(score, Graded)
    assert score.marks == marks
    share = MAX_COMMENT_CHARS // (2 * num_checks)
    assert list(score.comments.values()) == ["a" * share, "b" * 10] * num_checks


@pytest.mark.parametrize("text", ["0", " ", "1.5"])
def test_a_wrong_setting_is_named_and_the_default_is_sound(text: str) -> None:
    assert Settings.from_environment({}).groups_in_flight == 256
    with pytest.raises(DeploymentError, match="WEIR_GRADER_WORKERS"):
        Settings.from_environment({"WEIR_GRADER_WORKERS": text})
