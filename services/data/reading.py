"""Read an answer by the grader's reader: a number exactly, with its unit."""

from __future__ import annotations

from dataclasses import dataclass

from services.data.forms import Exact, TooHard
from services.data.numbers import read_number
from services.grader.answers.read import read_answer
from services.grader.answers.units import measure_of
from services.grader.answers.values import Expression, Number, Quantity, Relation, Words

_MAX_ANSWER_CHARS = 500
_UNITS = {"°": "degrees", "%": "percent", "$": "dollars", "dollar": "dollars"}


@dataclass(frozen=True)
class NumberWithUnit:
    """An answer as it is written, its number, and its unit in words."""

    text: str
    number: Exact
    unit: str | None = None


def is_plain(answer: str) -> bool:
    """Whether an answer is a number or words, which are compared without algebra."""
    return isinstance(read_answer(answer), Number | Words)


def read_quantity(answer: str) -> NumberWithUnit:
    r"""Part an answer from its unit: ``15\text{ cm}^2``, ``\$3``, ``90^\circ``, ``12\%``.

    Raises:
        TooHard: if it is no number of the plain kinds; the text says what it is.
    """
    if len(answer) > _MAX_ANSWER_CHARS:
        raise TooHard("a very long expression")
    value, unit = read_answer(answer), None
    if isinstance(value, Relation) and value.signs == ("=",) and value.texts[0].strip().isalpha():
        value = value.sides[1]
    if isinstance(value, Quantity):
        value, unit = value.head, value.unit
        if measure_of(unit) is None:
            raise TooHard(f"a number beside {unit!r}")
    if not isinstance(value, Number | Expression):
        raise TooHard(f"a {type(value).__name__.lower()}, and no number")
    text = value.latex if isinstance(value, Expression) else str(value.value)
    words = unit and _UNITS.get(unit, unit.replace("^2", "²").replace("^3", "³"))
    return NumberWithUnit(answer, read_number(text), words)
