"""Equations in the reasoning, and what they are worth."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol.messages import Graded, Ungradable

from services.grader.equations import MAX_EQUATIONS, equations, tally
from services.grader.tools import Tools
from services.grader.verifiers import equation_steps
from tests.builders import a_task


@pytest.mark.parametrize(
    ("text", "written", "right"),
    [
        ("47+8=55", 1, 1),
        ("47+8=56", 1, 0),
        (r"47+8=55;55-6=49;49+7=56;\boxed{56}", 3, 3),
        ("47+8-6=49", 1, 1),
        ("2+3 = 6-1 = 5", 2, 2),
        ("47+8=55-6=49", 2, 1),
        ("55 = 47 + 8", 1, 1),
        ("2+3*4=14", 1, 1),
        ("2+3*4=20", 1, 0),
        ("10-4-3=3", 1, 1),
        ("24/4/2=3", 1, 1),
        ("8/3*3=8", 1, 1),
        ("12 ÷ 4 = 3", 1, 1),
        ("3 × 4 = 12", 1, 1),
        ("3 · 4 = 12", 1, 1),
        (r"3 \times 4 = 12", 1, 1),
        (r"$3 \cdot 4 = 12$", 1, 1),
        (r"12 \div 4 = 3", 1, 1),
        ("10 − 3 = 7", 1, 1),
        ("10 – 3 = 7", 1, 1),
        ("0.1+0.2=0.3", 1, 1),
        ("1/3+1/6=1/2", 1, 1),
        ("1/3=0.33", 1, 0),
        (r"\frac{1}{2}+\frac{1}{3}=\frac{5}{6}", 1, 1),
        ("1,234+1=1,235", 1, 1),
        ("5*-3=-15", 1, 1),
        ("5+-3=2", 1, 1),
        ("-3+5=2", 1, 1),
        ("the sum is -3+5=2", 1, 1),
        ("1/0=3", 1, 0),
        ("3+4=7.", 1, 1),
        ("3+4=7, so", 1, 1),
        ("**3+4=7**", 1, 1),
        ("- 3+4=7\n* 5-1=4", 2, 2),
        ("1. 3+4=7\n2) 5-1=4", 2, 2),
        ("Step 2: 3+4=7", 1, 1),
        ("(3+4=7)", 1, 1),
        ("3+4=7 2+2=4", 2, 2),
        ("$5+$3=$8", 1, 1),
        (r"22+2=24\boxed{24}", 1, 1),
        ("3 + 4 = 7 dollars", 1, 1),
        ("2x = 3 + 4 = 7", 1, 1),
        ("", 0, 0),
        ("x = 5", 0, 0),
        ("5 = 5", 0, 0),
        ("47+8=47+8", 0, 0),
        ("3+4", 0, 0),
        ("3+=7", 0, 0),
        ("3+4<=7", 0, 0),
        ("3+4!=8", 0, 0),
        ("x + 3 + 4 = 10", 0, 0),
        ("x+3+4=10", 0, 0),
        ("x2+3=5", 0, 0),
        ("2^2+3=7", 0, 0),
        ("x^2 + 3 + 4 = 9", 0, 0),
        ("2**3+1=9", 0, 0),
        ("5!-3+1=118", 0, 0),
        (r"\sqrt{4}+1+1=4", 0, 0),
        ("(2+3)*4-1=19", 0, 0),
        ("2*(3+4)=14", 0, 0),
        ("3+4=7x", 0, 0),
        ("3+4=7^2", 0, 0),
        (r"25+25=50\%", 0, 0),
        ("3+4=7+x", 0, 0),
        ("3 apples + 4 apples = 7 apples", 0, 0),
        ("1+2=" + "9" * 5000, 1, 0),
        ("1" + "+1" * 50 + "=51", 1, 0),
    ],
)
def test_equations_are_found_and_checked(text: str, written: int, right: int) -> None:
    assert tally(text) == {"written": written, "right": right}


numbers = st.integers(min_value=-999, max_value=999)


@given(numbers, numbers, st.sampled_from(["", " "]))
def test_every_true_equation_is_right(left: int, right: int, gap: str) -> None:
    results = {"+": left + right, "-": left - right, "*": left * right}
    for operator, result in results.items():
        text = f"so: {left}{gap}{operator}{gap}{right}{gap}={gap}{result};"
        assert tally(text) == {"written": 1, "right": 1}


@given(numbers, numbers.filter(bool))
def test_every_exact_quotient_is_right(quotient: int, divisor: int) -> None:
    assert tally(f"{quotient * divisor} ÷ {divisor} = {quotient}") == {"written": 1, "right": 1}


@given(numbers, numbers, st.integers(min_value=1, max_value=9))
def test_every_false_sum_is_wrong(left: int, right: int, error: int) -> None:
    assert tally(f"{left}+{right}={left + right + error}") == {"written": 1, "right": 0}


@given(st.text("0123+-*/=.,x ^\\{}()\n$!%", max_size=80))
def test_no_text_breaks_the_reader(text: str) -> None:
    found = list(equations(text))
    assert sum(equation.is_right for equation in found) <= len(found)


@pytest.mark.parametrize(
    "piece",
    [
        "1+1=2;",
        "1+",
        "=",
        "1=1+",
        "123,",
        "1 ",
        "\\",
        "*",
        "-",
        "1.",
        r"\frac{1}{",
        "a ",
        "9",
        "\n",
    ],
)
def test_reading_takes_time_in_proportion_to_the_text(piece: str) -> None:
    # Linear work on this takes half a second; quadratic work would take the rest of the day.
    text = (piece * 400_000)[:400_000]
    started = time.process_time()
    tally(text)
    assert time.process_time() - started < 30


@pytest.mark.parametrize(
    ("written", "right", "required", "value", "reason"),
    [
        (3, 3, 3, 1, None),
        (3, 2, 3, 2 / 3, "wrong_equations"),
        (2, 2, 3, 2 / 3, "missing_steps"),
        (4, 3, 3, 3 / 4, "wrong_equations"),
        (5, 5, 3, 1, None),
        (0, 0, 3, 0, "no_equations"),
        (MAX_EQUATIONS, MAX_EQUATIONS, 3, 0, "too_long"),
    ],
)
def test_the_score_is_the_share_of_right_equations(
    written: int, right: int, required: int, value: float, reason: str | None
) -> None:
    score = equation_steps.score(written, right, required)
    assert score.value == pytest.approx(value)
    assert score.reason == reason
    assert score.breakdown == {"written": written, "right": right, "required": required}


SOLUTION = r"47+8=55;55-6=49;49+7=56;\boxed{56}"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("solution", "text", "value"),
    [
        (SOLUTION, SOLUTION, 1),
        (SOLUTION, r"47+8=55;55+1=56;\boxed{56}", 2 / 3),
        (None, "1+1=2", 1),
        ("by inspection", "1+1=2", 1),
        (SOLUTION, "1+1=2;" * 3 + "so " * 5000, 1),
        (None, "1+1=2;" * 3 + "x" * 1_000_000, 0),
    ],
)
async def test_a_solution_says_how_many_equations_are_required(
    tools: Tools, solution: str | None, text: str, value: float
) -> None:
    score = await equation_steps.verify(a_task(solution=solution), text, tools)
    assert isinstance(score, Graded)
    assert score.value == pytest.approx(value)


@pytest.mark.anyio
async def test_a_solution_that_cannot_be_read_is_never_a_zero(tools: Tools) -> None:
    score = await equation_steps.verify(a_task(solution=" " * 1_000_001), "1+1=2", tools)
    assert score == Ungradable(reason="solution_too_long")
