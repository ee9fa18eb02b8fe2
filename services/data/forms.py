r"""Forms: a number written in named integers, under conditions that leave one way to write it.

``11 - 2√6`` in the form ``p + q√r`` has p=11, q=-2, r=6; the requested integer is p+q+r = 15.
A letter stands as ``<p>`` in the text of a form, so that it can be renamed, or replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

from services.data.letters import letters_of

_PLACE = re.compile(r"<([a-z])>")
_CONSTANTS = {"e", "i"}
_SPARE = "kmnpqrstuvwabcdfghjxyz"


Irrational = tuple[int, int]  # (squarefree radicand r >= 1, power p of π): √r·π^p
RATIONAL: Irrational = (1, 0)


class TooHard(ValueError):
    """A number that cannot be asked for in integers; the text says why."""


@dataclass(frozen=True)
class Exact:
    """A sum of ``coefficient·√r·π^p``; no coefficient is 0, so equal numbers have equal terms."""

    terms: Mapping[Irrational, Fraction]

    @property
    def rational(self) -> Fraction | None:
        """The value as a fraction; None if it is irrational."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(RATIONAL) if len(self.terms) == 1 else None


@dataclass(frozen=True)
class Form:
    r"""A number as ``shape`` of the integers ``values``, whose sum is asked for.

    All are nonzero. A ``denominator`` is above 0, and then all but the radicand have no common
    factor; a ``radicand`` is above 1 and squarefree.
    """

    shape: str
    values: Mapping[str, int]
    denominator: str | None = None
    radicand: str | None = None

    @property
    def integer(self) -> int:
        """The integer to give."""
        return sum(self.values.values())

    @property
    def others(self) -> tuple[str, ...]:
        """The letters that may be negative."""
        bound = {self.denominator, self.radicand}
        return tuple(letter for letter in self.values if letter not in bound)

    def rebuilt(self) -> str:
        """LaTeX of the number, put together from the integers alone."""
        return fill(self.shape, {letter: _bracketed(v) for letter, v in self.values.items()})


def fill(text: str, names: Mapping[str, str]) -> str:
    """The text with each ``<letter>`` replaced."""
    return _PLACE.sub(lambda match: names[match[1]], text)


def form_of(number: Exact) -> Form:
    r"""The form of an irrational number or fraction: ``(p + q√r·π^e)/s`` without its idle parts.

    Unique: ``r`` is squarefree, ``s > 0``, ``gcd(p, q, s) = 1``, and ``√r·π^e`` is irrational.

    Raises:
        TooHard: for integers, and for sums of two irrational numbers.
    """
    value = number.rational
    if value is not None:
        if value.denominator == 1:
            raise TooHard("an integer needs no form")
        return Form(r"\frac{<m>}{<n>}", {"m": value.numerator, "n": value.denominator}, "n")
    irrational = [(kind, value) for kind, value in number.terms.items() if kind != RATIONAL]
    if len(irrational) > 1:
        raise TooHard("a sum of different irrational numbers")
    [((radicand, power), coefficient)] = irrational
    constant = number.terms.get(RATIONAL)
    if constant is None:
        over, under = coefficient.numerator, coefficient.denominator
        values = {"k": over, "m": radicand, "n": under}
        return _irrational_form("<k>", values, power)
    under = constant.denominator * coefficient.denominator
    under //= gcd(constant.denominator, coefficient.denominator)
    values = {"p": int(constant * under), "q": int(coefficient * under), "r": radicand, "s": under}
    return _irrational_form("<p>+<q>", values, power)


def sentence(form: Form, letters: Mapping[str, str], unit: str | None) -> str:
    """What to add to a problem, so that its answer is ``form.integer``."""
    written = [f"${letters[letter]}$" for letter in form.values]
    kind = "is a nonzero integer" if len(written) == 1 else "are nonzero integers"
    conditions = "".join(f", {condition}" for condition in _conditions(form, letters))
    negative = [f"${letters[letter]}$" for letter in form.others]
    sign = f" ({_listed(negative)} may be negative)" if negative else ""
    return (
        f"Write the answer{f', in {unit},' if unit else ''} as ${fill(form.shape, letters)}$, "
        f"where {_listed(written)} {kind}{sign}{conditions}, and give the integer "
        f"${'+'.join(letters[letter] for letter in form.values)}$ as the final answer instead."
    )


def name_letters(form: Form, problem: str) -> dict[str, str] | None:
    """A name for each letter that the problem does not use yet; None if the alphabet is used up."""
    taken = _CONSTANTS | letters_of(problem)
    names: dict[str, str] = {}
    for letter in form.values:
        reserved = taken | set(names.values()) | (set(form.values) - {letter})
        free = [name for name in (letter, *_SPARE) if name not in reserved]
        if not free:
            return None
        names[letter] = free[0]
    return names


def _irrational_form(over: str, values: Mapping[str, int], power: int) -> Form:
    """The last two letters are radicand and denominator: a 1 among them is left out."""
    radicand, under = list(values)[-2:]
    root = rf"\sqrt{{<{radicand}>}}" if values[radicand] > 1 else ""
    above = over + root + _pi(power)
    shape = rf"\frac{{{above}}}{{<{under}>}}" if values[under] > 1 else above
    shown = {letter: value for letter, value in values.items() if f"<{letter}>" in shape}
    return Form(
        shape,
        shown,
        under if under in shown else None,
        radicand if radicand in shown else None,
    )


def _pi(power: int) -> str:
    if power == 0:
        return ""
    return r"\pi" if power == 1 else rf"\pi^{{{power}}}"


def _bracketed(value: int) -> str:
    return f"({value})" if value < 0 else str(value)


def _conditions(form: Form, letters: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    if form.denominator:
        found.append(f"${letters[form.denominator]} > 0$")
    if form.radicand:
        name = letters[form.radicand]
        found.append(f"${name} > 1$, ${name}$ is not divisible by the square of any prime")
    reduced = [letters[letter] for letter in form.values if letter != form.radicand]
    if form.denominator and len(reduced) > 1:
        found.append(rf"$\gcd({', '.join(reduced)}) = 1$")
    return found


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
