"""Whether two expressions of SymPy agree, by their values to forty digits. For the pool only.

Rounding is what makes computer algebra say that 355/113 is π; forty digits leave no room for it.
Two expressions with letters that agree at several points are the same. The points are none that
whoever wrote them could have foreseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import islice, product
from random import Random
from types import MappingProxyType
from typing import Any

import sympy
from mpmath.ctx_mp import MPContext
from sympy import Abs, Basic, Expr, Integer, Pow, Rational, ceiling, floor
from sympy.functions.elementary.trigonometric import TrigonometricFunction

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
Value = Any  # a Rational, or a number of mpmath, which has no types


def agreement(gold: Expr, answer: Expr, seed: str = "") -> bool | None:
    """Whether both have the same value, everywhere; None if that cannot be found out.

    What is under a root or a logarithm counts only where it is not negative. The points come from
    the seed. A letter that the gold does not have makes another answer, unless it is proven to say
    nothing, as in sin²x + cos²x; and what an answer may hide where no point lies, in more pieces
    than the gold has, is not known.
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
    """The c of an ``answer`` that is everywhere c times ``gold``; 0 if there is none.

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
    return _mp.sign(ratio.real) if _is_real(ratio) else ratio


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
    """The value; what has no digit that is known, as all cancelled each other, is 0."""
    value = expression.evalf(digits, subs=dict(point), maxn=max(digits, _MAX_DIGITS_OF_ZERO))
    try:
        number = _mp.convert(value)
    except (TypeError, ValueError):  # it is no number
        return None
    if not _mp.isfinite(number):
        return None
    precisions = [getattr(part, "_prec", _DIGITS) for part in value.as_real_imag()]
    return number if max(precisions) > 1 else _mp.mpf(0)


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
    for point in _points(gold, answer, seed, wholes):
        if _is_defined(gold, point) and _is_defined(answer, point):
            exact = [(letter, point[letter]) for letter in exactly]
            value, other = (value_of(each.subs(exact), point) for each in (gold, answer))
            if value is not None and other is not None:
                yield value, other


def _points(gold: Expr, answer: Expr, seed: str, wholes: frozenset[Basic]) -> Iterator[Point]:
    """Values of all letters, first about the large numbers in both, where corners may be.

    Each letter's is drawn for itself, at each point: if their ratios were the same everywhere,
    ``x/y = 5`` could not be told from ``x/y = 7``. Of one sign but beside |xy|, which else could
    not be told from xy. What is rounded is whole now and then.
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
    """Whether nothing negative stands under a root or a logarithm."""
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


def _are_close(value: Value, other: Value) -> bool:
    if isinstance(value, Rational) and isinstance(other, Rational):
        return value == other
    value, other = _float(value), _float(other)
    return bool(abs(value - other) <= _CLOSE * min(1, max(abs(value), abs(other))))
