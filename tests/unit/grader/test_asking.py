r"""What a problem says of its answer: the names that mean what it asks for, and percentages."""

from __future__ import annotations

import pytest
from protocol.messages import Graded

from services.grader.answers.asking import MAX_CHARS, Question
from services.grader.answers.comparing import compare_answers
from services.grader.tools import Tools
from services.grader.verifiers.math_answer import decide, decide_response

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        ("Find the area of the circle.", r"\text{Area}"),
        ("What do the tickets cost?", r"\text{Total cost}"),
        ("What is the length of the sides?", r"\text{length of a side}"),
        ("How long is a side of triangle $ABC$?", "AB"),
        ("How long is a side of triangle $ABC$?", "s"),
        ("How long is a side of triangle $ABC$?", r"\theta_1"),
        ("How likely is it?", r"P(\text{win})"),
        (r"Find $m + n$.", "m+n"),
        (r"Find the $x$-intercept.", r"x\text{-intercept}"),
        (r"What is Jane's share?", r"\text{Jane's share}"),
        (r"Find $\sin x$.", r"\sin x"),
        (r"What is $\tfrac{x}{y}$?", r"\dfrac{x}{y}"),
        (r"Compute $x^2+y^2$ if both are whole.", "x^2+y^2"),
        (r"Evaluate $\log_2 x$.", r"\log_2 x"),
        ("What is $2b+c$ (as a decimal)?", "2b+c"),
        ("", r"\text{Area}"),
        ("", "m+n"),
    ],
)
def test_an_answer_may_be_named_as_the_problem_names_it(problem: str, name: str) -> None:
    assert compare_answers("5", f"{name} = 5", question=Question(problem)).equal is True


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        ("Find the perimeter.", r"\text{Area}"),
        ("Find the perimeter.", r"\text{wrong}"),
        ("Find what is wrong.", r"\text{wrong}"),
        ("Find the length.", r"\text{length of a side}"),
        ("Find the length.", "xy"),
        (r"Find $m$.", "m+n"),
        (r"Find $x$ with $\sin x = \cos x$.", r"\sin x"),
        (r"Solve $x^2 = 5$ for $x$.", "x^2"),
        ("What is $2x + 3$?", "2x"),
        ("What is $2x^3$?", "2x"),
        ("", r"\sin x"),
        ("", "2x"),
    ],
)
def test_what_the_problem_does_not_ask_for_is_an_equation(problem: str, name: str) -> None:
    assert compare_answers("5", f"{name} = 5", question=Question(problem)).equal is False


@pytest.mark.parametrize(
    ("problem", "gold", "answer", "is_right"),
    [
        ("Find the ordered pair $(m, n)$.", "(1,2)", "m=1, n=2", True),
        ("Find the ordered pair $(n, m)$.", "(1,2)", "m=1, n=2", False),
        ("Find the ordered pair $(n, m)$.", "(1,2)", "m=2, n=1", True),
        ("", "(1,2)", "n=2, m=1", True),
        ("In what ratio are they mixed?", "5:12", "10:24", True),
        ("In what ratio are they mixed?", "5:12", r"\frac{5}{12}", True),
        ("In what ratio are they mixed?", "5:12", "12:5", False),
        ("When does it arrive?", "5:12", "10:24", False),
        ("", "5:12", "10:24", False),
    ],
)
async def test_the_problem_tells_the_order_of_names_and_a_ratio_from_a_time(
    problem: str, gold: str, answer: str, is_right: bool, tools: Tools
) -> None:
    decision = await decide(gold, answer, tools, problem=problem)
    assert decision.score == Graded(value=is_right, reason=None if is_right else "wrong")


async def test_the_problem_is_known_where_algebra_decides(tools: Tools) -> None:
    for problem, value in (("Find the limit.", 1), ("Find the other one.", 0)):
        response = r"\boxed{\text{limit} = \cos 2x}"
        decision = await decide_response(response, r"\cos^2 x - \sin^2 x", tools, problem=problem)
        assert isinstance(decision.score, Graded)
        assert decision.score.value == value


def test_of_a_very_long_problem_the_end_is_read() -> None:
    problem = "Find the area." + "x" * 2 * MAX_CHARS + " Find the volume."
    for name, is_right in ((r"\text{Volume}", True), (r"\text{Area}", False)):
        assert compare_answers("5", f"{name}=5", question=Question(problem)).equal is is_right
