r"""Fractions of polynomials in any letters, over exact numbers, with ``i² = -1``.

Two of them are equal if and only if their cross products are: nothing needs to be simplified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from services.grader.answers.exact import Exact, TooHard
from services.grader.answers.work import spend

_MAX_POWER = 64
_MAX_POWER_OF_SUM = 12
_MAX_TERMS = 64
_MAX_PRODUCTS = 120  # of fractions, in one multiplication

Monomial = tuple[tuple[str, int], ...]  # letters in order, each with its power; () is 1
_ONE: Monomial = ()
_UNIT = Exact.of(1)


@dataclass(frozen=True)
class Polynomial:
    """A sum of ``coefficient·monomial``; no coefficient is 0, so equal ones have equal terms."""

    terms: Mapping[Monomial, Exact]

    @property
    def constant(self) -> Exact | None:
        """The value if there are no letters, else None."""
        if not self.terms:
            return Exact.of(0)
        return self.terms.get(_ONE) if len(self.terms) == 1 else None

    @property
    def _num_fractions(self) -> int:
        """Those of all coefficients, each of which may be a sum of irrational terms."""
        return sum(len(coefficient.terms) for coefficient in self.terms.values())

    @property
    def letters(self) -> frozenset[str]:
        """All letters but ``i``."""
        return frozenset(letter for term in self.terms for letter, _ in term) - {"i"}

    def __add__(self, other: Polynomial) -> Polynomial:
        """The sum."""
        return _sum_of([*self.terms.items(), *other.terms.items()])

    def __neg__(self) -> Polynomial:
        """The opposite."""
        return Polynomial({monomial: -value for monomial, value in self.terms.items()})

    def __mul__(self, other: Polynomial) -> Polynomial:
        """The product.

        Raises:
            TooHard: if it has too many terms to be worked out here.
        """
        products = self._num_fractions * other._num_fractions
        if products > _MAX_PRODUCTS:
            raise TooHard("a product of long sums")
        spend(6 * products)
        return _sum_of(
            [_product(left, right) for left in self.terms.items() for right in other.terms.items()]
        )


@dataclass(frozen=True)
class Formula:
    """``over/under``. Compare with `equals`; ``under`` is never 0."""

    over: Polynomial
    under: Polynomial

    @classmethod
    def of(cls, value: Exact) -> Formula:
        """A number."""
        return cls(_polynomial_of(value), ONE)

    @classmethod
    def letter(cls, name: str) -> Formula:
        """A letter, perhaps with an index; ``i`` is the imaginary unit."""
        return cls(Polynomial({((name, 1),): _UNIT}), ONE)

    @property
    def number(self) -> Exact | None:
        """The exact real number that this is; None if it is none, or has letters."""
        return self.over.constant if self.under is ONE else None

    @property
    def letters(self) -> frozenset[str]:
        """All letters but ``i``."""
        return self.over.letters | self.under.letters

    @property
    def approximation(self) -> Decimal | None:
        """The real number that this is, to some fifty digits, ``e`` being Euler's; or None."""
        over, under = _approximation(self.over), _approximation(self.under)
        return None if over is None or not under else over / under

    def equals(self, other: Formula) -> bool:
        """Whether both are the same wherever both are defined.

        Raises:
            TooHard: if that takes too long to work out here.
        """
        if self.under is ONE and other.under is ONE:
            return self.over.terms == other.over.terms
        return (self.over * other.under).terms == (other.over * self.under).terms

    def is_multiple_of(self, other: Formula) -> int:
        """1 or -1, the sign of the factor, if this is a nonzero real number times other; else 0.

        Raises:
            TooHard: if that cannot be found out here, as below a fraction bar with letters.
        """
        if self.under is not ONE or other.under is not ONE:
            raise TooHard("an equation with letters below a fraction bar")
        mine, others = self.over.terms, other.over.terms
        if mine.keys() != others.keys() or not mine:
            return 0
        monomial = min(mine)
        factor = mine[monomial] * others[monomial].inverse()
        same = all(value * factor == mine[which] for which, value in others.items())
        return factor.sign if same else 0

    def __add__(self, other: Formula) -> Formula:
        """The sum."""
        if self.under is ONE and other.under is ONE:
            return Formula(self.over + other.over, ONE)
        over = self.over * other.under + other.over * self.under
        return Formula(over, self.under * other.under)

    def __neg__(self) -> Formula:
        """The opposite."""
        return Formula(-self.over, self.under)

    def __mul__(self, other: Formula) -> Formula:
        """The product."""
        under = self.under if other.under is ONE else self.under * other.under
        return Formula(self.over * other.over, under)

    def inverse(self) -> Formula:
        """One over this.

        Raises:
            TooHard: for 0.
        """
        if not self.over.terms:
            raise TooHard("a division by 0")
        number = self.over.constant
        if number is not None and number.has_inverse:
            return Formula(self.under * _polynomial_of(number.inverse()), ONE)
        return Formula(self.under, self.over)

    def power(self, exponent: int) -> Formula:
        """A whole power; of what is no number, up to 64, of sums up to 12.

        Raises:
            TooHard: for other exponents, and if there are too many terms.
        """
        number = self.number
        if number is not None and (exponent >= 0 or number.has_inverse):
            return Formula.of(number.power(exponent))
        if exponent < 0:
            return self.inverse().power(-exponent)
        is_sum = len(self.over.terms) > 1 or len(self.under.terms) > 1
        if exponent > (_MAX_POWER_OF_SUM if is_sum else _MAX_POWER):
            raise TooHard("a power whose exponent is not small")
        result = Formula(ONE, ONE)
        for _ in range(exponent):
            result = result * self
        return result


ONE = Polynomial({_ONE: _UNIT})


def _approximation(polynomial: Polynomial) -> Decimal | None:
    total = Decimal(0)
    for monomial, value in polynomial.terms.items():
        powers = dict(monomial)
        total += value.approximation * Decimal(powers.pop("e", 0)).exp()
        if powers:
            return None
    return total


def _polynomial_of(value: Exact) -> Polynomial:
    if not value.terms:
        return Polynomial({})
    return Polynomial({_ONE: value})


def _sum_of(terms: list[tuple[Monomial, Exact]]) -> Polynomial:
    spend(2 + len(terms))
    total: dict[Monomial, Exact] = {}
    for monomial, value in terms:
        total[monomial] = total[monomial] + value if monomial in total else value
    if len(total) > _MAX_TERMS:
        raise TooHard("a sum of many terms")
    return Polynomial({monomial: value for monomial, value in total.items() if value.terms})


def _product(left: tuple[Monomial, Exact], right: tuple[Monomial, Exact]) -> tuple[Monomial, Exact]:
    value = left[1] * right[1]
    if not left[0] or not right[0]:
        return left[0] or right[0], value
    powers = dict(left[0])
    for letter, power in right[0]:
        powers[letter] = powers.get(letter, 0) + power
    if powers.get("i", 0) == 2:
        del powers["i"]
        value = -value
    return tuple(sorted(powers.items())), value
