"""The algebra behind answers: what it finds equal, and what is too large to be computed."""

from __future__ import annotations

import pytest
from answers.algebra.equivalence import (
    GOLD_NOT_PARSABLE,
    RIGHT,
    TOO_HARD,
    WRONG,
    compare,
)
from answers.algebra.sampling import agreement, factor_between
from sympy import Abs, Expr, binomial, factorial, floor, log, pi, sin, sqrt, symbols

a, b, c, k, n, x, y, z = symbols("a b c k n x y z")
SEEDS = range(3)


@pytest.mark.parametrize(
    "latex",
    [
        *(r"\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}", r"10^{10^8}", "(75^{6^{8}})!", "(10^9)!!"),
        *(r"\binom{7\cdot 10^{9}}{5\cdot 10^{8}}", "(x+1)^{10^{9}}", "7 + 2(1 - 5^{99999999})"),
    ],
)
def test_towers_factorials_and_their_like_are_too_large(latex: str) -> None:
    assert compare("7", latex) == TOO_HARD
    assert compare(latex, "7") == GOLD_NOT_PARSABLE


@pytest.mark.parametrize(
    "latex",
    [
        *("9" * 400, "3^{100000}", r"\frac{1}{2006!}", "2025!!", r"\binom{1000}{500}"),
        *("1^{10^{100}}", "10^{10^{-9}}", "x^{2025} + y^{2025}", r"\sin(10^{99})"),
        r"\binom{10^{9}}{2}",
    ],
)
def test_what_an_answer_may_be_is_not(latex: str) -> None:
    assert compare(latex, rf"\frac{{2({latex})}}{{2}}") == RIGHT
    assert compare(latex, rf"{latex}+1") == WRONG


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (log(c - b) - log(b - a), log((c - b) / (b - a))),
        (log(a - b) - log(b - c), log((a - b) / (b - c))),
        (sqrt(1 - x**2 - y**2 - z**2), sqrt(2 - 2 * x**2 - 2 * y**2 - 2 * z**2) / sqrt(2)),
        (Abs(x * y), Abs(x) * Abs(y)),
        (factorial(n) / factorial(n - k), binomial(n, k) * factorial(k)),
    ],
)
def test_what_is_equal_wherever_it_is_defined_is_found_so(left: Expr, right: Expr) -> None:
    assert [agreement(left, right, str(seed)) for seed in SEEDS] == [True] * len(SEEDS)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (Abs(x * y), x * y),
        (Abs(x) + Abs(y), Abs(x + y)),
        (factorial(n), factorial(n) + binomial(n, 99)),
        (factorial(factorial(n)), factorial(factorial(n)) + (n - 1) * (n - 2) * (n - 3)),
        ((-1) ** n, (-1) ** n + binomial(n, 4002)),
        (floor(n / 2), floor(n / 2) + sin(pi * n / 7)),
        (floor(n / 2), floor(n / 2) + floor(Abs(n) / 10**9)),
        (x, x + Abs(x - 10**6) + x - 10**6),
    ],
)
def test_what_differs_anywhere_is_not_equal(gold: Expr, answer: Expr) -> None:
    assert not any(agreement(gold, answer, str(seed)) for seed in SEEDS)


@pytest.mark.parametrize("seed", list(map(str, SEEDS)))
def test_each_letter_is_drawn_for_itself_at_each_point(seed: str) -> None:
    assert factor_between(x - 5 * y, x - 7 * y, seed) == 0
    assert factor_between(x / y - 5, x / y - 7, seed) == 0
    assert factor_between(x - 5 * y, 10 * y - 2 * x, seed) == -1
