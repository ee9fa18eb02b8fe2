"""Several checks become one score, and what could not be graded never becomes a number."""

from __future__ import annotations

import pytest
from protocol.messages import Graded, Mark, Score, Ungradable
from protocol.rewards import Check, ScoreModel

from services.grader import grading
from services.grader.grading import MAX_COMMENT_CHARS, MAX_MARKS, Scored


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
