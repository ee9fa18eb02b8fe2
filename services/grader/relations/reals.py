"""Arithmetic with real numbers: exact fractions as long as it goes, then intervals of 60 digits.

An interval surely holds its number. Everything is bounded before it is computed. Imported only in
the pool: mpmath takes long to load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import comb, factorial, isqrt
from typing import Any

from mpmath.ctx_iv import MPIntervalContext
from mpmath.ctx_mp import MPContext

Interval = Any  # mpmath has no types
Value = Fraction | Interval

MAX_BITS = 100_000
_MAX_EXPONENT_BITS = 20  # of an interval's size: up to 2^(2^20)
_MAX_FACTORIAL = 1_000
_EXACT_ROOT_BITS = 4_096
_DIGITS = 60
_SAME = Fraction(1, 10**30)
_DIFFERENT = Fraction(1, 10**10)

# Contexts of our own: sympy computes with the shared ones in the same worker.
_iv: Any = MPIntervalContext()
_mp: Any = MPContext()
_iv.dps = _DIGITS
_mp.dps = _DIGITS + 10

E: Interval = _iv.e
PI: Interval = _iv.pi


class NoValue(ArithmeticError):
    """Undefined, not real, or too large to compute."""


def compare(left: Value, right: Value) -> int | None:
    """-1, 0 or 1 as left is less, equal or greater; None if that is too close to tell."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return (left > right) - (left < right)
    difference = _interval(left) - _interval(right)
    low, high = _mp.mpf(difference.a), _mp.mpf(difference.b)
    size = max(_mp.mpf(1), *(abs(_mp.mpf(end)) for side in (left, right) for end in _ends(side)))
    if low <= 0 <= high:
        return 0 if high - low <= size * _mpf(_SAME) else None
    margin = size * _mpf(_DIFFERENT)
    return 1 if low > margin else -1 if high < -margin else None


def shown(a: Value) -> str:
    """The first digits of a number."""
    return f"{float(_mp.mpf(_ends(a)[0])):.10g}"


def plus(a: Value, b: Value) -> Value:
    """The sum."""
    return a + b if _both_exact(a, b) else _interval(a) + _interval(b)


def times(a: Value, b: Value) -> Value:
    """The product."""
    return a * b if _both_exact(a, b) else _interval(a) * _interval(b)


def negative(a: Value) -> Value:
    """The opposite."""
    return -a


def minus(a: Value, b: Value) -> Value:
    """The difference."""
    return plus(a, -b)


def over(a: Value, b: Value) -> Value:
    """The quotient; none if the divisor may be zero."""
    if compare(b, Fraction(0)) in {0, None}:
        raise NoValue("a division by zero")
    return a / b if _both_exact(a, b) else _interval(a) / _interval(b)


def over_all(a: Value, b: Value, c: Value) -> Value:
    """``a/bc`` as a/(bc)."""
    return over(a, times(b, c))


def over_first(a: Value, b: Value, c: Value) -> Value:
    """``a/bc`` as (a/b)c."""
    return times(over(a, b), c)


def itself(a: Value) -> Value:
    """The number as it is."""
    return a


def percent(a: Value) -> Value:
    """A hundredth."""
    return over(a, Fraction(100))


def radians(a: Value) -> Value:
    """Degrees as an angle."""
    return times(a, _iv.pi / 180)


def absolute(a: Value) -> Value:
    """The absolute value."""
    return abs(a)


def factorial_of(a: Value) -> Value:
    """The factorial of a whole number up to 1,000."""
    return Fraction(factorial(_whole(a, _MAX_FACTORIAL)))


def binomial(a: Value, b: Value) -> Value:
    """The binomial coefficient of whole numbers up to 1,000."""
    return Fraction(comb(_whole(a, _MAX_FACTORIAL), _whole(b, _MAX_FACTORIAL)))


def floor(a: Value) -> Value:
    """The greatest integer that is not above an exact number."""
    return Fraction(_exact(a).__floor__())


def ceiling(a: Value) -> Value:
    """The least integer that is not below an exact number."""
    return Fraction(_exact(a).__ceil__())


def power(base: Value, exponent: Value) -> Value:
    """A power; whole exponents take any base, others a positive one."""
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        return _whole_power(base, int(exponent))
    if compare(base, Fraction(0)) != 1:
        raise NoValue("a power of what is not positive")
    if isinstance(exponent, Fraction) and exponent.denominator <= 12:
        return _whole_power(root(base, Fraction(exponent.denominator)), exponent.numerator)
    return exp(times(exponent, log(base)))


def _whole_power(base: Value, exponent: int) -> Value:
    if exponent <= 0 and compare(base, Fraction(0)) in {0, None}:
        raise NoValue("zero to the power of zero, or below")
    if isinstance(base, Fraction):
        bits = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
        if bits * abs(exponent) > MAX_BITS:
            raise NoValue("a power that is too large")
        return base**exponent
    if abs(exponent) > MAX_BITS:
        raise NoValue("a power that is too large")
    return base**exponent


def root(inside: Value, index: Value) -> Value:
    """The real root; odd ones of negative numbers too."""
    degree = _whole(index, 100)
    sign = compare(inside, Fraction(0))
    if degree == 0 or (degree % 2 == 0 and sign == -1):
        raise NoValue("no real root")
    if sign == -1:
        return -root(-inside, index)
    if isinstance(inside, Fraction) and (exact := _exact_root(inside, degree)) is not None:
        return exact
    if sign is None:
        raise NoValue("a root of what may be negative")
    return _iv.sqrt(_interval(inside)) if degree == 2 else exp(over(log(inside), index))


def _exact_root(inside: Fraction, degree: int) -> Fraction | None:
    if max(inside.numerator.bit_length(), inside.denominator.bit_length()) > _EXACT_ROOT_BITS:
        return None
    roots = [_integer_root(number, degree) for number in (inside.numerator, inside.denominator)]
    exact = Fraction(roots[0], roots[1] or 1)
    return exact if exact**degree == inside else None


def _integer_root(number: int, degree: int) -> int:
    """The greatest integer whose power is not above ``number``."""
    if degree == 2:
        return isqrt(number)
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= number else (low, middle - 1)
    return low


def log(a: Value) -> Value:
    """The natural logarithm of a positive number."""
    if compare(a, Fraction(0)) != 1:
        raise NoValue("a logarithm of what is not positive")
    return Fraction(0) if a == 1 and isinstance(a, Fraction) else _iv.log(_interval(a))


def exp(a: Value) -> Value:
    """The exponential."""
    if compare(abs(a), Fraction(1 << (_MAX_EXPONENT_BITS - 1))) != -1:
        raise NoValue("an exponential that is too large")
    return _iv.exp(_interval(a))


def _sin(a: Value) -> Value:
    return _iv.sin(_small(a))


def _cos(a: Value) -> Value:
    return _iv.cos(_small(a))


ANGLED: Mapping[str, Callable[[Value], Value]] = {
    "sin": _sin,
    "cos": _cos,
    "tan": lambda a: over(_sin(a), _cos(a)),
    "cot": lambda a: over(_cos(a), _sin(a)),
    "sec": lambda a: over(Fraction(1), _cos(a)),
    "csc": lambda a: over(Fraction(1), _sin(a)),
}
ARCS = {"arcsin": _mp.asin, "arccos": _mp.acos, "arctan": _mp.atan}


def arc(function: Callable[[Any], Any], a: Value) -> Value:
    """An inverse of sine, cosine or tangent, in radians."""
    if function is not _mp.atan and compare(abs(a), Fraction(1)) not in {-1, 0}:
        raise NoValue("an arc of what is above 1")
    ends = sorted(function(_clamped(end, function)) for end in _ends(_interval(a)))
    margin = _mp.mpf(10) ** -_DIGITS
    return _iv.mpf([ends[0] - margin, ends[-1] + margin])


def _clamped(end: Any, function: Callable[[Any], Any]) -> Any:
    point = _mp.mpf(end)
    return point if function is _mp.atan else max(_mp.mpf(-1), min(_mp.mpf(1), point))


def _both_exact(a: Value, b: Value) -> bool:
    return isinstance(a, Fraction) and isinstance(b, Fraction)


def _interval(a: Value) -> Interval:
    return _iv.mpf(a.numerator) / _iv.mpf(a.denominator) if isinstance(a, Fraction) else a


def _ends(a: Value) -> tuple[Any, Any]:
    interval = _interval(a)
    return interval.a, interval.b


def _mpf(a: Fraction) -> Any:
    return _mp.mpf(a.numerator) / _mp.mpf(a.denominator)


def _exact(a: Value) -> Fraction:
    if not isinstance(a, Fraction):
        raise NoValue("no exact number")
    return a


def _whole(a: Value, limit: int) -> int:
    number = _exact(a)
    if number.denominator != 1 or not 0 <= number <= limit:
        raise NoValue(f"no whole number up to {limit}")
    return int(number)


def _small(a: Value) -> Interval:
    if compare(abs(a), Fraction(1 << 64)) != -1:
        raise NoValue("an angle that is too large")
    return _interval(a)


def bounded(a: Value) -> Value:
    """The number, unless it is too large to go on with."""
    if isinstance(a, Fraction):
        if max(a.numerator.bit_length(), a.denominator.bit_length()) > MAX_BITS:
            raise NoValue("a number that is too large")
        return a
    ends = [_mp.mpf(end) for end in _ends(a)]
    if not all(
        _mp.isfinite(end) and abs(_mp.mag(end) if end else 0) < 1 << _MAX_EXPONENT_BITS
        for end in ends
    ):
        raise NoValue("a number that is too large")
    return a
