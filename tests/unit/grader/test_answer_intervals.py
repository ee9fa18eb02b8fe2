"""Inequalities in one letter, against membership of points in each of them."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from services.grader.answers.comparing import compare_answers
from services.grader.answers.intervals import Interval, intersection
from services.grader.answers.shapes import Kind, shape_of

ENDS = st.integers(-4, 4)
POINTS = [Fraction(n, 2) for n in range(-12, 13)]


def half_lines() -> st.SearchStrategy[str]:
    signs = st.sampled_from(["<", ">", r"\le ", r"\ge "])
    right = st.tuples(signs, ENDS).map(lambda p: f"x {p[0]} {p[1]}")
    left = st.tuples(ENDS, signs).map(lambda p: f"{p[0]} {p[1]} x")
    return st.one_of(right, left)


def holds(inequality: str, x: Fraction) -> bool:
    python = inequality.replace(r"\le ", "<=").replace(r"\ge ", ">=")
    return bool(eval(python, {"x": x}))


def contains(interval: tuple[str, str], brackets: str, x: Fraction) -> bool:
    low, high = (float(end.replace(r"\infty", "inf")) for end in interval)
    above = x >= low if brackets[0] == "[" else x > low
    return above and (x <= high if brackets[1] == "]" else x < high)


@settings(max_examples=400)
@given(st.lists(half_lines(), min_size=2, max_size=4, unique=True))
def test_a_list_of_inequalities_is_what_they_share_or_else_any_of_them(parts: list[str]) -> None:
    shape = shape_of(", ".join(parts))
    assert shape is not None
    shared = [x for x in POINTS if all(holds(part, x) for part in parts)]
    if shape.kind is Kind.TUPLE:
        ends = shape.parts[0], shape.parts[1]
        assert [x for x in POINTS if contains(ends, shape.marks, x)] == shared
    else:
        assert (shape.kind, shared) == (Kind.UNION, [])


@given(st.permutations(["x > 1", r"x \le 4", "x > 0", "5 > x"]))
def test_the_order_of_conditions_does_not_matter(parts: list[str]) -> None:
    assert compare_answers("(1,4]", ", ".join(parts)).equal
    assert compare_answers("(1,5)", ", ".join(parts)).equal is False


def test_ends_that_are_no_numbers_are_not_ranked() -> None:
    above = [Interval("x", (end, r"\infty"), "()") for end in ("a", "b")]
    assert intersection(above) is None
    below = Interval("x", (r"-\infty", "b"), "(]")
    assert intersection([above[0], below]) == Interval("x", ("a", "b"), "(]")
