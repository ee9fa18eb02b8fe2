"""Whether two expressions of SymPy agree, by their values to forty digits. For the pool only.

Rounding is what makes computer algebra say that 355/113 is π; forty digits leave no room for it.
Two expressions with letters that agree at several points are the same. The points are none that
whoever wrote them could have foreseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import islice
from random import Random
from types import MappingProxyType
from typing import Any

from mpmath.ctx_mp import MPContext
from sympy import (
    Abs,
    Basic,
    Expr,
    I,
    Integer,
    Pow,
    Rational,
    ceiling,
    factorial,
    floor,
    gamma,
    log,
    nan,
    simplify,
    zoo,
)

_DIGITS = 50
_MAX_DIGITS = 3000  # of numbers that are not rational; of larger ones not all digits count
_MAX_DIGITS_OF_ZERO = 1000
_MAX_DIGITS_AT_POINT = 250  # beyond, the gamma function is slow
_mp: Any = MPContext()  # of our own: SymPy computes with the shared one
_mp.dps = _MAX_DIGITS + 2 * _DIGITS
_CLOSE, _TINY = _mp.mpf(10) ** -40, _mp.mpf(10) ** -500  # what is 0 comes to less
_MAX_EXACT_DEGREE = 200
_POINTS = 90  # few of them may be in the order that a root of b - a asks for
_ENOUGH, _MOST = 3, 16  # points at which both have a value
_SIZES = (120, 1.3, 0.05, 14, 2.8, 31, 0.3, 5.1)
_LARGEST_WHOLE = 9_999
_PIECES = (Abs, floor, ceiling)
_COUNTS = (factorial, gamma)  # of whole numbers, C(n, 99) is 0 up to 98
_NAMES_OF_WHOLES = frozenset("kmn")

Point = dict[Basic, Expr]  # letters and their values
Value = Any  # a Rational, or a number of mpmath, which has no types


def agreement(gold: Expr, answer: Expr, seed: str = "") -> bool | None:
    """Whether both have the same value, everywhere; None if that cannot be found out.

    What is under a root or a logarithm counts only where it is not negative. The points come from
    the seed. A letter that the gold does not have makes another answer, and what an answer may hide
    where no point lies, in more pieces than the gold has, is not known.
    """
    difference = gold - answer
    if difference.is_Rational:
        return difference == 0
    if not gold.free_symbols | answer.free_symbols:
        return _same_value(gold, answer)
    if not answer.free_symbols <= gold.free_symbols:
        return False
    if answer.has(nan, zoo):
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


def sign_of_factor(gold: Expr, answer: Expr, seed: str = "") -> int | None:
    """1 or -1 if ``answer`` is everywhere a real c times ``gold``, the sign of c; otherwise 0.

    None if that cannot be found out.
    """
    if not gold.free_symbols or gold.free_symbols != answer.free_symbols:
        return 0
    ratios = list[Value]()
    for value, other in islice(_values(gold, answer, seed, frozenset()), _MOST):
        if value and other:
            are_exact = isinstance(value, Rational) and isinstance(other, Rational)
            ratios.append(other / value if are_exact else _float(other) / _float(value))
            if not _are_close(ratios[0], ratios[-1]):
                return 0
    if len(ratios) < _ENOUGH:
        return None
    ratio = _float(ratios[0])
    return int(_mp.sign(ratio.real)) if _is_real(ratio) else 0


def decimal_of(expression: Expr) -> Decimal | None:
    """The value as a decimal number of fifty digits; None where it is not real."""
    value = value_of(expression)
    if value is None or not _is_real(_float(value)):
        return None
    return Decimal(_mp.nstr(_float(value).real, _DIGITS))


def value_of(expression: Expr, point: Mapping[Basic, Expr] = MappingProxyType({})) -> Value | None:
    """The value to fifty digits, and to fifty places; None where there is none.

    At a point it is None, too, where it has so many digits that not all can be known.
    """
    if isinstance(expression, Rational):
        return expression
    value = _evaluated(expression, _DIGITS, point)
    digits = _mp.mag(value) // 3 if value else 0
    if value is None or digits <= 0:
        return value
    if point and digits > _MAX_DIGITS_AT_POINT:
        return None
    return _evaluated(expression, _DIGITS + min(digits, _MAX_DIGITS), point)


def _evaluated(expression: Expr, digits: int, point: Mapping[Basic, Expr]) -> Value | None:
    value = expression.evalf(digits, subs=dict(point), maxn=max(digits, _MAX_DIGITS_OF_ZERO))
    try:
        number = _mp.convert(value)
    except (TypeError, ValueError):  # it is no number
        return None
    return number if _mp.isfinite(number) else None


def _float(value: Value) -> Value:
    return _mp.mpf(int(value.p)) / int(value.q) if isinstance(value, Rational) else value


def _is_real(value: Value) -> bool:
    return abs(value.imag) <= _CLOSE * abs(value)


def _values(
    gold: Expr, answer: Expr, seed: str, wholes: frozenset[Basic]
) -> Iterator[tuple[Value, Value]]:
    """The values of both wherever both are defined, and not too large to know all digits.

    Whole numbers are put in exactly, and all numbers into what is only worked out with the four
    operations; an exact power of fractions may take for ever.
    """
    exactly = gold.free_symbols if _is_plain(gold) and _is_plain(answer) else wholes
    for point in _points(gold, seed, wholes):
        if _is_defined(gold, point) and _is_defined(answer, point):
            exact = [(letter, point[letter]) for letter in exactly]
            value, other = (value_of(each.subs(exact), point) for each in (gold, answer))
            if value is not None and other is not None:
                yield value, other


def _points(gold: Expr, seed: str, wholes: frozenset[Basic]) -> Iterator[Point]:
    """Values of all letters, of one sign but beside |xy|, which else could not be told from xy.

    Each letter's is drawn for itself, at each point: if their ratios were the same everywhere,
    ``x/y = 5`` could not be told from ``x/y = 7``. What is rounded is whole now and then.
    """
    draw, letters = Random(seed), sorted(gold.free_symbols, key=str)
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


def _is_plain(expression: Expr) -> bool:
    """Whether it is a fraction of polynomials of a small degree."""
    degrees = (abs(power.exp) for power in expression.atoms(Pow) if power.exp.is_Integer)
    return expression.is_rational_function() and max(degrees, default=0) <= _MAX_EXACT_DEGREE


def _num_pieces(expression: Expr, kinds: tuple[type[Basic], ...]) -> int:
    """|xy| has as many as |x||y|."""
    return sum(len(part.free_symbols) for part in expression.atoms(*kinds))


def _wholes_in(gold: Expr) -> frozenset[Basic]:
    """The letters that stand for whole numbers: exponents of -1, and n if it is rounded."""
    raised = [power.exp for power in gold.atoms(Pow) if power.base.is_negative]
    rounded = {letter for part in gold.atoms(floor, ceiling) for letter in part.free_symbols}
    named = {letter for letter in rounded if str(letter) in _NAMES_OF_WHOLES}
    return frozenset(named.union(*(exponent.free_symbols for exponent in raised)))


def _is_defined(expression: Expr, point: Point) -> bool:
    """Whether nothing negative stands under a root or a logarithm."""
    if expression.has(I):
        return all(bool(value > 0) for value in point.values())
    inside = [power.base for power in expression.atoms(Pow) if not power.exp.is_integer]
    inside += [logarithm.args[0] for logarithm in expression.atoms(log)]
    values = [part.evalf(15, subs=dict(point)) for part in inside if part.free_symbols]
    return all(bool(value.is_real and value > 0) for value in values)


def _same_value(gold: Expr, answer: Expr) -> bool | None:
    value, other = value_of(gold), value_of(answer)
    if value is None or other is None:
        return None
    if max(abs(_float(value)), abs(_float(other))) < _TINY:
        return bool(simplify(gold - answer) == 0)
    return _are_close(value, other)


def _are_close(value: Value, other: Value) -> bool:
    if isinstance(value, Rational) and isinstance(other, Rational):
        return value == other
    value, other = _float(value), _float(other)
    largest = max(abs(value), abs(other))
    return bool(largest < _TINY or abs(value - other) <= _CLOSE * min(1, largest))
