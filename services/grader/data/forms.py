r"""Forms: a number written in named integers, under conditions that leave one way to write it.

``11 - 2√6`` in the form ``p + q√r`` has p=11, q=-2, r=6; the requested integer is p+q+r = 15.
A letter stands as ``<p>`` in the text of a form, so that it can be renamed, or replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd

from services.grader.answers.exact import RATIONAL, Exact, TooHard
from services.grader.data.letters import letters_of

_PLACE = re.compile(r"<([a-z])>")
_CONSTANTS = {"e", "i"}
_SPARE = "kmnpqrstuvwabcdfghjxyz"
_POWERS = {2: "the square", 3: "the cube"}


@dataclass(frozen=True)
class Form:
    r"""A number as ``shape`` of the integers ``values``; ``asked`` is an expression of them.

    All letters are nonzero integers. Those in ``denominators`` are above 0, and then all that are
    no radicands have no common factor; a letter in ``radicands`` is above 1 and not divisible by
    that power of a prime (2 below a square root).
    """

    shape: str
    asked: str
    values: Mapping[str, int]
    integer: int
    denominators: tuple[str, ...] = ()
    radicands: Mapping[str, int] = field(default_factory=dict)

    @property
    def others(self) -> tuple[str, ...]:
        """The letters that may be negative."""
        bound = {*self.denominators, *self.radicands}
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
        return _sum_form(
            r"\frac{<m>}{<n>}", {"m": value.numerator, "n": value.denominator}, under="n"
        )
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
        f"${fill(form.asked, letters)}$ as the final answer instead."
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
    return _sum_form(shape, shown, radicand=radicand, under=under)


def _sum_form(
    shape: str, values: Mapping[str, int], *, under: str, radicand: str | None = None
) -> Form:
    """The form whose requested integer is the sum of all."""
    return Form(
        shape=shape,
        asked="+".join(f"<{letter}>" for letter in values),
        values=values,
        integer=sum(values.values()),
        denominators=(under,) if under in values else (),
        radicands={radicand: 2} if radicand and radicand in values else {},
    )


def _pi(power: int) -> str:
    if power == 0:
        return ""
    return r"\pi" if power == 1 else rf"\pi^{{{power}}}"


def _bracketed(value: int) -> str:
    return f"({value})" if value < 0 else str(value)


def _conditions(form: Form, letters: Mapping[str, str]) -> list[str]:
    found = [f"${letters[letter]} > 0$" for letter in form.denominators]
    for letter, index in form.radicands.items():
        power = _POWERS.get(index, f"the {index}th power")
        name = f"${letters[letter]}$"
        found.append(f"${letters[letter]} > 1$, {name} is not divisible by {power} of any prime")
    reduced = [letters[letter] for letter in form.values if letter not in form.radicands]
    if form.denominators and len(reduced) > 1:
        found.append(rf"$\gcd({', '.join(reduced)}) = 1$")
    return found


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
