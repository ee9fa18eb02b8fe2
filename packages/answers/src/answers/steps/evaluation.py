"""The values of a tree, one for each way in which it can be read.

Numbers have 400 digits and lie between 10^-300 and 10^300, so that nothing takes long, integers
are exact, and what differs surely differs. Imported only in the pool: mpmath takes long to load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import comb, factorial
from typing import Any

from mpmath.ctx_mp import MPContext

from answers.nodes import Node

Value = Any  # a number of mpmath, which has no types
Ways = tuple[Callable[..., Value], ...]

_MAX_BITS = 1_000  # of 10^300
_MAX_WHOLE = 1_000  # of factorials, binomials and roots

_mp: Any = MPContext()  # of our own: sympy computes with the shared one in the same worker
_mp.dps = 400
_SAME = _mp.mpf(10) ** -200
E: Value = +_mp.e
number = _mp.mpf


class NoValue(ArithmeticError):
    """Undefined, not real, or too large to compute."""


def values(tree: Node, letters: Mapping[str, Value]) -> list[Value]:
    """In each way to read a tree, the usual one first; `NoValue` if that has none."""
    found = [_value(tree, letters, 0)]
    if any(len(_ways(node)) > 1 for node in tree.walk()):
        with suppress(NoValue):
            found.append(_value(tree, letters, 1))
    return found


def _value(tree: Node, letters: Mapping[str, Value], reading: int) -> Value:
    if tree.kind == "letter":
        return letters[tree.letter]
    if tree.kind == "number":
        return _bounded(_mp.mpf(tree.number.numerator) / tree.number.denominator)
    parts = [_value(part, letters, reading) for part in tree.parts]
    ways = _ways(tree)
    if not ways:
        raise NoValue(tree.kind)
    try:
        return _bounded(ways[min(reading, len(ways) - 1)](*parts))
    except (ArithmeticError, ValueError, TypeError, NotImplementedError) as error:
        raise NoValue(tree.kind) from error


def compare(a: Value, b: Value) -> int:
    """-1, 0 or 1 as a is less than b, equal or greater."""
    is_same = abs(a - b) <= max(1, abs(a), abs(b)) * _SAME
    return 0 if is_same else 1 if a > b else -1


def whole(a: Value) -> int:
    """The number as an integer; `NoValue` if it is none."""
    if compare(a, _mp.nint(a)) != 0:
        raise NoValue("no integer")
    return int(_mp.nint(a))


def _bounded(a: Value) -> Value:
    size = _mp.mag(a) if isinstance(a, _mp.mpf) and a else -_MAX_BITS
    if not isinstance(a, _mp.mpf) or not _mp.isfinite(a) or size > _MAX_BITS:
        raise NoValue("not real, or too large")
    return a if size > -_MAX_BITS else _mp.mpf(0)


def _count(a: Value) -> int:
    if not 0 <= a <= _MAX_WHOLE:
        raise NoValue("negative, or too large")
    return whole(a)


def _power(base: Value, exponent: Value) -> Value:
    if base == 0 and exponent <= 0:
        raise NoValue("zero to the power of zero, or below")
    return _mp.power(base, exponent)


def _root(inside: Value, index: Value) -> Value:
    degree = _count(index)
    return -_mp.root(-inside, degree) if inside < 0 and degree % 2 else _mp.root(inside, degree)


def _angle(name: str) -> Ways:
    """Of radians, or of degrees without a sign."""
    function = getattr(_mp, name)
    return function, lambda a: function(a * _mp.pi / 180)


_FUNCTIONS: Mapping[str, Ways] = {
    **{name: _angle(name) for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    **{f"arc{name}": (getattr(_mp, f"a{name}"),) for name in ("sin", "cos", "tan")},
    "exp": (_mp.exp,),
    "ln": (_mp.log,),
    "lg": (_mp.log10,),
    "log": (_mp.log10, _mp.log),
}
_OPERATIONS: Mapping[str, Ways] = {
    "pi": (lambda: +_mp.pi,),
    "+": (lambda a, b: a + b,),
    "-": (lambda a, b: a - b,),
    "*": (lambda a, b: a * b,),
    "negative": (lambda a: -a,),
    **dict.fromkeys(("/", "fraction"), (lambda a, b: a / b,)),
    **dict.fromkeys(("numeral", "grouped"), (lambda a: a,)),
    "absolute": (abs,),
    "^": (_power,),
    "root": (_root,),
    "factorial": (lambda a: _mp.mpf(factorial(_count(a))),),
    "binomial": (lambda a, b: _mp.mpf(comb(_count(a), _count(b))),),
    "floor": (lambda a: _mp.floor(a + _SAME),),
    "ceiling": (lambda a: _mp.ceil(a - _SAME),),
    "percent": (lambda a: a / 100, lambda a: a),
    "degree": (lambda a: a * _mp.pi / 180, lambda a: a),
    "mixed": (lambda a, b: a + b, lambda a, b: a * b),
    "plusminus": (lambda a, b: a + b, lambda a, b: a - b),
    "slash": (lambda a, b, c: a / (b * c), lambda a, b, c: a / b * c),
}


def _ways(tree: Node) -> Ways:
    if tree.kind == "function":
        return _FUNCTIONS.get(tree.letter, ()) if len(tree.parts) == 1 else (_mp.log,)
    return _OPERATIONS.get(tree.kind, ())
