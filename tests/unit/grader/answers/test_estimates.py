"""Estimates tell different expressions apart, and never equal ones."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from services.grader.answers.algebra.expressions import expression
from services.grader.answers.estimates import are_different
from services.grader.answers.grammar import read_expression
from services.grader.answers.nodes import Node, Unreadable, integer

LEAVES = st.one_of(
    st.integers(0, 12).map(integer),
    st.sampled_from([Node("letter", letter=name) for name in "xye"] + [Node("pi")]),
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


@settings(max_examples=60)
@given(TREES, TREES)
def test_what_is_told_apart_differs_by_computer_algebra(a: Node, b: Node) -> None:
    try:
        difference = sympy.simplify(expression(Node("-", (a, b))))
    except Unreadable:
        return
    if are_different(a, b):
        assert difference != 0
    other_spelling = Node("/", (Node("*", (a, integer(6))), integer(6)))
    assert not are_different(a, other_spelling)


@pytest.mark.parametrize(
    ("first", "second", "different"),
    [
        (r"2\sqrt{17}", r"3\sqrt{17}", True),
        (r"\pi", r"\frac{355}{113}", True),
        (r"\sqrt{8}", r"2\sqrt{2}", False),
        ("x^2 - 5x + 3", "x^2 - 5x + 4", True),
        ("6 - 5i", "6 - 11i", False),
        (r"\sin x", "x", False),
        ("10^{70} + 1 - 10^{70}", "1", False),
        ("1/0", "1", False),
    ],
)
def test_what_is_equal_or_cannot_be_estimated_is_not_told_apart(
    first: str, second: str, different: bool
) -> None:
    trees = [read_expression(text, as_answer=True) for text in (first, second)]
    assert are_different(*trees) is different
