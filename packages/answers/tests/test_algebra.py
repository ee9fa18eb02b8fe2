"""The algebra behind answers: which expressions are equal, and which are too large."""

from typing import Any

import pytest
from answers.algebra.equivalence import (
    GOLD_NOT_PARSABLE,
    RIGHT,
    TOO_HARD,
    WRONG,
    compare,
)
from answers.algebra.sampling import agreement, factor_between
from sympy import Expr
from sympy.parsing.sympy_parser import parse_expr

SEEDS = ("0", "1", "2")
TOO_LARGE = r"""
\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}
10^{10^8}
(75^{6^{8}})!
(10^9)!!
\binom{7\cdot 10^{9}}{5\cdot 10^{8}}
(x+1)^{10^{9}}
7 + 2(1 - 5^{99999999})
"""
LARGE = r"""
3^{100000}
\frac{1}{2006!}
2025!!
\binom{1000}{500}
1^{10^{100}}
10^{10^{-9}}
x^{2025} + y^{2025}
\sin(10^{99})
\binom{10^{9}}{2}
"""
EQUAL = """
log(c - b) - log(b - a) = log((c - b)/(b - a))
log(a - b) - log(b - c) = log((a - b)/(b - c))
sqrt(1 - x**2 - y**2 - z**2) = sqrt(2 - 2*x**2 - 2*y**2 - 2*z**2)/sqrt(2)
Abs(x*y) = Abs(x)*Abs(y)
factorial(n)/factorial(n - k) = binomial(n, k)*factorial(k)
"""
DIFFERENT = """
Abs(x*y) = x*y
Abs(x) + Abs(y) = Abs(x + y)
factorial(n) = factorial(n) + binomial(n, 99)
factorial(factorial(n)) = factorial(factorial(n)) + (n - 1)*(n - 2)*(n - 3)
(-1)**n = (-1)**n + binomial(n, 4002)
floor(n/2) = floor(n/2) + sin(pi*n/7)
floor(n/2) = floor(n/2) + floor(Abs(n)/10**9)
x = x + Abs(x - 10**6) + x - 10**6
"""


def read_pairs(text: str) -> list[list[Any]]:
    return [list(map(parse_expr, line.split("="))) for line in text.strip().splitlines()]


@pytest.mark.parametrize("latex", TOO_LARGE.strip().splitlines())
def test_towers_factorials_and_their_like_are_too_large(latex: str) -> None:
    assert compare("7", latex) == TOO_HARD
    assert compare(latex, "7") == GOLD_NOT_PARSABLE


@pytest.mark.parametrize("latex", ["9" * 400, *LARGE.strip().splitlines()])
def test_other_large_numbers_are_compared(latex: str) -> None:
    assert compare(latex, rf"\frac{{2({latex})}}{{2}}") == RIGHT
    assert compare(latex, rf"{latex}+1") == WRONG


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("gold", "answer"), read_pairs(EQUAL))
def test_expressions_that_are_equal_wherever_defined_agree(
    gold: Expr, answer: Expr, seed: str
) -> None:
    assert agreement(gold, answer, seed) is True


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("gold", "answer"), read_pairs(DIFFERENT))
def test_expressions_that_differ_anywhere_do_not_agree(gold: Expr, answer: Expr, seed: str) -> None:
    assert not agreement(gold, answer, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("gold", "answer", "factor"),
    [
        ("x - 5*y", "x - 7*y", 0),
        ("x/y - 5", "x/y - 7", 0),
        ("x - 5*y", "10*y - 2*x", -1),
    ],
)
def test_each_letter_is_drawn_for_itself_at_each_point(
    gold: str, answer: str, factor: int, seed: str
) -> None:
    assert factor_between(parse_expr(gold), parse_expr(answer), seed) == factor
