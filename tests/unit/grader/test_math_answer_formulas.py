"""Formulas are read as what they say: random expressions against Python's own arithmetic."""

from __future__ import annotations

from fractions import Fraction
from math import e, isclose, pi, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.grader.answers.comparing import compare_answers
from services.grader.answers.exact import Exact, TooHard
from services.grader.answers.formulas import formula_or_none, read_formula, read_number
from services.grader.latex import tidy

LETTERS = {"x": Fraction(7, 3), "y": Fraction(-5, 2), "k": Fraction(11), r"\alpha": Fraction(2, 9)}

Written = tuple[str, Fraction]  # LaTeX, and its value where letters have the values above
ATOMS = st.one_of(
    st.integers(0, 40).map(lambda n: (str(n), Fraction(n))),
    st.decimals(0, 9, places=2).map(lambda d: (f"{d}", Fraction(d))),
    st.sampled_from(sorted(LETTERS.items())),
)


def sums(parts: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    return st.tuples(parts, st.sampled_from("+-"), parts).map(
        lambda p: (f"({p[0][0]} {p[1]} {p[2][0]})", p[0][1] + (-1) ** (p[1] == "-") * p[2][1])
    )


def products(parts: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    signs = st.sampled_from([r" \cdot ", r"\times ", "*", ""])
    return st.tuples(parts, signs, parts).map(
        lambda p: (f"(({p[0][0]}){p[1]}({p[2][0]}))", p[0][1] * p[2][1])
    )


def quotients(parts: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    shapes = st.sampled_from(
        [r"\frac{%s}{%s}", r"\dfrac {%s} {%s}", "(%s)/(%s)", r"{%s} \div {%s}"]
    )
    pairs = st.tuples(parts, parts).filter(lambda pair: pair[1][1] != 0)
    return st.tuples(pairs, shapes).map(
        lambda p: ("(" + p[1] % (p[0][0][0], p[0][1][0]) + ")", p[0][0][1] / p[0][1][1])
    )


def powers(parts: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    return (
        st.tuples(parts, st.integers(0, 3))
        .filter(lambda p: p[0][1] != 0)
        .map(lambda p: (f"({p[0][0]})^{{{p[1]}}}", p[0][1] ** p[1]))
    )


EXPRESSIONS = st.recursive(
    ATOMS,
    lambda parts: st.one_of(sums(parts), products(parts), quotients(parts), powers(parts)),
    max_leaves=6,
)


def value_of(latex: str) -> Fraction | None:
    """The value where letters are numbers; None if the grader refuses to read the LaTeX."""
    for letter, value in LETTERS.items():
        latex = latex.replace(letter, f"({value.numerator}/{value.denominator})")
    formula = formula_or_none(tidy(latex))
    return formula.number.rational if formula and formula.number else None


@settings(max_examples=500)
@given(EXPRESSIONS)
def test_an_expression_is_worked_out_as_it_is_written(written: Written) -> None:
    latex, value = written
    assert value_of(latex) == value


@settings(max_examples=500)
@given(EXPRESSIONS, EXPRESSIONS)
def test_equal_formulas_have_equal_values(first: Written, second: Written) -> None:
    verdict = compare_answers(first[0], second[0])
    if verdict.equal:
        assert first[1] == second[1]
    assert compare_answers(first[0], f"{first[0]} + {second[0]} - {second[0]}").equal is not False
    if second[1]:
        assert compare_answers(first[0], f"{first[0]} + {second[0]}").equal is not True


@settings(max_examples=300)
@given(st.integers(-99, 99), st.integers(-99, 99), st.integers(2, 999), st.integers(1, 99))
def test_surds_are_compared_by_value(p: int, q: int, r: int, s: int) -> None:
    gold = rf"\frac{{{p} + {q}\sqrt{{{r}}}}}{{{s}}}"
    assert compare_answers(gold, rf"\frac{{{q}}}{{{s}}}\sqrt{{{r}}} + \frac{{{p}}}{{{s}}}").equal
    assert compare_answers(gold, rf"\frac{{{p + 1} + {q}\sqrt{{{r}}}}}{{{s}}}").equal is False
    assert isclose(read_number(gold).approximation, (p + q * sqrt(r)) / s, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("latex", "value"),
    [
        (r"\frac{\pi^2}{6} - e^{-1}", pi**2 / 6 - 1 / e),
        ("2e", 2 * e),
        (r"\frac{1}{\pi + 1}", 1 / (pi + 1)),
    ],
)
def test_numbers_with_pi_and_e_have_values(latex: str, value: float) -> None:
    approximation = read_formula(latex).approximation
    assert approximation is not None
    assert isclose(approximation, value, rel_tol=1e-12)


@given(st.integers(-30, 30).filter(bool), st.integers(0, 400), st.integers(-400, 400))
def test_powers_are_multiplied_out_or_refused(base: int, exponent: int, other: int) -> None:
    power = Exact.of(base).power(exponent)
    assert power.rational == Fraction(base) ** exponent
    assert Exact.of(base).power(other).rational == Fraction(base) ** other


def test_zero_to_the_zero_and_huge_powers_are_refused() -> None:
    for base, exponent in ((0, 0), (0, -1), (10, 10**6), (2, -(10**6))):
        with pytest.raises(TooHard):
            Exact.of(base).power(exponent)


PIECES = st.sampled_from(
    [
        *r"0123456789.,+-*/^_=<>()[]{}|!:;%&'$~ xyzeiABfπ√°²½٣",
        *(r"\frac", r"\sqrt", r"\pi", r"\pm", r"\text{", r"\{", r"\}", r"\cup", r"\in", r"\infty"),
        *(
            r"\le",
            r"\begin{pmatrix}",
            r"\end{pmatrix}",
            r"\\",
            r"\left",
            r"\circ",
            "yes",
            "or",
            "cm",
        ),
        *(r"\overline", r"\mathbb{R}", r"\$", r"\!", r"\,", r"\cdot", "\x00", "\ud800", r"\boxed{"),
    ]
)
TEXTS = st.lists(PIECES, max_size=25).map("".join)


@settings(max_examples=1500)
@given(TEXTS, TEXTS)
def test_any_two_texts_are_compared_without_an_error(gold: str, answer: str) -> None:
    assert compare_answers(gold, answer).equal in (True, False, None)
    assert compare_answers(gold, gold).equal
    assert compare_answers(gold, f" ${answer}$ ").equal in (True, False, None)
