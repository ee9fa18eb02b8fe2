"""Formulas: what they may hold, what they come to, and what is said where they come to nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol.formula import FormulaError, read_formula
from protocol.rewards import Reward
from pydantic import ValidationError

NUMBERS = {"a": 0.25, "b": 1.0, "é_1": 1.0}


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("0.7 * a + 0.3 * b", 0.475),
        ("max(a, 0.5 * b)", 0.5),
        ("min(a, b, 0.1)", 0.1),
        ("(a + b) / 2 - -1", 1.625),
        ("a ^ 2", 0.0625),
        ("2 * a ^ 2 + b", 1.125),
        ("a ** 0.5", 0.5),
        ("+abs(a - b)", 0.75),
        ("floor(a) + ceil(a)", 1.0),
        ("sqrt(a) * exp(0) + log(b)", 0.5),
        (" a\n", 0.25),
        ("max(a)", 0.25),
        ("max(\n  2.5e-1 * é_1,\n  .5 + 0. * 1E+2\n)", 0.5),
    ],
)
def test_a_formula_has_a_value(formula: str, value: float) -> None:
    assert read_formula(formula).value(NUMBERS) == pytest.approx(value)


@pytest.mark.parametrize(
    "formula",
    [
        "a / 0",
        "1 / (b - 1)",
        "log(0 * a)",
        "sqrt(-a)",
        "exp(1000 * b)",
        "0 ^ -b",
        "(0 - a) ^ 0.5",
        "1e9 ^ 30 * 1e9 ^ 30 + a",
        "10 ^ 308 * 10 * a",
        "floor(10 ^ 300 * 10 ^ 300)",
    ],
)
def test_where_it_has_none_that_is_said(formula: str) -> None:
    with pytest.raises(FormulaError, match=r"has no (finite )?value"):
        read_formula(formula).value(NUMBERS)


@pytest.mark.parametrize(
    ("formula", "problem"),
    [
        ("a if b else b", "holds something else"),
        ("a.real", "holds something else"),
        ("True * a", "holds something else"),
        ("'a'", "holds something else"),
        ("a % b", "holds something else"),
        ("a[0]", "holds something else"),
        ("lambda: a", "holds something else"),
        ("eval(a)", "holds something else"),
        ("max(*a)", "holds something else"),
        ("max(a, key=b)", "holds something else"),
        ("(max)(a)(b)", "holds something else"),
        ("not " * 400 + "a", "holds something else"),
        ("__import__('os').system('true')", "holds something else"),
        ("sqrt(a, b)", "sqrt has 2 arguments"),
        ("max()", "max has 0 arguments"),
        ("1e999 * a", "a number beyond 1e+09"),
        ("9" * 400 + " * a", "a number beyond 1e+09"),
        ("-" * 900 + "a", "nested too deeply"),
        ("a + " * 300 + "b", "nested too deeply"),
        ("a" * 3000, "longer than 2000 characters"),
        *(
            (f"max(é1_0, {number}) * a", f"holds '{number}', which is no decimal number")
            for number in ("0x10", "0b1", "0o7", "1_0", "1_0.5", "1e0_1")
        ),
        ("(a + b", "is no formula"),
        ("a\0", "is no formula"),
        ("\ud800", "is no formula"),
        ("", "is no formula"),
        ("a; b", "is no formula"),
        ("(" * 1000, "is no formula"),
    ],
)
def test_what_is_no_formula_is_refused(formula: str, problem: str) -> None:
    with pytest.raises(FormulaError) as caught:
        read_formula(formula)
    assert problem in str(caught.value)


@given(st.text(alphabet="ab01.+-*/^() ,=[]:_\nmaxlogsqrt", max_size=60))
def test_no_text_does_more_than_come_to_a_finite_number_or_be_refused(text: str) -> None:
    try:
        formula = read_formula(text)
        if formula.names <= NUMBERS.keys():
            assert math.isfinite(formula.value(NUMBERS))
    except FormulaError:
        pass


CHECKS = [{"verifier": "math_answer", "name": name} for name in "ab"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"formula": "a + c"}, "formula: 'c' is none of the outcome's checks: a, b"),
        ({"formula": "a"}, "formula: 'b' is not used"),
        ({"formula": "a +"}, "formula: 'a +' is no formula"),
        ({"formula": "a * b", "outcome": [CHECKS[0], {**CHECKS[1], "weight": 2}]}, "do nothing"),
    ],
)
def test_a_reward_refuses_a_formula_that_does_not_fit_its_outcome(
    changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Reward.model_validate({"outcome": CHECKS, **changes})
    assert problem in str(caught.value)
