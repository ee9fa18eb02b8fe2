r"""Exact numbers: rational combinations of ``√r·π^p``, each written in exactly one way.

No computer algebra, no floats; everything is bounded, so that nothing here can hang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from math import gcd, isqrt

from services.grader.answers.work import spend

MAX_BITS = 4096
MAX_EXPONENT = 64
_MAX_EXPONENT_OF_SUM = 12
_MAX_RADICAND = 10**10
_MAX_TERMS = 16
_DIGITS = Context(prec=60)
_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863"
)


class TooHard(ValueError):
    """The number is outside what is written here exactly; the text says why."""


Irrational = tuple[int, int]  # (squarefree radicand r >= 1, power p of π): √r·π^p
RATIONAL: Irrational = (1, 0)


@dataclass(frozen=True)
class Exact:
    """A sum of ``coefficient·√r·π^p``; no coefficient is 0, so equal numbers have equal terms."""

    terms: Mapping[Irrational, Fraction]

    @classmethod
    def of(cls, value: int | Fraction) -> Exact:
        """A rational number."""
        return _sum_of([(RATIONAL, Fraction(value))])

    @property
    def rational(self) -> Fraction | None:
        """The value as a fraction; None if it is irrational."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(RATIONAL) if len(self.terms) == 1 else None

    def __add__(self, other: Exact) -> Exact:
        """The sum."""
        return _sum_of([*self.terms.items(), *other.terms.items()])

    def __neg__(self) -> Exact:
        """The opposite."""
        return Exact({irrational: -value for irrational, value in self.terms.items()})

    def __mul__(self, other: Exact) -> Exact:
        """The product."""
        return _sum_of(
            [_product(left, right) for left in self.terms.items() for right in other.terms.items()]
        )

    @property
    def has_inverse(self) -> bool:
        """Whether `inverse` can write one over this."""
        count = len(self.terms)
        return count == 1 or (count == 2 and not any(power for _, power in self.terms))

    def inverse(self) -> Exact:
        """One over a number of one term, or of two terms whose squares are rational.

        Raises:
            TooHard: for any other number, and for 0.
        """
        if len(self.terms) == 1:
            [((radicand, power), value)] = self.terms.items()
            return _sum_of([((radicand, -power), 1 / (value * radicand))])
        if not self.has_inverse:
            raise TooHard("a division by 0 or by a longer irrational sum")
        (first, value), (second, opposite) = self.terms.items()
        conjugate = Exact({first: value, second: -opposite})
        return conjugate * (self * conjugate).inverse()

    def sqrt(self) -> Exact:
        """The square root of a rational number that is not negative.

        Raises:
            TooHard: for any other number, or a radicand above 10^10.
        """
        value = self.rational
        if value is None or value < 0:
            raise TooHard("a root of something irrational or negative")
        inside = value.numerator * value.denominator
        if inside > _MAX_RADICAND:
            raise TooHard("a root of a very large number")
        factor, radicand = square_and_rest(inside)
        return _sum_of([((radicand, 0), Fraction(factor, value.denominator))])

    def power(self, exponent: int) -> Exact:
        """A whole power up to 64, of sums up to 12; of rationals, any that is not too large.

        Raises:
            TooHard: for any other exponent.
        """
        if exponent < 0:
            return self.inverse().power(-exponent)
        if (value := self.rational) is not None:
            return _sum_of([(RATIONAL, _power(value, exponent))])
        if exponent > (MAX_EXPONENT if len(self.terms) == 1 else _MAX_EXPONENT_OF_SUM):
            raise TooHard("a power whose exponent is not small")
        result = Exact.of(1)
        for _ in range(exponent):
            result = result * self
        return result

    @property
    def approximation(self) -> Decimal:
        """The value to some fifty digits."""
        spend(30 * len(self.terms))
        total = Decimal(0)
        for (radicand, power), value in self.terms.items():
            term = _DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator))
            term = _DIGITS.multiply(term, _DIGITS.sqrt(Decimal(radicand)))
            total = _DIGITS.add(total, _DIGITS.multiply(term, _DIGITS.power(_PI, power)))
        return total

    @property
    def sign(self) -> int:
        """1, 0 or -1."""
        if not self.terms:
            return 0
        return -1 if self.approximation < 0 else 1


PI = Exact({(1, 1): Fraction(1)})


def square_and_rest(number: int) -> tuple[int, int]:
    """``(f, r)`` with ``number == f²·r`` and squarefree ``r``; ``(0, 1)`` for 0.

    Trial division up to the cube root: what remains has at most two prime factors.
    """
    if number == 0:
        return 0, 1
    spend(isqrt(isqrt(number)))
    factor, rest, left, prime = 1, 1, number, 2
    while prime**3 <= left:
        count = 0
        while left % prime == 0:
            left, count = left // prime, count + 1
        factor, rest = factor * prime ** (count // 2), rest * prime ** (count % 2)
        prime += 1
    root = isqrt(left)
    return (factor * root, rest) if root * root == left else (factor, rest * left)


def _sum_of(terms: list[tuple[Irrational, Fraction]]) -> Exact:
    spend(2 + 3 * len(terms))
    total: dict[Irrational, Fraction] = {}
    for irrational, value in terms:
        total[irrational] = total.get(irrational, Fraction(0)) + value
    for value in total.values():
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            raise TooHard("a number of more than a thousand digits")
    if len(total) > _MAX_TERMS:
        raise TooHard("a sum of many different irrational numbers")
    return Exact({irrational: value for irrational, value in total.items() if value})


def _power(value: Fraction, exponent: int) -> Fraction:
    bits = max(value.numerator.bit_length(), value.denominator.bit_length())
    if bits * exponent > 2 * MAX_BITS or not (value or exponent):
        raise TooHard("a number of more than a thousand digits, or 0^0")
    return value**exponent


def _product(
    left: tuple[Irrational, Fraction], right: tuple[Irrational, Fraction]
) -> tuple[Irrational, Fraction]:
    (first, power), (second, other_power) = left[0], right[0]
    factor = gcd(first, second)  # both are squarefree
    radicand = first // factor * (second // factor)
    if radicand > _MAX_RADICAND:
        raise TooHard("a root of a very large number")
    return (radicand, power + other_power), left[1] * right[1] * factor
