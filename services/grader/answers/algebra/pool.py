r"""Whether two answers are the same mathematics. Runs in a worker of the pool only.

It may take for ever, take all memory, or crash: no timeout in here could prevent that.

The rules are those of the service. What they cannot settle is put to SymPy, tree by tree, and read
by math-verify only where the grammar has no tree. Neither is trusted to say that two expressions
are equal, because they round: they must agree to forty digits, at points of their own if they have
letters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import sympy
from sympy import Expr, Interval, Symbol, numer, oo, together

from services.grader.answers.algebra.expressions import TooLarge, expression, guessed
from services.grader.answers.algebra.sampling import agreement, decimal_of, factor_between, value_of
from services.grader.answers.compare import all_of, compare_with
from services.grader.answers.nodes import Unreadable
from services.grader.answers.read import INFINITY, MINUS_INFINITY, read_answer
from services.grader.answers.values import (
    Expression,
    Number,
    Relation,
    Set,
    Tuple,
    Union,
    Value,
    parts_of,
)

RIGHT, WRONG, UNKNOWN, TOO_HARD = "right", "wrong", "unknown", "too_hard"
NOT_PARSABLE, GOLD_NOT_PARSABLE = "not_parsable", "gold_not_parsable"

_ENDS = {INFINITY: oo, MINUS_INFINITY: -oo}


def _common(*parts: sympy.Set) -> sympy.Set:
    """What inequalities with a comma between them have in common, or else all of them."""
    return common if (common := sympy.Intersection(*parts)) else sympy.Union(*parts)


_JOINTS: dict[str, Callable[..., sympy.Set]] = {
    ",": _common,
    r"\cup": sympy.Union,
    r"\cap": sympy.Intersection,
    r"\setminus": sympy.Complement,
}
_SIGNS = {"<": sympy.Lt, "<=": sympy.Le, "!=": sympy.Ne}
_TYPICAL = (
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


def compare(gold: str, answer: str, problem: str = "") -> str:
    """One of the words above.

    What becomes of a gold beside one answer is that answer's fault if it can be compared at all.
    """
    try:
        equal = compare_with(_same, gold, answer, problem).equal
    except Unreadable as error:
        if not examine(gold):
            return GOLD_NOT_PARSABLE
        return TOO_HARD if isinstance(error, TooLarge) else NOT_PARSABLE
    return UNKNOWN if equal is None else RIGHT if equal else WRONG


@lru_cache(maxsize=256)
def examine(gold: str) -> bool:
    """Whether this gold answer, down to each of its members, can be compared with another."""
    try:
        return _is_comparable(read_answer(gold))
    except Unreadable:
        return False


def warm_up() -> None:
    """Fill the caches of parser and algebra, so that forked workers begin warm."""
    for gold, answer in _TYPICAL:
        compare(gold, answer)


def _is_comparable(gold: Value) -> bool:
    if isinstance(gold, Expression) and gold not in _ENDS:
        _gold_expression(gold)
    parts = parts_of(gold)
    if isinstance(gold, Relation):
        parts = parts[-1:]  # a name may be anything
    return all(map(_is_comparable, parts))


def _same(gold: Value, answer: Value) -> bool | None:
    """The algebra of a comparison: two expressions, relations or sets of numbers."""
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _same_relations(gold, answer)
    if isinstance(gold, Number | Expression) and isinstance(answer, Number | Expression):
        return _same_values(gold, answer)
    expected, found = _region(gold), _region(answer)
    if expected is None or found is None:
        return False
    return expected == found or expected.symmetric_difference(found).is_empty is True


def _same_values(gold: Number | Expression, answer: Number | Expression) -> bool | None:
    expected, found = _gold_expression(gold), _expression(answer)
    if _is_rounded(expected, answer) or _is_rounded(found, gold):
        return True
    return agreement(expected, found, f"{gold!r}{answer!r}")


def _same_relations(gold: Relation, answer: Relation) -> bool | None:
    """Both sides a multiple of the other's; one with three sides must have the same sides."""
    if gold.signs != answer.signs:
        return False
    if len(gold.sides) > 2:
        return all_of(_same(*pair) for pair in zip(gold.sides, answer.sides, strict=True))
    expected, found = (
        _expression(each.sides[0]) - _expression(each.sides[1]) for each in (gold, answer)
    )
    seed = "\n".join((*gold.texts, *answer.texts))
    if gold.signs in (("=",), ("!=",)):
        # y - 1/x is 0 where xy - 1 is
        factor = factor_between(numer(together(expected)), numer(together(found)), seed)
        return None if factor is None else factor != 0
    return factor_between(expected, found, seed) == 1


def _region(value: Value) -> sympy.Set | None:
    """The set of numbers that a value is; None for a number."""
    if isinstance(value, Union):
        parts = list(map(_region, value.parts))
        return None if None in parts else _JOINTS[value.joint](*parts)
    if isinstance(value, Set):
        return sympy.FiniteSet(*map(_end, value.parts))
    if isinstance(value, Tuple) and len(value.parts) == 2 and value.brackets[0] in "([":
        low, high = map(_end, value.parts)
        return Interval(low, high, value.brackets[0] == "(", value.brackets[-1] == ")")
    if isinstance(value, Relation) and value.signs and value.signs[0] in _SIGNS:
        left, right = map(_expression, value.sides[:2])
        relation = _SIGNS[value.signs[0]](left, right)
        reals = [(each, Symbol(str(each), real=True)) for each in relation.free_symbols]
        return relation.subs(reals).as_set()
    _expression(value)
    return None


def _end(value: Value) -> Expr:
    return _ENDS[value] if value in _ENDS else _expression(value)


def _is_rounded(exact: Expr, written: Value) -> bool:
    if not isinstance(written, Number) or written.places is None or exact.free_symbols:
        return False
    value = decimal_of(exact)
    return value is not None and written.rounds(value)


@lru_cache(maxsize=256)
def _gold_expression(gold: Value) -> Expr:
    parsed = _expression(gold)
    if not parsed.free_symbols and value_of(parsed) is None:
        raise Unreadable("a number without a value")
    return parsed


def _expression(value: Value) -> Expr:
    """A number or a tree; what has none is left to math-verify.

    Raises:
        Unreadable: for whatever else it is.
    """
    if not isinstance(value, Number | Expression):
        raise Unreadable("no expression")
    if isinstance(value, Number):
        return expression(value.tree)
    return expression(value.tree) if value.tree else guessed(value.latex)
