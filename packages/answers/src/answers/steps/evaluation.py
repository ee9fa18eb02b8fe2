"""The values of a tree, one for each of its readings.

Numbers have 400 digits and lie between 10^-300 and 10^300, so that nothing takes long, integers
are exact, and values that differ surely differ.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import comb, factorial
from typing import Any

from mpmath.ctx_mp import MPContext

from answers.nodes import Node

Value = Any  # a number of mpmath, which has no types
Readings = tuple[Callable[..., Value], ...]

_MAX_BITS = 1_000  # of 10^300
_MAX_WHOLE = 1_000  # of factorials, binomials and roots

_mp: Any = MPContext()  # SymPy computes with the shared context in the same worker
_mp.dps = 400
_SAME = _mp.mpf(10) ** -200
E: Value = +_mp.e
number = _mp.mpf


class NoValue(ArithmeticError):
    """The value is undefined, not real, or too large to compute."""


def evaluate(tree: Node, letters: Mapping[str, Value] | None = None) -> list[Value]:
    """Return the value of each reading of a tree, the usual reading first.

    Raises:
        NoValue: if the usual reading has no value.
        KeyError: if a letter has no value.
    """
    letters = letters or {}
    values = [_evaluate(tree, letters, 0)]
    if any(len(_get_readings(node)) > 1 for node in tree.walk()):
        with suppress(NoValue):
            values.append(_evaluate(tree, letters, 1))
    return values


def _evaluate(tree: Node, letters: Mapping[str, Value], reading: int) -> Value:
    if tree.kind == "letter":
        return letters[tree.letter]
    if tree.kind == "number":
        value = _mp.mpf(tree.number.numerator) / tree.number.denominator
        return _check_range(value)
    parts = [_evaluate(part, letters, reading) for part in tree.parts]
    readings = _get_readings(tree)
    if not readings:
        raise NoValue(tree.kind)
    function = readings[min(reading, len(readings) - 1)]
    try:
        return _check_range(function(*parts))
    except (ArithmeticError, ValueError, TypeError, NotImplementedError) as error:
        raise NoValue(tree.kind) from error


def compare(first: Value, second: Value) -> int:
    """Return -1, 0 or 1 if the first value is less, equal or greater."""
    size = max(1, abs(first), abs(second))
    if abs(first - second) <= size * _SAME:
        return 0
    return 1 if first > second else -1


def to_integer(value: Value) -> int:
    """Return the value as an integer.

    Raises:
        NoValue: if it is none.
    """
    integer = _mp.nint(value)
    if compare(value, integer) != 0:
        raise NoValue("no integer")
    return int(integer)


def _check_range(value: Value) -> Value:
    if not isinstance(value, _mp.mpf) or not _mp.isfinite(value):
        raise NoValue("not real")
    size = _mp.mag(value) if value else -_MAX_BITS
    if size > _MAX_BITS:
        raise NoValue("too large")
    if size > -_MAX_BITS:
        return value
    return _mp.mpf(0)


def _to_count(value: Value) -> int:
    if not 0 <= value <= _MAX_WHOLE:
        raise NoValue("negative, or too large")
    return to_integer(value)


def _power(base: Value, exponent: Value) -> Value:
    if base == 0 and exponent <= 0:
        raise NoValue("zero to the power of zero, or below")
    return _mp.power(base, exponent)


def _root(inside: Value, index: Value) -> Value:
    degree = _to_count(index)
    is_odd = degree % 2
    if inside < 0 and is_odd:
        return -_mp.root(-inside, degree)
    return _mp.root(inside, degree)


def _radians(angle: Value) -> Value:
    return angle * _mp.pi / 180


def _same(value: Value) -> Value:
    return value


_FUNCTIONS: dict[str, Readings] = {
    "exp": (_mp.exp,),
    "ln": (_mp.log,),
    "lg": (_mp.log10,),
    "log": (_mp.log10, _mp.log),
    "arcsin": (_mp.asin,),
    "arccos": (_mp.acos,),
    "arctan": (_mp.atan,),
}
for _name in ("sin", "cos", "tan", "cot", "sec", "csc"):
    _function = getattr(_mp, _name)
    # The second reading is of degrees without their sign.
    _FUNCTIONS[_name] = (_function, lambda angle, f=_function: f(_radians(angle)))
_OPERATIONS: Mapping[str, Readings] = {
    "pi": (lambda: +_mp.pi,),
    "+": (operator.add,),
    "-": (operator.sub,),
    "*": (operator.mul,),
    "negative": (operator.neg,),
    "/": (operator.truediv,),
    "fraction": (operator.truediv,),
    "numeral": (_same,),
    "grouped": (_same,),
    "absolute": (abs,),
    "^": (_power,),
    "root": (_root,),
    "factorial": (lambda n: _mp.mpf(factorial(_to_count(n))),),
    "binomial": (lambda n, k: _mp.mpf(comb(_to_count(n), _to_count(k))),),
    "floor": (lambda a: _mp.floor(a + _SAME),),
    "ceiling": (lambda a: _mp.ceil(a - _SAME),),
    "percent": (lambda a: a / 100, _same),
    "degree": (_radians, _same),
    "mixed": (operator.add, operator.mul),
    "plusminus": (operator.add, operator.sub),
    "slash": (lambda a, b, c: a / (b * c), lambda a, b, c: a / b * c),
}


def _get_readings(tree: Node) -> Readings:
    if tree.kind != "function":
        return _OPERATIONS.get(tree.kind, ())
    if len(tree.parts) == 1:
        return _FUNCTIONS.get(tree.letter, ())
    return (_mp.log,)
