"""Whether two expressions agree at points that are drawn at random, to forty digits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product
from random import Random
from typing import Any

import sympy
from mpmath.ctx_mp import MPContext
from sympy import Abs, Basic, Expr, Integer, Pow, Rational, ceiling, floor
from sympy.functions.elementary.trigonometric import TrigonometricFunction

_DIGITS = 50
# Larger irrational numbers are not known to all their digits.
_MAX_DIGITS = 3000
_MAX_DIGITS_OF_ZERO = 1000
# Beyond, the gamma function is slow.
_MAX_DIGITS_AT_POINT = 250
# SymPy computes with the shared context of mpmath, so this is another.
_mp: Any = MPContext()
_mp.dps = _MAX_DIGITS + 2 * _DIGITS
_CLOSE = _mp.mpf(10) ** -40
# Fractions of polynomials up to this degree are computed exactly.
_MAX_EXACT_DEGREE = 200
_MAX_PROOF_OPS = 40
# Few points may be in the order of letters that a root of b - a asks for.
_NUM_POINTS = 90
# Both expressions have a value at this number of points, or nothing is known; more are not tried.
_MIN_AGREEING = 3
_MAX_AGREEING = 24
_SIZES = (120, 1.3, 0.05, 14, 2.8, 31, 0.3, 5.1)
_MAX_WHOLE = 9_999
_PIECES = (Abs, floor, ceiling)
# Of whole numbers: C(n, 99) is 0 up to 98.
_COUNTS = (sympy.factorial, sympy.gamma)
_WHOLE_LETTERS = frozenset("ijklmnN")
# Points also lie around the first large numbers in the expressions.
_MAX_LARGE_NUMBERS = 3
_MAX_LARGE_NUMBER = 10**12
Point = dict[Basic, Expr]  # letters and their values
Digits = Any  # a Rational, or a number of mpmath, which has no types


def agreement(gold: Expr, answer: Expr, seed: str = "") -> bool | None:
    """Return whether both have the same value everywhere; None if that cannot be found out.

    An expression under a root or a logarithm counts only where it is not negative. A letter that
    the gold answer does not have makes another answer, unless it is proven to cancel, as in
    sin²x + cos²x.
    """
    difference = gold - answer
    if difference.is_Rational:
        return difference == 0
    if not gold.free_symbols | answer.free_symbols:
        return _have_same_value(gold, answer)
    if not answer.free_symbols <= gold.free_symbols:
        is_short = difference.has(TrigonometricFunction) and difference.count_ops() < _MAX_PROOF_OPS
        return is_short and bool(sympy.simplify(difference) == 0)
    if answer.has(sympy.nan, sympy.zoo):
        return None
    kinds: tuple[type[Basic], ...] = _PIECES
    agreed = _agree_at_points(gold, answer, seed, frozenset())
    wholes = _find_whole_letters(gold)
    if wholes and not agreed:
        agreed = _agree_at_points(gold, answer, seed, wholes)
        kinds = (*_PIECES, *_COUNTS)
    has_more_pieces = _count_pieces(answer, kinds) > _count_pieces(gold, kinds)
    return None if agreed and has_more_pieces else agreed


def _agree_at_points(gold: Expr, answer: Expr, seed: str, wholes: frozenset[Basic]) -> bool | None:
    num_points = 0
    pairs = _evaluate_both(gold, answer, seed, wholes)
    for value, other in islice(pairs, _MAX_AGREEING):
        if not _are_close(value, other):
            return False
        num_points += 1
    return True if num_points >= _MIN_AGREEING else None


def factor_between(gold: Expr, answer: Expr, seed: str = "") -> complex | None:
    """Return the c of an ``answer`` that is c times ``gold`` everywhere.

    Of a real c only the sign counts. Return 0 if there is no c, and None if that is unknown.
    """
    if not gold.free_symbols or gold.free_symbols != answer.free_symbols:
        return 0
    ratios = list[Digits]()
    pairs = _evaluate_both(gold, answer, seed, frozenset())
    for value, other in islice(pairs, _MAX_AGREEING):
        if value and other:
            ratios.append(_divide(other, value))
            if not _are_close(ratios[0], ratios[-1]):
                return 0
    if len(ratios) < _MIN_AGREEING:
        return None
    ratio = _to_float(ratios[0])
    if _is_real(ratio):
        return _mp.sign(ratio.real)
    return ratio


def _divide(top: Digits, bottom: Digits) -> Digits:
    if isinstance(top, Rational) and isinstance(bottom, Rational):
        return top / bottom
    return _to_float(top) / _to_float(bottom)


def round_value(expression: Expr) -> str | None:
    """Return the digits of a real value, or None."""
    value = evaluate(expression)
    if value is None or not _is_real(_to_float(value)):
        return None
    return _mp.nstr(_to_float(value).real, _DIGITS)


def evaluate(expression: Expr, point: Mapping[Basic, Expr] | None = None) -> Digits | None:
    """Return the value to fifty digits and places, or None.

    An expression has no value if it is undefined, or has too many digits at a point.
    """
    if isinstance(expression, Rational):
        return expression
    value = _evaluate(expression, _DIGITS, point)
    digits = _mp.mag(value) // 3 if value else 0
    if value is None or digits <= 0:
        return value
    if point and digits > _MAX_DIGITS_AT_POINT:
        return None
    return _evaluate(expression, _DIGITS + min(digits, _MAX_DIGITS), point)


def _evaluate(expression: Expr, digits: int, point: Mapping[Basic, Expr] | None) -> Digits | None:
    """Return the value; it is 0 if no digit is known, since all parts cancelled each other."""
    max_digits = max(digits, _MAX_DIGITS_OF_ZERO)
    value = expression.evalf(digits, subs=dict(point or {}), maxn=max_digits)
    try:
        number = _mp.convert(value)
    except (TypeError, ValueError):  # it is no number
        return None
    if not _mp.isfinite(number):
        return None
    precisions = [getattr(part, "_prec", _DIGITS) for part in value.as_real_imag()]
    if max(precisions) > 1:
        return number
    return _mp.mpf(0)


def _to_float(value: Digits) -> Digits:
    if isinstance(value, Rational):
        return _mp.mpf(int(value.p)) / int(value.q)
    return value


def _is_real(value: Digits) -> bool:
    return abs(value.imag) <= _CLOSE * abs(value)


def _evaluate_both(
    gold: Expr, answer: Expr, seed: str, wholes: frozenset[Basic]
) -> Iterator[tuple[Digits, Digits]]:
    """Yield both values at each point where both are defined and not too large."""
    are_exact = _is_plain(gold) and _is_plain(answer)
    letters = gold.free_symbols if are_exact else wholes
    for point in _draw_points(gold, answer, seed, wholes):
        if not _is_defined(gold, point) or not _is_defined(answer, point):
            continue
        exact = [(letter, point[letter]) for letter in letters]
        value = evaluate(gold.subs(exact), point)
        other = evaluate(answer.subs(exact), point)
        if value is not None and other is not None:
            yield value, other


def _draw_points(gold: Expr, answer: Expr, seed: str, wholes: frozenset[Basic]) -> Iterator[Point]:
    """Draw values of all letters, first around the large numbers in both, where corners may be.

    The value of each letter is independent, or ``x/y = 5`` would look like ``x/y = 7``. Values at
    one point have one sign, but not next to |xy|, which would look like xy. Letters in rounded
    expressions are whole at every other pair of points.
    """
    draw = Random(seed)
    letters = sorted(gold.free_symbols, key=str)
    for number, sign, is_beyond in product(
        _find_large_numbers(gold, answer), (1, -1), (False, True)
    ):
        point = Point()
        for letter in letters:
            near = number * draw.uniform(1, 2) if is_beyond else number + draw.random()
            value = _to_exact(near)
            is_whole = letter in wholes
            point[letter] = Integer(int(value)) if is_whole else sign * value
        yield point
    has_pieces = gold.has(*_PIECES)
    has_absolute = gold.has(Abs)
    for at in range(_NUM_POINTS):
        size = _SIZES[at // 2 % len(_SIZES)]
        point = Point()
        for letter in letters:
            value = _to_exact(size * draw.uniform(0.5, 2))
            if letter in wholes:
                max_value = draw.choice((9, 99, _MAX_WHOLE))
                value = Integer(draw.randint(0, max_value))
            elif has_pieces and at % 4 < 2:
                value = value.ceiling()
            sign = draw.choice((1, -1)) if has_absolute else (-1) ** at
            point[letter] = value * sign
        yield point


def _to_exact(value: float) -> Any:
    return Rational(str(round(value, 6)))


def _find_large_numbers(*expressions: Expr) -> list[int]:
    numbers = set[int]()
    for expression in expressions:
        for rational in expression.atoms(Rational):
            numbers.add(abs(int(rational.p)))
            numbers.add(abs(int(rational.q)))
    min_number = max(_SIZES)
    large = [number for number in numbers if min_number < number < _MAX_LARGE_NUMBER]
    return sorted(large)[:_MAX_LARGE_NUMBERS]


def _is_plain(expression: Expr) -> bool:
    """Return whether this is a fraction of polynomials of a small degree."""
    powers = expression.atoms(Pow)
    degrees = [abs(power.exp) for power in powers if power.exp.is_Integer]
    return expression.is_rational_function() and max(degrees, default=0) <= _MAX_EXACT_DEGREE


def _count_pieces(expression: Expr, kinds: tuple[type[Basic], ...]) -> int:
    r"""Count the letters in pieces: |xy| has as many as |x||y|, and ``\sqrt{x^2}`` as |x|."""
    pieces = expression.atoms(*kinds)
    for root in expression.atoms(Pow):
        is_square = isinstance(root.base, Pow) and root.base.exp.is_even
        if is_square and root.exp == Rational(1, 2):
            pieces.add(root.base)
    return sum(len(piece.free_symbols) for piece in pieces)


def _find_whole_letters(gold: Expr) -> frozenset[Basic]:
    """Return the letters for whole numbers that are exponents of -1, or rounded."""
    powers = gold.atoms(Pow)
    parts = [power.exp for power in powers if power.base.is_negative]
    parts += gold.atoms(floor, ceiling)
    letters = {letter for part in parts for letter in part.free_symbols}
    return frozenset(letter for letter in letters if str(letter) in _WHOLE_LETTERS)


def _is_defined(expression: Expr, point: Point) -> bool:
    if expression.has(sympy.I):
        return all(bool(value > 0) for value in point.values())
    arguments = [power.base for power in expression.atoms(Pow) if not power.exp.is_integer]
    arguments += [logarithm.args[0] for logarithm in expression.atoms(sympy.log)]
    for argument in arguments:
        if argument.free_symbols:
            value = argument.evalf(15, subs=dict(point))
            if not value.is_real or not value > 0:
                return False
    return True


def _have_same_value(gold: Expr, answer: Expr) -> bool | None:
    value = evaluate(gold)
    other = evaluate(answer)
    if value is None or other is None:
        return None
    if not value and not other:
        return bool(sympy.simplify(gold - answer) == 0)
    return _are_close(value, other)


def _are_close(value: Digits, other: Digits) -> bool:
    if isinstance(value, Rational) and isinstance(other, Rational):
        return value == other
    value = _to_float(value)
    other = _to_float(other)
    size = min(1, max(abs(value), abs(other)))
    return bool(abs(value - other) <= _CLOSE * size)
