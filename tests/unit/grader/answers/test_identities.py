"""Values modulo a prime: the same for the same numbers and formulas, and for no others."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import isqrt

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from services.grader.answers.algebra.expressions import expression
from services.grader.answers.grammar import read_expression
from services.grader.answers.identities import (
    TooHard,
    approximation,
    have_one_sign,
    is_multiple,
    is_same,
    value_of,
)
from services.grader.answers.nodes import Node, integer

LEAVES = st.one_of(
    st.integers(0, 12).map(integer),
    st.sampled_from([Node("letter", letter=name) for name in "xyie"] + [Node("pi")]),
    st.integers(0, 60).map(lambda n: Node("root", (integer(n), integer(2)))),
)
TREES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.builds(lambda kind, a, b: Node(kind, (a, b)), st.sampled_from("+-*/"), parts, parts),
        parts.map(lambda a: Node("negative", (a,))),
        st.builds(lambda a, n: Node("^", (a, integer(n))), parts, st.integers(0, 3)),
    ),
    max_leaves=6,
)


def same(first: str, second: str) -> bool:
    return is_same(*(value_of(read_expression(text, as_answer=True)) for text in (first, second)))


@settings(max_examples=150)
@given(TREES, TREES)
def test_two_expressions_are_the_same_where_computer_algebra_says_so(a: Node, b: Node) -> None:
    try:
        found = is_same(value_of(a), value_of(b))
    except TooHard:
        return
    difference = expression(Node("-", (a, b)))
    assert found == (sympy.simplify(difference) == 0)


@settings(max_examples=100)
@given(TREES)
def test_an_expression_is_the_same_in_its_other_spellings(a: Node) -> None:
    try:
        value = value_of(a)
    except TooHard:
        return
    doubled = Node("/", (Node("+", (a, a)), integer(2)))
    assert is_same(value, value_of(doubled))
    assert is_same(value, value_of(Node("negative", (Node("negative", (a,)),))))
    assert not is_same(value, value_of(Node("+", (a, integer(1)))))


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_roots_multiply(a: int, b: int) -> None:
    try:
        assert same(rf"\sqrt{{{a}}}\cdot\sqrt{{{b}}}", rf"\sqrt{{{a * b}}}")
    except TooHard:
        primes = sympy.factorint(a) | sympy.factorint(b)
        assert max(primes) > 97


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"\sqrt[3]{2}\cdot\sqrt[3]{4}", "2"),
        (r"\sqrt[4]{4}", r"\sqrt{2}"),
        (r"2^{3/2}", r"2\sqrt{2}"),
        (r"\sqrt[3]{-8}", "-2"),
        (r"\frac{1}{\sqrt2+\sqrt3+\sqrt5}", r"\frac{2\sqrt3+3\sqrt2-\sqrt{30}}{12}"),
        ("(1+i)^{8}", "16"),
        ("4^{500000}", "2^{1000000}"),
        (r"(a+b+c+d)^{60}", r"(d+c+b+a)^{30}\cdot(a+d+b+c)^{30}"),
        (r"\frac{x^2-1}{x-1}", "x+1"),
        (r"10!\binom{5}{2}", "36288000"),
    ],
)
def test_what_is_the_same(first: str, second: str) -> None:
    assert same(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"\sqrt{2}", "1.41421356237309504880168872420969807856967187537694"),
        (r"\frac{355}{113}", r"\pi"),
        ("e", "2.718281828"),
        ("x+y", "xy"),
        ("4^{500000}", "2^{999999}"),
        (r"\sqrt[3]{2}", r"\sqrt{2}"),
    ],
)
def test_what_is_different(first: str, second: str) -> None:
    assert not same(first, second)


@pytest.mark.parametrize(
    "text",
    [
        r"\sin x",
        r"\sqrt{x}",
        r"\sqrt{1+\sqrt2}",
        "0^0",
        "1/0",
        "x/(y-y)",
        "(-8)^{1/3}",
        "2^x",
        "1/2x",
        "2^{2^{40}}",
        "1000!",
        r"\sqrt{-4}",
    ],
)
def test_what_is_left_to_algebra(text: str) -> None:
    with pytest.raises(TooHard):
        value_of(read_expression(text, as_answer=True))


@given(st.integers(2, 10**9), st.integers(-(10**6), 10**6))
def test_an_approximation_has_fifty_digits(radicand: int, whole: int) -> None:
    tree = read_expression(rf"\sqrt{{{radicand}}}+{whole}")
    exact = Fraction(isqrt(radicand * 10**100), 10**50) + whole
    value = approximation(tree)
    assert value is not None
    assert abs(value - Decimal(exact.numerator) / exact.denominator) < Decimal("1e-20")


def test_multiples_are_told_from_other_equations() -> None:
    line, double, other, inverse = map(
        read_expression, ("y-2x", r"\pi(2x-y)", "y-3x", r"y-\frac{1}{x}")
    )
    assert is_multiple(line, double)
    assert not have_one_sign(line, double)
    assert not is_multiple(line, other)
    assert not is_multiple(line, integer(3))
    with pytest.raises(TooHard):
        is_multiple(inverse, read_expression("xy-1"))
