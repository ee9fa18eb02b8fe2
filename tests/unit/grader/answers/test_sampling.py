from __future__ import annotations

import pytest
from sympy import Abs, Expr, binomial, factorial, floor, log, pi, sin, sqrt, symbols

from services.grader.answers.algebra.sampling import agreement, sign_of_factor

a, b, c, k, n, x, y, z = symbols("a b c k n x y z")
SEEDS = [str(number) for number in range(10)]


@pytest.mark.parametrize("seed", SEEDS)
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
def test_what_is_equal_wherever_it_is_defined_is_found_so(
    left: Expr, right: Expr, seed: str
) -> None:
    assert agreement(left, right, seed) is True


@pytest.mark.parametrize("seed", SEEDS)
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
def test_what_differs_anywhere_is_not_equal(gold: Expr, answer: Expr, seed: str) -> None:
    assert not agreement(gold, answer, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_letter_is_drawn_for_itself_at_each_point(seed: str) -> None:
    assert sign_of_factor(x - 5 * y, x - 7 * y, seed) == 0
    assert sign_of_factor(x / y - 5, x / y - 7, seed) == 0
    assert sign_of_factor(x - 5 * y, 10 * y - 2 * x, seed) == -1
