"""Whether two answers are the same mathematics. In the pool only: it may hang, or take all memory.

What the rules cannot settle is put to SymPy, tree by tree, and read by math-verify only where the
grammar has no tree. Neither is trusted to say that two expressions are equal: by rounding 355/113
is π. They must agree to forty digits, with letters at several points that nobody can foresee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from itertools import islice, product
from random import Random
from typing import Any

import sympy
from mpmath.ctx_mp import MPContext
from sympy import Abs, Basic, Expr, Integer, Pow, Rational, Symbol, ceiling, floor
from sympy.functions.elementary.trigonometric import TrigonometricFunction

from answers.algebra.expressions import TooLarge, expression, guessed
from answers.compare import all_of, compare_with
from answers.nodes import Unreadable
from answers.reading import read_answer
from answers.regions import INFINITY, MINUS_INFINITY
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

RIGHT, WRONG, UNKNOWN, TOO_HARD = "right", "wrong", "unknown", "too_hard"
NOT_PARSABLE, GOLD_NOT_PARSABLE = "not_parsable", "gold_not_parsable"
_ENDS = {INFINITY: sympy.oo, MINUS_INFINITY: -sympy.oo}
_DIGITS = 50
_MAX_DIGITS = 3000  # of numbers that are not rational; of larger ones not all digits count
_MAX_DIGITS_OF_ZERO = 1000
_MAX_DIGITS_AT_POINT = 250  # beyond, the gamma function is slow
_mp: Any = MPContext()  # of our own: SymPy computes with the shared one
_mp.dps = _MAX_DIGITS + 2 * _DIGITS
_CLOSE = _mp.mpf(10) ** -40
_MAX_EXACT_DEGREE = 200
_MAX_PROOF_OPS = 40
_POINTS = 90  # few of them may be in the order that a root of b - a asks for
_ENOUGH, _MOST = 3, 24  # points at which both have a value
_SIZES = (120, 1.3, 0.05, 14, 2.8, 31, 0.3, 5.1)
_LARGEST_WHOLE = 9_999
_PIECES = (Abs, floor, ceiling)
_COUNTS = (sympy.factorial, sympy.gamma)  # of whole numbers, C(n, 99) is 0 up to 98
_NAMES_OF_WHOLES = frozenset("ijklmnN")
_MAX_LARGE, _LARGEST = 3, 10**12  # numbers in the expressions about which there are points
Point = dict[Basic, Expr]  # letters and their values
Digits = Any  # a Rational, or a number of mpmath, which has no types


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
    """One of the words above. The gold is to blame only if it can be compared with nothing."""
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
    for gold, answer in _TYPICAL:
        compare(gold, answer)


def _is_comparable(gold: Value) -> bool:
    if isinstance(gold, Expression) and gold not in _ENDS:
        _gold_expression(gold)
    parts = get_parts(gold)
    if isinstance(gold, Relation):
        parts = parts[-1:]  # a name may be anything
    return all(map(_is_comparable, parts))


def _same(gold: Value, answer: Value) -> bool | None:
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _same_relations(gold, answer)
    if isinstance(gold, Number | Expression) and isinstance(answer, Number | Expression):
        exact, other = _gold_expression(gold), _expression(answer)
        is_rounded = _is_rounded(exact, answer) or _is_rounded(other, gold)
        return is_rounded or agreement(exact, other, f"{gold!r}{answer!r}")
    expected, found = _region(gold), _region(answer)
    if expected is None or found is None:
        return False
    return expected == found or expected.symmetric_difference(found).is_empty is True


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
        factor = factor_between(
            sympy.numer(sympy.together(expected)), sympy.numer(sympy.together(found)), seed
        )
        return None if factor is None else factor != 0
    return factor_between(expected, found, seed) == 1


def _region(value: Value) -> sympy.Set | None:
    if isinstance(value, Union):
        parts = list(map(_region, value.parts))
        return None if None in parts else _JOINTS[value.joint](*parts)
    if isinstance(value, Set):
        return sympy.FiniteSet(*map(_end, value.parts))
    if isinstance(value, Tuple) and len(value.parts) == 2 and value.brackets[0] in "([":
        low, high = map(_end, value.parts)
        return sympy.Interval(low, high, value.brackets[0] == "(", value.brackets[-1] == ")")
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
    value = value_of(exact)
    if value is None or not _is_real(_float(value)):
        return False
    return written.rounds(Decimal(_mp.nstr(_float(value).real, _DIGITS)))


@lru_cache(maxsize=256)
def _gold_expression(gold: Value) -> Expr:
    parsed = _expression(gold)
    if not parsed.free_symbols and value_of(parsed) is None:
        raise Unreadable("a number without a value")
    return parsed


def _expression(value: Value) -> Expr:
    """A number or a tree; what has none is left to math-verify. All else is `Unreadable`."""
    if not isinstance(value, Number | Expression):
        raise Unreadable("no expression")
    if isinstance(value, Number):
        return expression(value.tree)
    return expression(value.tree) if value.tree else guessed(value.latex)


def agreement(gold: Expr, answer: Expr, seed: str = "") -> bool | None:
    """Whether both have the same value, everywhere; None if that cannot be found out.

    What is under a root or a logarithm counts only where it is not negative. A letter that the gold
    does not have makes another answer, unless it is proven to say nothing, as in sin²x + cos²x.
    """
    difference = gold - answer
    if difference.is_Rational:
        return difference == 0
    if not gold.free_symbols | answer.free_symbols:
        return _same_value(gold, answer)
    if not answer.free_symbols <= gold.free_symbols:
        is_short = difference.has(TrigonometricFunction) and difference.count_ops() < _MAX_PROOF_OPS
        return is_short and bool(sympy.simplify(difference) == 0)
    if answer.has(sympy.nan, sympy.zoo):
        return None
    agreed, wholes, kinds = _agree(gold, answer, seed, frozenset()), _wholes_in(gold), _PIECES
    if wholes and not agreed:
        agreed, kinds = _agree(gold, answer, seed, wholes), (*_PIECES, *_COUNTS)
    has_more = _num_pieces(answer, kinds) > _num_pieces(gold, kinds)
    return None if agreed and has_more else agreed


def _agree(gold: Expr, answer: Expr, seed: str, wholes: frozenset[Basic]) -> bool | None:
    found = 0
    for value, other in islice(_values(gold, answer, seed, wholes), _MOST):
        if not _are_close(value, other):
            return False
        found += 1
    return True if found >= _ENOUGH else None


def factor_between(gold: Expr, answer: Expr, seed: str = "") -> complex | None:
    """The c of an ``answer`` that is everywhere c times ``gold``; 0 without one; None: unknown."""
    if not gold.free_symbols or gold.free_symbols != answer.free_symbols:
        return 0
    ratios = list[Digits]()
    for value, other in islice(_values(gold, answer, seed, frozenset()), _MOST):
        if value and other:
            are_exact = isinstance(value, Rational) and isinstance(other, Rational)
            ratios.append(other / value if are_exact else _float(other) / _float(value))
            if not _are_close(ratios[0], ratios[-1]):
                return 0
    if len(ratios) < _ENOUGH:
        return None
    ratio = _float(ratios[0])
    return _mp.sign(ratio.real) if _is_real(ratio) else ratio


def value_of(expression: Expr, point: Mapping[Basic, Expr] | None = None) -> Digits | None:
    """The value to fifty digits and places; None without one, or with too many at a point."""
    if isinstance(expression, Rational):
        return expression
    value = _evaluated(expression, _DIGITS, point)
    digits = _mp.mag(value) // 3 if value else 0
    if value is None or digits <= 0:
        return value
    if point and digits > _MAX_DIGITS_AT_POINT:
        return None
    return _evaluated(expression, _DIGITS + min(digits, _MAX_DIGITS), point)


def _evaluated(expression: Expr, digits: int, point: Mapping[Basic, Expr] | None) -> Digits | None:
    """The value; what has no digit that is known, as all cancelled each other, is 0."""
    value = expression.evalf(digits, subs=dict(point or {}), maxn=max(digits, _MAX_DIGITS_OF_ZERO))
    try:
        number = _mp.convert(value)
    except (TypeError, ValueError):  # it is no number
        return None
    if not _mp.isfinite(number):
        return None
    precisions = [getattr(part, "_prec", _DIGITS) for part in value.as_real_imag()]
    return number if max(precisions) > 1 else _mp.mpf(0)


def _float(value: Digits) -> Digits:
    return _mp.mpf(int(value.p)) / int(value.q) if isinstance(value, Rational) else value


def _is_real(value: Digits) -> bool:
    return abs(value.imag) <= _CLOSE * abs(value)


def _values(
    gold: Expr, answer: Expr, seed: str, wholes: frozenset[Basic]
) -> Iterator[tuple[Digits, Digits]]:
    """Both values wherever both are defined, and not too large to know all digits."""
    exactly = gold.free_symbols if _is_plain(gold) and _is_plain(answer) else wholes
    for point in _points(gold, answer, seed, wholes):
        if _is_defined(gold, point) and _is_defined(answer, point):
            exact = [(letter, point[letter]) for letter in exactly]
            value, other = (value_of(each.subs(exact), point) for each in (gold, answer))
            if value is not None and other is not None:
                yield value, other


def _points(gold: Expr, answer: Expr, seed: str, wholes: frozenset[Basic]) -> Iterator[Point]:
    """Values of all letters, first about the large numbers in both, where corners may be.

    Each letter's is drawn for itself, or ``x/y = 5`` could not be told from ``x/y = 7``; of one
    sign but beside |xy|, which else were xy. What is rounded is whole now and then.
    """
    draw, letters = Random(seed), sorted(gold.free_symbols, key=str)
    for number, sign, is_beyond in product(_large_numbers(gold, answer), (1, -1), (False, True)):
        point = Point()
        for letter in letters:
            beside = number * draw.uniform(1, 2) if is_beyond else number + draw.random()
            exact = Rational(str(round(beside, 6)))
            point[letter] = Integer(int(exact)) if letter in wholes else sign * exact
        yield point
    for at in range(_POINTS):
        point, size = Point(), _SIZES[at // 2 % len(_SIZES)]
        for letter in letters:
            value = Rational(str(round(size * draw.uniform(0.5, 2), 6)))
            if letter in wholes:
                value = Integer(draw.randint(0, draw.choice((9, 99, _LARGEST_WHOLE))))
            elif gold.has(*_PIECES) and at % 4 < 2:
                value = value.ceiling()
            point[letter] = value * (draw.choice((1, -1)) if gold.has(Abs) else (-1) ** at)
        yield point


def _large_numbers(*expressions: Expr) -> list[int]:
    numbers = [number for each in expressions for number in each.atoms(Rational)]
    found = {abs(int(part)) for number in numbers for part in (number.p, number.q)}
    return sorted(n for n in found if max(_SIZES) < n < _LARGEST)[:_MAX_LARGE]


def _is_plain(expression: Expr) -> bool:
    """Whether it is a fraction of polynomials of a small degree."""
    degrees = (abs(power.exp) for power in expression.atoms(Pow) if power.exp.is_Integer)
    return expression.is_rational_function() and max(degrees, default=0) <= _MAX_EXACT_DEGREE


def _num_pieces(expression: Expr, kinds: tuple[type[Basic], ...]) -> int:
    r"""|xy| has as many as |x||y|, and ``\sqrt{x^2}`` as |x|."""
    roots = [each.base for each in expression.atoms(Pow) if each.exp == Rational(1, 2)]
    pieces = [each for each in roots if isinstance(each, Pow) and each.exp.is_even]
    return sum(len(part.free_symbols) for part in (*pieces, *expression.atoms(*kinds)))


def _wholes_in(gold: Expr) -> frozenset[Basic]:
    """The letters for whole numbers that are exponents of -1, or rounded."""
    parts = [power.exp for power in gold.atoms(Pow) if power.base.is_negative]
    parts += gold.atoms(floor, ceiling)
    letters = frozenset[Basic]().union(*(part.free_symbols for part in parts))
    return frozenset(letter for letter in letters if str(letter) in _NAMES_OF_WHOLES)


def _is_defined(expression: Expr, point: Point) -> bool:
    if expression.has(sympy.I):
        return all(bool(value > 0) for value in point.values())
    inside = [power.base for power in expression.atoms(Pow) if not power.exp.is_integer]
    inside += [logarithm.args[0] for logarithm in expression.atoms(sympy.log)]
    values = [part.evalf(15, subs=dict(point)) for part in inside if part.free_symbols]
    return all(bool(value.is_real and value > 0) for value in values)


def _same_value(gold: Expr, answer: Expr) -> bool | None:
    value, other = value_of(gold), value_of(answer)
    if value is None or other is None:
        return None
    if not value and not other:
        return bool(sympy.simplify(gold - answer) == 0)
    return _are_close(value, other)


def _are_close(value: Digits, other: Digits) -> bool:
    if isinstance(value, Rational) and isinstance(other, Rational):
        return value == other
    value, other = _float(value), _float(other)
    return bool(abs(value - other) <= _CLOSE * min(1, max(abs(value), abs(other))))
