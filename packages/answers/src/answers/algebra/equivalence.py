"""Whether two answers are the same mathematics, by SymPy.

Where the grammar has no tree, math-verify reads the answer. Neither is trusted to say that two
expressions are equal: by rounding 355/113 is π. Equal expressions agree to forty digits at several
points that nobody can foresee. A comparison may hang or take all memory.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

import sympy
from sympy import Expr, Symbol

from answers.algebra.expressions import TooLarge, parse_latex, to_sympy
from answers.algebra.sampling import agreement, evaluate, factor_between, round_value
from answers.comparison import conjunction
from answers.equality import compare_with_algebra
from answers.nodes import Unreadable
from answers.reading import read_answer
from answers.regions import INFINITY, MINUS_INFINITY
from answers.scalars import get_tree
from answers.values import (
    Expression,
    Number,
    Relation,
    Set,
    Tuple,
    Union,
    Value,
    get_parts,
)

RIGHT = "right"
WRONG = "wrong"
UNKNOWN = "unknown"
TOO_HARD = "too_hard"
NOT_PARSABLE = "not_parsable"
GOLD_NOT_PARSABLE = "gold_not_parsable"
_ENDS = {INFINITY: sympy.oo, MINUS_INFINITY: -sympy.oo}
_INEQUALITIES = {"<": sympy.Lt, "<=": sympy.Le, "!=": sympy.Ne}
_WARM_UP = (
    (r"\frac{1}{2}\sqrt[3]{3}", r"\frac{\sqrt[3]{3}}{2}"),
    (r"(-\infty,1) \cup (1,\infty)", r"(-\infty,\infty) \setminus \{1\}"),
    (r"\sqrt{x+1} \sin 2x", r"2 \sqrt{1+x} \sin x \cos x"),
    (r"y = 2^x + 1", r"2^x - y + 1 = 0"),
    (r"\sin\frac{\pi}{6} + \log_2 8", r"\cos 0 + e^{2i\pi} + 3! + \binom{5}{2} + |-3|"),
    (r"\sum_{k=1}^{5} k + \int_0^1 x^2 dx", r"15 + \lim_{x \to 0} \frac{x}{3x}"),
    (r"f(x) = 1", r"f(x) = \sin^2 x + \cos^2 x"),
    (r"(-1)^n |x|", r"n!"),
    (r"5\text{ km}", r"5000\text{ m}"),
)


def _intersect_or_unite(*parts: sympy.Set) -> sympy.Set:
    """Return the intersection of inequalities with a comma between them, or else their union."""
    return sympy.Intersection(*parts) or sympy.Union(*parts)


_JOINTS: dict[str, Callable[..., sympy.Set]] = {
    ",": _intersect_or_unite,
    r"\cup": sympy.Union,
    r"\cap": sympy.Intersection,
    r"\setminus": sympy.Complement,
}


def compare(gold: str, answer: str, problem: str = "") -> str:
    """Return one of the words above; the gold answer is to blame only if it is unreadable."""
    try:
        equal = compare_with_algebra(_are_equal, gold, answer, problem).equal
    except Unreadable as error:
        if not examine(gold):
            return GOLD_NOT_PARSABLE
        if isinstance(error, TooLarge):
            return TOO_HARD
        return NOT_PARSABLE
    return {True: RIGHT, False: WRONG, None: UNKNOWN}[equal]


@lru_cache(maxsize=256)
def examine(gold: str) -> bool:
    """Return whether a gold answer, with each of its members, can be compared with another."""
    try:
        return _is_comparable(read_answer(gold))
    except Unreadable:
        return False


def warm_up() -> None:
    for gold, answer in _WARM_UP:
        compare(gold, answer)


def _is_comparable(gold: Value) -> bool:
    if isinstance(gold, Expression) and gold not in _ENDS:
        _read_gold(gold)
    parts = get_parts(gold)
    if isinstance(gold, Relation):
        parts = parts[-1:]  # a name may be anything
    return all(map(_is_comparable, parts))


def _are_equal(gold: Value, answer: Value) -> bool | None:
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _are_same_relation(gold, answer)
    if isinstance(gold, Number | Expression) and isinstance(answer, Number | Expression):
        exact = _read_gold(gold)
        other = _read_expression(answer)
        if _is_rounded(exact, answer) or _is_rounded(other, gold):
            return True
        return agreement(exact, other, f"{gold!r}{answer!r}")
    expected = _to_region(gold)
    region = _to_region(answer)
    if expected is None or region is None:
        return False
    return expected == region or expected.symmetric_difference(region).is_empty is True


def _are_same_relation(gold: Relation, answer: Relation) -> bool | None:
    """Compare sides up to a common factor; a relation of three sides must have the same sides."""
    if gold.signs != answer.signs:
        return False
    if len(gold.sides) > 2:
        return conjunction([*map(_are_equal, gold.sides, answer.sides)])
    seed = "\n".join((*gold.texts, *answer.texts))
    expected = _subtract_sides(gold)
    difference = _subtract_sides(answer)
    if gold.signs not in (("=",), ("!=",)):
        return factor_between(expected, difference, seed) == 1
    # y - 1/x is 0 where xy - 1 is 0.
    factor = factor_between(_get_numerator(expected), _get_numerator(difference), seed)
    return None if factor is None else factor != 0


def _subtract_sides(relation: Relation) -> Expr:
    first, second = map(_read_expression, relation.sides)
    return first - second


def _get_numerator(expression: Expr) -> Expr:
    return sympy.numer(sympy.together(expression))


def _to_region(value: Value) -> sympy.Set | None:
    if isinstance(value, Union):
        parts = list(map(_to_region, value.parts))
        if None in parts:
            return None
        return _JOINTS[value.joint](*parts)
    if isinstance(value, Set):
        return sympy.FiniteSet(*map(_read_end, value.parts))
    if isinstance(value, Tuple) and len(value.parts) == 2 and value.brackets[0] in "([":
        low, high = map(_read_end, value.parts)
        opens, *_, closes = value.brackets
        return sympy.Interval(low, high, opens == "(", closes == ")")
    if isinstance(value, Relation) and value.signs and value.signs[0] in _INEQUALITIES:
        relation = _INEQUALITIES[value.signs[0]](*map(_read_expression, value.sides[:2]))
        letters = relation.free_symbols
        reals = [(letter, Symbol(str(letter), real=True)) for letter in letters]
        return relation.subs(reals).as_set()
    _read_expression(value)
    return None


def _read_end(value: Value) -> Expr:
    if value in _ENDS:
        return _ENDS[value]
    return _read_expression(value)


def _is_rounded(exact: Expr, answer: Value) -> bool:
    if not isinstance(answer, Number) or answer.places is None or exact.free_symbols:
        return False
    digits = round_value(exact)
    return digits is not None and answer.rounds(Decimal(digits))


@lru_cache(maxsize=256)
def _read_gold(gold: Value) -> Expr:
    expression = _read_expression(gold)
    if not expression.free_symbols and evaluate(expression) is None:
        raise Unreadable("a number without a value")
    return expression


def _read_expression(value: Value) -> Expr:
    """Read a number or a tree; math-verify reads an expression without a tree.

    Raises:
        Unreadable: for all other values.
    """
    tree = get_tree(value)
    if tree:
        return to_sympy(tree)
    if isinstance(value, Expression):
        return parse_latex(value.latex)
    raise Unreadable("no expression")
