"""Two readers of the same LaTeX agree: the strict grammar, and math-verify where it reads it all.

math-verify is given only what it can say: it adds numbers side by side, takes what follows a
function without brackets for its argument, ends an argument at no slash, has no mixed numbers, and
takes the principal cube root of -8, which is not -2. So every argument is in brackets here, what
stands side by side is not two numbers, and the roots are even.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify import parse
from sympy import Expr

from services.grader.answers.formulas import formula_or_none
from services.grader.equivalence import RIGHT, compare
from services.grader.expressions import expression, expression_of
from services.grader.relations.nodes import Unreadable
from services.grader.relations.reading import read
from services.grader.relations.tokens import tokens
from services.grader.sampling import agreement
from services.grader.trees import tree_of

ATOMS = st.one_of(
    st.integers(0, 12).map(str),
    st.sampled_from([r"\pi", "e", "x", "y", r"\alpha", "x_1", r"\frac{1}{2}", r"\frac{x}{3}"]),
)
FUNCTIONS = st.sampled_from(["sin", "cos", "tan", "ln", "exp", "arctan", "sec", "cot"])


def compound(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(parts, parts)
    return st.one_of(
        pairs.map(lambda p: rf"({p[0]} + {p[1]})"),
        pairs.map(lambda p: rf"({p[0]} - {p[1]})"),
        pairs.map(lambda p: rf"({p[0]} \cdot {p[1]})"),
        pairs.map(lambda p: rf"(x({p[0]}))"),
        pairs.map(lambda p: rf"\frac{{{p[0]}}}{{{p[1]}}}"),
        st.tuples(parts, st.integers(0, 4)).map(lambda p: rf"({p[0]})^{{{p[1]}}}"),
        parts.map(lambda p: rf"\sqrt{{{p}}}"),
        parts.map(lambda p: rf"\sqrt[4]{{{p}}}"),
        parts.map(lambda p: rf"|{p}|".replace("||", "|")),
        st.tuples(FUNCTIONS, parts).map(lambda p: rf"\{p[0]}({p[1]})"),
        st.tuples(st.integers(2, 9), parts).map(lambda p: rf"\log_{{{p[0]}}}({p[1]})"),
        st.integers(0, 6).map(lambda n: f"{n}!"),
        st.tuples(st.integers(0, 9), st.integers(0, 9)).map(
            lambda p: rf"\binom{{{p[0]}}}{{{p[1]}}}"
        ),
    )


EXPRESSIONS = st.recursive(ATOMS, compound, max_leaves=5)


def by_math_verify(latex: str) -> Expr | None:
    found = parse(f"\\boxed{{{latex}}}", fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    return found[0] if found and isinstance(found[0], Expr) else None


@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS)
def test_what_both_readers_read_has_the_same_value(latex: str) -> None:
    strict, other = expression(latex), by_math_verify(latex)
    if strict is not None and other is not None:
        assert agreement(strict, other) is not False


@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS)
def test_a_formula_is_the_same_by_the_strict_grammar(latex: str) -> None:
    strict, formula = expression(latex), formula_or_none(latex)
    if strict is not None and formula is not None:
        assert agreement(strict, expression_of(formula)) is not False


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS, st.sampled_from(["+1", r"+\frac{1}{7}", r"+\pi^2"]))
def test_an_expression_is_not_itself_and_some_more(latex: str, more: str) -> None:
    assert compare(latex, latex + more) != RIGHT


@pytest.mark.parametrize("side", ["n2^n", "(n+1)2^n", "(x+1)5", r"\frac{x}{2}3", "2^5 3^2"])
def test_a_number_behind_a_factor_is_one_in_an_answer_only(side: str) -> None:
    cut = tuple(token for token in tokens(f"${side}$") if token.text != "$")
    assert tree_of(side) is not None
    with pytest.raises(Unreadable):
        read(cut)


@pytest.mark.parametrize("doubtful", ["x2", "x 2", "(2)5", "2 3", "2^10 3^5", r"\frac{1}23"])
def test_a_number_that_may_be_an_index_or_a_digit_is_no_factor(doubtful: str) -> None:
    assert tree_of(doubtful) is None
    assert formula_or_none(doubtful) is None
