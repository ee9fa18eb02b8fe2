"""Plain arithmetic, which the service decides itself."""

from __future__ import annotations

import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.grader.equations import equations, is_plain
from services.grader.relations.judging import judge
from services.grader.steps import plain_steps


def tally(text: str) -> dict[str, int]:
    found = list(equations(text))
    return {"written": len(found), "right": sum(equation.is_right for equation in found)}


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
    "text",
    [
        r"47+8=55;55-6=49;49+7=56;\boxed{56}",
        r"47+8=;55==+6",
        "Step 2: 3+4=7, so 2 × 3 = 6.\n- 10 ÷ 5 = 2",
        "She has $5 + $3 = $8 now.",
        "nothing to see",
        "",
    ],
)
def test_plain_arithmetic_is_told_at_once(text: str) -> None:
    assert is_plain(text)


@pytest.mark.parametrize(
    "text",
    [
        "x = 5",
        "2*(3+4)=14",
        "3+4<8",
        "2^3=8",
        r"$\frac{1}{2}=0.5$",
        "half of 50 + 10 = 35",
        "3 x 4 + 1 = 13",
        "3/2 = 1 1/2",
        "|x| + 2 + 3 = 9",
        "3 apples + 4 + 1 = 8 apples",
        "17/5 = 3 remainder 2",
        "10!=3628800",
    ],
)
def test_whatever_may_hold_more_is_not_plain(text: str) -> None:
    assert not is_plain(text)


@given(st.lists(st.sampled_from(["1", "20", "+", "-", "*", "/", "=", ";", ", ", ". ", "1+2=3"])))
def test_the_pool_finds_in_plain_arithmetic_what_the_service_finds(pieces: list[str]) -> None:
    text = "".join(pieces).replace("**", "*").replace("==", "=")
    assume("**" not in text and "==" not in text)
    assert [tuple(step) for step in plain_steps(text)] == judge(text, 0, 1_000)


def test_steps_are_the_same_for_all_ways_to_space_them() -> None:
    assert plain_steps("3 × 4 = 12")[0] == plain_steps("3*4=12")[0] == ("3*4=12", "right")
