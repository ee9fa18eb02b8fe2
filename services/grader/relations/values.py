"""The value of a tree: an exact fraction, or an interval that surely holds the real number.

Everything is bounded before it is computed. Imported only in the pool: mpmath takes long to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import partial
from itertools import product
from math import comb, factorial, isqrt
from typing import Any

import mpmath

from services.grader.relations.reading import Node

Interval = Any  # mpmath has no types
Value = Fraction | Interval

MAX_BITS = 100_000
_MAX_EXPONENT_BITS = 20  # of an interval's size: up to 2^(2^20)
_MAX_FACTORIAL = 1_000
_EXACT_ROOT_BITS = 4_096
_DIGITS = 60
_SAME = Fraction(1, 10**30)
_DIFFERENT = Fraction(1, 10**10)

iv: Any = mpmath.iv
mp: Any = mpmath.mp
iv.dps = _DIGITS
mp.dps = _DIGITS + 10


E: Interval = iv.e


class NoValue(ArithmeticError):
    """Undefined, not real, or too large to compute."""


@dataclass(frozen=True)
class Way:
    """One way to read what is read in two ways."""

    percent_is_hundredth: bool = True
    degree_is_unit: bool = False  # 180° is 180, and not π
    mixed_is_sum: bool = True
    slash_binds_all: bool = True
    log_is_natural: bool = False
    angle_in_degrees: bool = False  # sin 30


_WHAT_FORKS = {
    "percent": "percent_is_hundredth",
    "degree": "degree_is_unit",
    "mixed": "mixed_is_sum",
    "slash": "slash_binds_all",
}


def ways(trees: list[Node]) -> Iterator[Way]:
    """Every way to read these trees together; the usual one first."""
    forks = {name for tree in trees for node in tree.walk() for name in _forks(node)}
    usual = Way()
    choices = [
        (getattr(usual, each.name), not getattr(usual, each.name))
        if each.name in forks
        else (getattr(usual, each.name),)
        for each in fields(Way)
    ]
    for choice in product(*choices):
        yield Way(*choice)


def _forks(node: Node) -> Iterator[str]:
    if node.kind in _WHAT_FORKS:
        yield _WHAT_FORKS[node.kind]
    if node.kind == "function" and node.letter == "log" and len(node.parts) == 1:
        yield "log_is_natural"
    if node.kind == "function" and node.letter in _ANGLED | _ARCS.keys():
        yield "angle_in_degrees"


def compare(left: Value, right: Value) -> int | None:
    """-1, 0 or 1 as left is less, equal or greater; None if that is too close to tell."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return (left > right) - (left < right)
    difference = _interval(left) - _interval(right)
    low, high = mp.mpf(difference.a), mp.mpf(difference.b)
    size = max(mp.mpf(1), *(abs(mp.mpf(end)) for side in (left, right) for end in _ends(side)))
    if low <= 0 <= high:
        return 0 if high - low <= size * _mpf(_SAME) else None
    margin = size * _mpf(_DIFFERENT)
    return 1 if low > margin else -1 if high < -margin else None


def distance(left: Value, right: Value) -> tuple[Value, Value]:
    """The least and the greatest absolute difference."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return abs(left - right), abs(left - right)
    difference = abs(_interval(left) - _interval(right))
    return iv.mpf(difference.a), iv.mpf(difference.b)


def value(tree: Node, way: Way, letters: Mapping[str, Fraction]) -> Value:
    """The value of a tree.

    Raises:
        NoValue: if it is undefined, not real, or too large.
    """
    if tree.kind == "number":
        return tree.number
    if tree.kind == "letter":
        return letters[tree.letter]
    if tree.kind == "pi":
        return iv.pi
    parts = [value(part, way, letters) for part in tree.parts]
    return _bounded(_operation(tree, way)(*parts))


def _operation(tree: Node, way: Way) -> Callable[..., Value]:
    match tree.kind:
        case "function":
            return partial(_called, tree.letter, way)
        case "percent":
            return _percent if way.percent_is_hundredth else _itself
        case "degree":
            return _itself if way.degree_is_unit else _radians
        case "mixed":
            return _plus if way.mixed_is_sum else _times
        case "slash":
            return _over_all if way.slash_binds_all else _over_first
    return _OPERATIONS[tree.kind]


def _plus(a: Value, b: Value) -> Value:
    return a + b if _both_exact(a, b) else _interval(a) + _interval(b)


def _times(a: Value, b: Value) -> Value:
    return a * b if _both_exact(a, b) else _interval(a) * _interval(b)


def _negative(a: Value) -> Value:
    return -a


def _minus(a: Value, b: Value) -> Value:
    return _plus(a, -b)


def _over(a: Value, b: Value) -> Value:
    if compare(b, Fraction(0)) in {0, None}:
        raise NoValue("a division by zero")
    return a / b if _both_exact(a, b) else _interval(a) / _interval(b)


def _over_all(a: Value, b: Value, c: Value) -> Value:
    return _over(a, _times(b, c))


def _over_first(a: Value, b: Value, c: Value) -> Value:
    return _times(_over(a, b), c)


def _itself(a: Value) -> Value:
    return a


def _percent(a: Value) -> Value:
    return _over(a, Fraction(100))


def _radians(a: Value) -> Value:
    return _times(a, iv.pi / 180)


def _absolute(a: Value) -> Value:
    return abs(a)


def _factorial(a: Value) -> Value:
    return Fraction(factorial(_whole(a, _MAX_FACTORIAL)))


def _binomial(a: Value, b: Value) -> Value:
    return Fraction(comb(_whole(a, _MAX_FACTORIAL), _whole(b, _MAX_FACTORIAL)))


def _floor(a: Value) -> Value:
    return Fraction(_exact(a).__floor__())


def _ceiling(a: Value) -> Value:
    return Fraction(_exact(a).__ceil__())


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        return _whole_power(base, int(exponent))
    if compare(base, Fraction(0)) != 1:
        raise NoValue("a power of what is not positive")
    if isinstance(exponent, Fraction) and exponent.denominator <= 12:
        return _whole_power(_root(base, Fraction(exponent.denominator)), exponent.numerator)
    return _exp(_times(exponent, _log(base)))


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


def _root(inside: Value, index: Value) -> Value:
    degree = _whole(index, 100)
    sign = compare(inside, Fraction(0))
    if degree == 0 or (degree % 2 == 0 and sign == -1):
        raise NoValue("no real root")
    if sign == -1:
        return -_root(-inside, index)
    if isinstance(inside, Fraction) and (exact := _exact_root(inside, degree)) is not None:
        return exact
    if sign is None:
        raise NoValue("a root of what may be negative")
    return iv.sqrt(_interval(inside)) if degree == 2 else _exp(_over(_log(inside), index))


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


def _log(a: Value) -> Value:
    if compare(a, Fraction(0)) != 1:
        raise NoValue("a logarithm of what is not positive")
    return Fraction(0) if a == 1 and isinstance(a, Fraction) else iv.log(_interval(a))


def _exp(a: Value) -> Value:
    if compare(abs(a), Fraction(1 << (_MAX_EXPONENT_BITS - 1))) != -1:
        raise NoValue("an exponential that is too large")
    return iv.exp(_interval(a))


def _called(name: str, way: Way, a: Value, *base: Value) -> Value:
    if name == "log" and not base:
        return _log(a) if way.log_is_natural else _over(_log(a), _log(Fraction(10)))
    if name in {"log", "lg"}:
        return _over(_log(a), _log(base[0] if base else Fraction(10)))
    if name in _ARCS:
        angle = _arc(_ARCS[name], a)
        return _over(_times(angle, Fraction(180)), iv.pi) if way.angle_in_degrees else angle
    if name in _ANGLED:
        exact_degrees = way.angle_in_degrees and isinstance(a, Fraction)
        return _ANGLED_OPERATIONS[name](_radians(a) if exact_degrees else a)
    return {"ln": _log, "exp": _exp}[name](a)


def _sin(a: Value) -> Value:
    return iv.sin(_small(a))


def _cos(a: Value) -> Value:
    return iv.cos(_small(a))


_ANGLED_OPERATIONS: Mapping[str, Callable[[Value], Value]] = {
    "sin": _sin,
    "cos": _cos,
    "tan": lambda a: _over(_sin(a), _cos(a)),
    "cot": lambda a: _over(_cos(a), _sin(a)),
    "sec": lambda a: _over(Fraction(1), _cos(a)),
    "csc": lambda a: _over(Fraction(1), _sin(a)),
}
_ANGLED = _ANGLED_OPERATIONS.keys()
_ARCS = {"arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan}


def _arc(function: Callable[[Any], Any], a: Value) -> Value:
    if function is not mp.atan and compare(abs(a), Fraction(1)) not in {-1, 0}:
        raise NoValue("an arc of what is above 1")
    ends = sorted(function(_clamped(end, function)) for end in _ends(_interval(a)))
    margin = mp.mpf(10) ** -_DIGITS
    return iv.mpf([ends[0] - margin, ends[-1] + margin])


def _clamped(end: Any, function: Callable[[Any], Any]) -> Any:
    point = mp.mpf(end)
    return point if function is mp.atan else max(mp.mpf(-1), min(mp.mpf(1), point))


_OPERATIONS: Mapping[str, Callable[..., Value]] = {
    "+": _plus,
    "-": _minus,
    "*": _times,
    "/": _over,
    "fraction": _over,
    "negative": _negative,
    "numeral": _itself,
    "repeating": _itself,
    "grouped": _itself,
    "absolute": _absolute,
    "^": _power,
    "root": _root,
    "factorial": _factorial,
    "binomial": _binomial,
    "floor": _floor,
    "ceiling": _ceiling,
}


def _both_exact(a: Value, b: Value) -> bool:
    return isinstance(a, Fraction) and isinstance(b, Fraction)


def _interval(a: Value) -> Interval:
    return iv.mpf(a.numerator) / iv.mpf(a.denominator) if isinstance(a, Fraction) else a


def _ends(a: Value) -> tuple[Any, Any]:
    interval = _interval(a)
    return interval.a, interval.b


def _mpf(a: Fraction) -> Any:
    return mp.mpf(a.numerator) / mp.mpf(a.denominator)


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


def _bounded(a: Value) -> Value:
    if isinstance(a, Fraction):
        if max(a.numerator.bit_length(), a.denominator.bit_length()) > MAX_BITS:
            raise NoValue("a number that is too large")
        return a
    ends = [mp.mpf(end) for end in _ends(a)]
    if not all(
        mp.isfinite(end) and abs(mp.mag(end) if end else 0) < 1 << _MAX_EXPONENT_BITS
        for end in ends
    ):
        raise NoValue("a number that is too large")
    return a
