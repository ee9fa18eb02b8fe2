r"""Whether two expressions are the same, by their values modulo a prime of 127 bits.

Two fractions of polynomials that agree at a random point modulo a large prime are the same, but for
a chance of their degree in 2^127 (Schwartz 1980, Zippel 1979); nothing is expanded or simplified,
so a long expression takes no more time than it has operations. Letters, π and e have residues of
their own, and ``i`` is a root of -1. The prime is one less than a multiple of 8 and of all odd
primes below 100: modulo such a prime these are squares, and each positive number that is one has a
single root of each degree that is one too. So roots multiply as real ones do, and real numbers made
of them are equal if their values are: their only relations are products.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, DecimalException, localcontext
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from math import comb, factorial, isqrt, prod
from typing import Any, Protocol

from services.grader.answers.nodes import Node
from services.grader.answers.work import spend

_ODD_PRIMES = [n for n in range(3, 100) if all(n % divisor for divisor in range(2, n))]
_PRIME = 144 * prod(_ODD_PRIMES) - 1
_SQUARES = (_PRIME - 1) // 2  # how many there are; odd, and without a factor below 100
_MAX_BITS = 4096  # of fractions; larger ones go on as residues
_MAX_EXPONENT = 10**6
_MAX_COUNTED = 200
_MAX_DEGREE = 96  # of a root
_STEPS_OF_A_NODE = 5
_DIGITS = Context(prec=60, Emax=10**6, Emin=-(10**6))
_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863"
)


class TooHard(ValueError):
    """An expression has no value here; the text says why."""


@dataclass(frozen=True, slots=True)
class Residue:
    """A complex number modulo the prime."""

    real: int
    imaginary: int = 0

    def __add__(self, other: Residue) -> Residue:
        """The sum."""
        return Residue(
            (self.real + other.real) % _PRIME, (self.imaginary + other.imaginary) % _PRIME
        )

    def __neg__(self) -> Residue:
        """The opposite."""
        return Residue(-self.real % _PRIME, -self.imaginary % _PRIME)

    def __sub__(self, other: Residue) -> Residue:
        """The difference."""
        return self + -other

    def __mul__(self, other: Residue) -> Residue:
        """The product."""
        a, b, c, d = self.real, self.imaginary, other.real, other.imaginary
        return Residue((a * c - b * d) % _PRIME, (a * d + b * c) % _PRIME)

    def __truediv__(self, other: Residue) -> Residue:
        """The quotient.

        Raises:
            TooHard: for a division by 0.
        """
        a, b = other.real, other.imaginary
        if not (a or b):
            raise TooHard("a division by 0")
        inverse = pow(a * a + b * b, -1, _PRIME)
        return self * Residue(a * inverse % _PRIME, -b * inverse % _PRIME)

    def __pow__(self, exponent: int) -> Residue:
        """A whole power."""
        if not self.imaginary and exponent >= 0:
            return Residue(pow(self.real, exponent, _PRIME))
        power, square, left = Residue(1), self, abs(exponent)
        while left:
            power, square, left = power * square if left % 2 else power, square * square, left // 2
        return power if exponent >= 0 else Residue(1) / power


Value = Any  # a fraction as long as it is a short one, else a number of the field


class _Field(Protocol):
    """The numbers that expressions are worked out in; their arithmetic is Python's."""

    def number(self, value: Fraction) -> Value: ...
    def letter(self, name: str) -> Value: ...
    def root(self, base: Fraction, exponent: Fraction) -> Value: ...


@dataclass(frozen=True)
class _Residues:
    """Numbers modulo the prime; letters have other values at other points."""

    point: int = 0

    def number(self, value: Fraction) -> Residue:
        return Residue(value.numerator * pow(value.denominator, -1, _PRIME) % _PRIME)

    def letter(self, name: str) -> Residue:
        return Residue(0, 1) if name == "i" else _residue_of(name, self.point)

    def root(self, base: Fraction, exponent: Fraction) -> Residue:
        return _root(base, exponent)


@dataclass(frozen=True)
class _Reals:
    """Real numbers to sixty digits; letters have values at a point only."""

    point: int | None = None

    def number(self, value: Fraction) -> Decimal:
        return Decimal(value.numerator) / value.denominator

    def letter(self, name: str) -> Decimal:
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name == "i" or self.point is None:
            raise TooHard("a letter, where a real number is asked for")
        return Decimal(_residue_of(name, self.point).real % 10**9).scaleb(-8)

    def root(self, base: Fraction, exponent: Fraction) -> Decimal:
        return self.number(base) ** self.number(exponent)


_CONSTANTS = {"π": _PI, "e": _DIGITS.exp(Decimal(1))}


@lru_cache(4096)
def _residue_of(name: str, point: int) -> Residue:
    """π and e are the same at all points."""
    seed = name if name in _CONSTANTS else f"{name} {point}"
    return Residue(
        int.from_bytes(blake2b(seed.encode(errors="surrogatepass"), digest_size=32).digest())
        % _PRIME
    )


@lru_cache(4096)
def _root(base: Fraction, exponent: Fraction) -> Residue:
    value = _Residues().number(base).real
    if exponent.denominator > _MAX_DEGREE or pow(value, _SQUARES, _PRIME) != 1:
        raise TooHard("a root of a large degree, or of a number that is no square modulo the prime")
    power = exponent.numerator * pow(exponent.denominator, -1, _SQUARES) % _SQUARES
    return Residue(pow(value, power, _PRIME))


def value_of(tree: Node, point: int = 0) -> Fraction | Residue:
    """The value of an expression: a short fraction, or modulo the prime.

    Raises:
        TooHard: for functions, roots of letters, and whatever can be read in two ways.
    """
    return _evaluated(tree, _Residues(point))


def is_same(value: Fraction | Residue, other: Fraction | Residue) -> bool:
    """Whether two values of `value_of` are the same."""
    if isinstance(value, Fraction) and isinstance(other, Fraction):
        return value == other
    return _lifted(value, _Residues()) == _lifted(other, _Residues())


def approximation(tree: Node | None, point: int | None = None) -> Decimal | None:
    """The real number that an expression is, to some fifty digits; None if it is none.

    At a point, letters have values that depend on it.
    """
    field = _Reals(point)
    try:
        with localcontext(_DIGITS):
            return None if tree is None else _lifted(_evaluated(tree, field), field)
    except (TooHard, DecimalException):
        return None


def is_multiple(first: Node, second: Node) -> bool:
    """Whether one expression with letters is a real number, not 0, times the other.

    Raises:
        TooHard: if that cannot be found out, as of different fractions with letters below the bar.
    """
    values = [(_residue(first, point), _residue(second, point)) for point in (0, 1)]
    if any(each[0] == each[1] for each in zip(*values, strict=True)):
        return False  # a constant
    ratios = {one / other for one, other in values}
    if len(ratios) == 1:
        return not ratios.pop().imaginary
    if any(map(_has_letters_below, (*first.walk(), *second.walk()))):
        raise TooHard("fractions with letters below the bar, which may be multiples by letters")
    return False


def have_one_sign(first: Node, second: Node) -> bool:
    """Whether two expressions, of which one is a multiple of the other, are positive together.

    Raises:
        TooHard: if they are not real.
    """
    value, other = approximation(first, point=0), approximation(second, point=0)
    if not value or not other:
        raise TooHard("an expression without a real value")
    return (value > 0) == (other > 0)


def _residue(tree: Node, point: int) -> Residue:
    return _lifted(value_of(tree, point), _Residues())


def _has_letters_below(node: Node) -> bool:
    is_quotient = node.kind in ("/", "fraction") or (
        node.kind == "^" and node.parts[1].kind == "negative"
    )
    below = node.parts[0 if node.kind == "^" else 1].walk() if is_quotient else ()
    return any(each.kind == "letter" for each in below)


def _evaluated(tree: Node, field: _Field) -> Value:
    built: dict[int, Value] = {}
    for node in reversed(list(tree.walk())):  # parts come before what they are part of
        spend(_STEPS_OF_A_NODE)
        if node.kind not in _OPERATIONS:
            raise TooHard(f"a {node.kind}")
        built[id(node)] = _OPERATIONS[node.kind](node, field, *(built[id(p)] for p in node.parts))
    return built[id(tree)]


def _lifted(value: Value, field: _Field) -> Value:
    return field.number(value) if isinstance(value, Fraction) else value


def _short(value: Fraction, field: _Field) -> Value:
    bits = max(value.numerator.bit_length(), value.denominator.bit_length())
    return value if bits <= _MAX_BITS else field.number(value)


def _arithmetic(apply: Callable[[Value, Value], Value]) -> Callable[..., Value]:
    def operation(_: Node, field: _Field, a: Value, b: Value) -> Value:
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            if apply is operator.truediv and not b:
                raise TooHard("a division by 0")
            return _short(apply(a, b), field)
        return apply(_lifted(a, field), _lifted(b, field))

    return operation


def _power(_: Node, field: _Field, base: Value, exponent: Value) -> Value:
    if not isinstance(exponent, Fraction) or abs(exponent) > _MAX_EXPONENT:
        raise TooHard("an exponent that is not small")
    if exponent.denominator > 1:
        return _fractional_power(field, base, exponent)
    whole, is_zero = exponent.numerator, isinstance(base, Fraction) and not base
    if is_zero and whole <= 0:
        raise TooHard("a power of 0 that has no value")
    if isinstance(base, Fraction):
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits * abs(whole) <= 2 * _MAX_BITS:
            return base**whole
    return _lifted(base, field) ** whole


def _fractional_power(field: _Field, base: Value, exponent: Fraction) -> Value:
    if not isinstance(base, Fraction) or base <= 0:
        raise TooHard("a root of something with letters, irrational or negative")
    roots = isqrt(base.numerator), isqrt(base.denominator)
    if exponent == Fraction(1, 2) and Fraction(*roots) ** 2 == base:
        return Fraction(*roots)
    return field.root(base, exponent)


def _radical(node: Node, field: _Field, inside: Value, index: Value) -> Value:
    """Odd roots of negative numbers are negative."""
    if not isinstance(index, Fraction) or index.denominator > 1 or index < 1:
        raise TooHard("a root of a degree that is no positive integer")
    if isinstance(inside, Fraction) and inside < 0 and index.numerator % 2:
        return -_power(node, field, -inside, 1 / index)
    return _power(node, field, inside, 1 / index)


def _counted(count: Callable[..., int]) -> Callable[..., Value]:
    def operation(_: Node, field: _Field, *numbers: Value) -> Value:
        for each in numbers:
            if (
                not isinstance(each, Fraction)
                or each.denominator > 1
                or not 0 <= each <= _MAX_COUNTED
            ):
                raise TooHard("what is counted is no small number")
        return _short(Fraction(count(*map(int, numbers))), field)

    return operation


_OPERATIONS: Mapping[str, Callable[..., Value]] = {
    "number": lambda node, _: node.number,
    "letter": lambda node, field: field.letter(node.letter),
    "pi": lambda _, field: field.letter("π"),
    "+": _arithmetic(operator.add),
    "mixed": _arithmetic(operator.add),
    "-": _arithmetic(operator.sub),
    "*": _arithmetic(operator.mul),
    "/": _arithmetic(operator.truediv),
    "fraction": _arithmetic(operator.truediv),
    "negative": lambda _, __, inside: -inside,
    "grouped": lambda _, __, inside: inside,
    "repeating": lambda _, __, inside: inside,
    "^": _power,
    "root": _radical,
    "factorial": _counted(factorial),
    "binomial": _counted(comb),
}
