"""Exact numbers, and the forms that name their integers."""

from __future__ import annotations

import re
from fractions import Fraction
from math import gcd, isqrt, pi, sqrt

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from services.data.decimals import rounded_decimal
from services.data.forms import RATIONAL, Exact, Form, TooHard, form_of, name_letters, sentence
from services.data.numbers import read_number
from services.data.reading import read_quantity


def is_squarefree(number: int) -> bool:
    return all(number % square**2 for square in range(2, isqrt(number) + 1))


INTEGERS = st.integers(-200, 200)
ABOVE_ZERO = st.integers(1, 200)
SQUAREFREE = st.integers(1, 500).filter(is_squarefree)


def same_letters(form: Form) -> dict[str, str]:
    return {letter: letter for letter in form.values}


@pytest.mark.parametrize(
    ("latex", "value"),
    [
        (r"\frac{14}{3}", 14 / 3),
        (r"\frac 59", 5 / 9),
        ("7/2", 3.5),
        (r"-1\frac45", -1.8),
        (r"137 \frac{1}{2}", 137.5),
        (".0000672", 0.0000672),
        ("58,500", 58500),
        (r"10,\!080", 10080),
        (r"\sqrt{\frac{8}{9}}", sqrt(8 / 9)),
        (r"\frac{2}{\sqrt{3}-1}", 2 / (sqrt(3) - 1)),
        (r"\dfrac{-3+\sqrt{17}}{4}", (-3 + sqrt(17)) / 4),
        (r"\frac{20000}{\pi}", 20000 / pi),
        (r"\left(1+\sqrt{2}\right)^2", (1 + sqrt(2)) ** 2),
        (r"10^{-2}", 0.01),
        (r"\frac{\pi^2}{6}", pi**2 / 6),
    ],
)
def test_a_number_is_read_exactly(latex: str, value: float) -> None:
    number = read_quantity(latex).number
    total = sum(float(part) * sqrt(r) * pi**power for (r, power), part in number.terms.items())
    assert total == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "latex",
    [
        *("", "x", "1 2", r"\sqrt[3]{4}", r"\sqrt12", r"\sqrt{-4}", r"\frac{1}{0}", r"1/2\pi"),
        *(r"\sqrt{\sqrt{2}}", "9^{9^{9^{9}}}", "2^{1/3}", "(" * 500, r"\frac{1}{\pi+1}"),
        *(r"\sqrt{" + "9" * 30 + "}", r"(10^{60})^{60}"),
    ],
)
def test_what_is_no_plain_number_is_refused(latex: str) -> None:
    with pytest.raises(TooHard):
        read_number(latex)


@pytest.mark.parametrize(
    "answer",
    [
        *(r"12\text{ students}", r"\text{Evelyn}", r"\text{(C)}", r"(3,\frac{\pi}{2})", "1,-2"),
        *(r"x \in [-2,7]", r"\begin{pmatrix}1\\2\end{pmatrix}", "6-5i", "52_8", "x < 3"),
        *(r"7\text{ squared}", r"1011\text{ base two}", r"2\text{i}", r"\frac12\text{ x}"),
        *(r"17\text{ degrees below zero}", r"100^{\circ}\text{ degrees}", r"5\text{ M}"),
        *(r"7\text{ hours }30\text{ minutes}", r"4\text{ dozen per box}", "0.333..."),
    ],
)
def test_an_answer_that_is_no_number_is_refused(answer: str) -> None:
    with pytest.raises(TooHard):
        assert read_quantity(answer).number


@pytest.mark.parametrize(
    ("answer", "latex", "unit"),
    [
        (r"90^\circ", "90", "degrees"),
        (r"\$18.90", "18.90", "dollars"),
        (r"15\mbox{ cm}^2", "15", "cm²"),
        (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}", "degrees"),
        (r"8\text{ sq. ft.}", "8", "sq. ft"),
        (r"8\ \text{cubic inches}", "8", "cubic inches"),
        (r"60\text{ miles per hour}", "60", "miles per hour"),
        (r"\$5\text{ million}", "5000000", "dollars"),
        (r"3\mathrm{m/s}", "3", "m/s"),
        ("$42$", "42", None),
        ("x = 5", "5", None),
        (r"\boxed{3}", "3", None),
    ],
)
def test_a_unit_is_parted_from_its_number(answer: str, latex: str, unit: str | None) -> None:
    quantity = read_quantity(answer)
    assert (quantity.number, quantity.unit) == (read_number(latex), unit)


PLAIN = "How long is it?"


@pytest.mark.parametrize(
    ("latex", "unit", "problem", "may_be_rounded"),
    [
        ("0.67", None, "What part is red?", True),
        ("66.7", "percent", "Approximately what percent is red?", True),
        ("3.14", None, "How long is a round table's nearest side, and a quarter of it?", True),
        ("18.9", "dollars", "What does it cost?", True),
        (r"1.5+3.46\pi", None, PLAIN, True),
        (r"6.02\times10^{23}", None, PLAIN, True),
        ("1,234.56", "feet", "How far?", True),
        ("0.67", None, "What is it to the nearest hundredth?", False),
        ("0.67", None, "What is it to the nearest one-hundredth?", False),
        ("0.67", None, r"What is it to the nearest $0.01$?", False),
        ("66.7", "percent", "Round to one place.", False),
        ("0.15", None, r"Write $\frac{3}{20}$ as a decimal.", False),
        ("3.14", None, "Give three significant digits.", False),
        ("18.90", "dollars", "What does it cost?", False),
        ("2.5", None, PLAIN, False),
        ("1.125", None, PLAIN, False),
        (r"0.8\overline{3}", None, PLAIN, False),
    ],
)
def test_a_decimal_is_exact_where_it_cannot_be_a_rounding(
    latex: str, unit: str | None, problem: str, may_be_rounded: bool
) -> None:
    assert bool(rounded_decimal(latex, unit, problem)) is may_be_rounded


@settings(max_examples=50)
@given(p=INTEGERS, q=INTEGERS, r=SQUAREFREE, power=st.integers(-2, 2), s=ABOVE_ZERO)
def test_the_rebuilt_number_is_the_number_and_its_integers_are_reduced(
    p: int, q: int, r: int, power: int, s: int
) -> None:
    assume((r, power) != RATIONAL or not (p and q))
    terms = (
        {RATIONAL: Fraction(p, s), (r, power): Fraction(q, s)}
        if p
        else {(r, power): Fraction(q, s)}
    )
    number = Exact({kind: value for kind, value in terms.items() if value})
    assume(number.rational is None or number.rational.denominator > 1)
    form = form_of(number)
    assert read_number(form.rebuilt()) == number
    assert form_of(read_number(form.rebuilt())) == form
    assert form.integer == sum(form.values.values())
    assert all(form.values.values())
    assert form.denominator is None or form.values[form.denominator] > 1
    reduced = [value for letter, value in form.values.items() if letter != form.radicand]
    assert gcd(*reduced) == 1 or not form.denominator
    radicand = form.values[form.radicand] if form.radicand else 2
    assert is_squarefree(radicand)


def test_the_sentence_says_all_that_makes_the_integers_unique() -> None:
    form = form_of(read_number(r"\frac{11-2\sqrt{6}}{5}"))
    assert dict(form.values) == {"p": 11, "q": -2, "r": 6, "s": 5}
    assert form.integer == 20
    assert sentence(form, same_letters(form), "metres") == (
        r"Write the answer, in metres, as $\frac{p+q\sqrt{r}}{s}$, where $p$, $q$, $r$ and $s$ "
        r"are nonzero integers ($p$ and $q$ may be negative), $s > 0$, $r > 1$, $r$ is not "
        r"divisible by the square of any prime, $\gcd(p, q, s) = 1$, and give the integer "
        "$p+q+r+s$ as the final answer instead."
    )


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        ("What is a third?", {"m": "m", "n": "n"}),
        ("If $3n = x$, find $x$.", {"m": "m", "n": "k"}),
        (r"Let \(mn = 1\).", {"m": "k", "n": "p"}),
        ("Let m and n be given.", {"m": "k", "n": "p"}),
        ("It costs $3, or $5 for two. Let mn be $6$.", {"m": "k", "n": "p"}),
        ("Let $kmnp = 6$.", {"m": "q", "n": "r"}),
        ("Let $𝑚 = 6$.", {"m": "k", "n": "n"}),
        ("If am = 6, find 5an.", {"m": "k", "n": "p"}),
        (r"$\begin{array}{l} x \\m \end{array}$", {"m": "k", "n": "n"}),
        (r"Find $\min \{\tan x\}$ in metres, and my aunt's sum.", {"m": "m", "n": "n"}),
    ],
)
def test_a_letter_of_the_problem_is_not_used_again(problem: str, names: dict[str, str]) -> None:
    assert name_letters(form_of(read_number(r"\frac{1}{3}")), problem) == names


def test_a_problem_may_use_up_the_alphabet() -> None:
    problem = " ".join(f"${letter}$" for letter in "abcdefghijklmnopqrstuvwxyz")
    form = form_of(read_number(r"\frac{1}{3}"))
    assert name_letters(form, problem) is None
    assert re.findall(r"<(\w)>", form.shape) == ["m", "n"]
