r"""Whether two answers are the same mathematics. Runs in a worker of the pool only.

It may take for ever, take all memory, or crash: no timeout in here could prevent that.

The rules are those of the service. What they cannot settle is put to SymPy, tree by tree, and to
math-verify only where the grammar has no tree. math-verify is not trusted to say that two
expressions are equal, because it rounds: they must agree to fifty digits, at points of their own if
they have letters.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

import sympy
from math_verify import verify
from sympy import Basic, Expr, Interval, Rational, Symbol, numer, oo, together
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from services.grader.answers.algebra.expressions import expression
from services.grader.answers.algebra.guessing import guessed
from services.grader.answers.algebra.sampling import agreement, sign_of_factor, value_of, worked_out
from services.grader.answers.compare import compare_with
from services.grader.answers.nodes import Unreadable
from services.grader.answers.read import read_answer
from services.grader.answers.regions import INFINITY, MINUS_INFINITY
from services.grader.answers.values import (
    Expression,
    Number,
    Open,
    Relation,
    Set,
    Tuple,
    Union,
    Value,
    parts_of,
)
from services.grader.answers.verdict import all_of

RIGHT, WRONG, UNKNOWN = "right", "wrong", "unknown"
NOT_PARSABLE, GOLD_NOT_PARSABLE = "not_parsable", "gold_not_parsable"

_DIGITS = 50  # of a fraction as a decimal number
_NAMED = (Symbol, AppliedUndef)
_JOINTS: dict[str, Callable[..., sympy.Set]] = {
    r"\cup": sympy.Union,
    r"\cap": sympy.Intersection,
    r"\setminus": sympy.Complement,
}
_SIGNS = {"<": sympy.Lt, "<=": sympy.Le, "!=": sympy.Ne}
_TYPICAL = (
    (r"\frac{1}{2}\sqrt[3]{3}", r"\frac{\sqrt[3]{3}}{2}"),
    (r"(-\infty,1) \cup (1,\infty)", r"(-\infty,\infty) \setminus \{1\}"),
    (r"\sqrt{x+1} \sin 2x", r"2 \sqrt{1+x} \sin x \cos x"),
    (r"\begin{pmatrix}\ln 2\\2\end{pmatrix}", r"\begin{pmatrix}\log_2 8\\2\end{pmatrix}"),
    (r"y = 2^x + 1", r"2^x - y + 1 = 0"),
    (r"\sin\frac{\pi}{6} + \log_2 8", r"\cos 0 + e^{2i\pi} + 3! + \binom{5}{2} + |-3|"),
    (r"\sum_{k=1}^{5} k", r"15"),
    (r"5\text{ km}", r"5000\text{ m}"),
)


class GoldUnreadable(Unreadable):
    """A gold answer that cannot be read surely."""


def compare(gold: str, answer: str, problem: str = "") -> str:
    """One of `RIGHT`, `WRONG`, `UNKNOWN`, `NOT_PARSABLE` and `GOLD_NOT_PARSABLE`.

    What becomes of a gold beside one answer is that answer's fault if it can be compared at all.
    """
    try:
        equal = compare_with(_same, gold, answer, problem).equal
    except GoldUnreadable:
        return NOT_PARSABLE if examine(gold) else GOLD_NOT_PARSABLE
    except Unreadable:
        return NOT_PARSABLE
    return UNKNOWN if equal is None else RIGHT if equal else WRONG


@lru_cache(maxsize=256)
def examine(gold: str) -> bool:
    """Whether this gold answer, down to each of its members, can be compared with another."""
    return _is_comparable(read_answer(gold))


def warm_up() -> None:
    """Fill the caches of parser and algebra, so that forked workers begin warm."""
    for gold, answer in _TYPICAL:
        compare(gold, answer)


def _is_comparable(gold: Value) -> bool:
    if isinstance(gold, Expression) and gold not in (INFINITY, MINUS_INFINITY):
        try:
            _gold_expression(gold)
        except Unreadable:
            return False
    parts = parts_of(gold)
    if isinstance(gold, Relation):
        parts = parts[-1:]  # a name may be anything
    return not isinstance(gold, Open) and all(map(_is_comparable, parts))


def _same(gold: Value, answer: Value) -> bool | None:
    """The algebra of a comparison: two expressions, relations or sets of numbers."""
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _same_relations(gold, answer)
    if isinstance(gold, Number | Expression) and isinstance(answer, Number | Expression):
        return _same_values(gold, answer)
    try:
        expected = _region(gold)
    except Unreadable as error:
        raise GoldUnreadable(str(error)) from error
    return _same_sets(expected, _region(answer))


def _same_values(gold: Number | Expression, answer: Number | Expression) -> bool | None:
    expected, found = _as_set(_gold_expression(gold)), _as_set(_expression(answer))
    if isinstance(expected, sympy.Set) or isinstance(found, sympy.Set):
        return _same_sets(expected, found)
    if not (isinstance(expected, Expr) and isinstance(found, Expr)):
        return _verified(expected, found)
    if _is_rounded(expected, answer) or _is_rounded(found, gold):
        return True
    agreed = agreement(expected, found, f"{gold!r}{answer!r}")
    if agreed is None and (expected.atoms(*_NAMED) or found.atoms(*_NAMED)):
        return _verified(expected, found)
    return agreed


def _same_relations(gold: Relation, answer: Relation) -> bool | None:
    """Both sides a multiple of the other's; one with three sides must have the same sides."""
    if gold.signs != answer.signs:
        return False
    if len(gold.sides) > 2:
        return all_of(_same(*pair) for pair in zip(gold.sides, answer.sides, strict=True))
    try:
        expected = _difference(gold)
    except Unreadable as error:
        raise GoldUnreadable(str(error)) from error
    found, seed = _difference(answer), "\n".join((*gold.texts, *answer.texts))
    if gold.signs in (("=",), ("!=",)):
        return bool(sign_of_factor(_numerator(expected), _numerator(found), seed))
    return sign_of_factor(expected, found, seed) == 1


def _numerator(difference: Expr) -> Expr:
    """It is 0 where the difference is, as of ``y - 1/x`` is ``xy - 1``."""
    return numer(together(difference))


def _difference(relation: Relation) -> Expr:
    left, right = (_expression(side) for side in relation.sides)
    if not (isinstance(left, Expr) and isinstance(right, Expr)):
        raise Unreadable("a side that is no expression")
    return left - right


def _region(value: Value) -> Basic:
    """The set of numbers that a value is."""
    if isinstance(value, Union):
        return _JOINTS[value.joint](*map(_region, value.parts))
    if isinstance(value, Set):
        return sympy.FiniteSet(*map(_end, value.parts))
    if isinstance(value, Tuple) and len(value.parts) == 2 and value.brackets[0] in "([":
        low, high = map(_end, value.parts)
        return Interval(low, high, value.brackets[0] == "(", value.brackets[-1] == ")")
    if isinstance(value, Relation) and value.signs and value.signs[0] in _SIGNS:
        return _as_set(_SIGNS[value.signs[0]](*(_real(_expression(s)) for s in value.sides[:2])))
    if isinstance(value, Number | Expression):
        return _as_set(_expression(value))
    raise Unreadable("no set of numbers")


def _end(value: Value) -> Basic:
    if value in (INFINITY, MINUS_INFINITY):
        return oo if value == INFINITY else -oo
    return _expression(value)


def _real(side: Basic) -> Basic:
    return side.subs([(each, Symbol(str(each), real=True)) for each in side.free_symbols])


def _as_set(parsed: Basic) -> Basic:
    if isinstance(parsed, Relational):
        return parsed.as_set()
    return parsed.doit() if isinstance(parsed, sympy.Set) else parsed


def _same_sets(gold: Basic, answer: Basic) -> bool:
    if not (isinstance(gold, sympy.Set) and isinstance(answer, sympy.Set)):
        return False
    return gold == answer or gold.symmetric_difference(answer).is_empty is True


def _verified(gold: Basic, answer: Basic) -> bool:
    """What has no values to compare is left to math-verify."""
    return verify([gold], [answer], timeout_seconds=None, raise_on_error=True)


def _is_rounded(exact: Expr, written: Value) -> bool:
    if not isinstance(written, Number) or not written.places or exact.free_symbols:
        return False
    value = value_of(worked_out(exact))
    if value is None or not value.is_real:
        return False
    digits = value.evalf(_DIGITS) if isinstance(value, Rational) else value
    return written.rounds(Decimal(str(digits)))


@lru_cache(maxsize=256)
def _gold_expression(gold: Value) -> Basic:
    try:
        parsed = _expression(gold)
    except Unreadable as error:
        raise GoldUnreadable(str(error)) from error
    is_number = isinstance(parsed, Expr) and not parsed.free_symbols
    if is_number and isinstance(parsed, Expr) and value_of(worked_out(parsed)) is None:
        raise GoldUnreadable("a number without a value")
    return parsed


def _expression(value: Value) -> Basic:
    """A number or a tree; what has none is left to math-verify.

    Raises:
        Unreadable: if something may have been lost on the way.
    """
    if isinstance(value, Number):
        return Rational(value.value.numerator, value.value.denominator)
    if isinstance(value, Expression):
        return guessed(value.latex) if value.tree is None else expression(value.tree)
    raise Unreadable("no expression")
