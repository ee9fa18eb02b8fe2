r"""A number and its unit: ``15\text{ cm}^2``, ``\$3``, ``90^\circ``, ``12\%``, ``5 inches``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from services.grader.answers.asking import Question
from services.grader.answers.exact import PI, Exact
from services.grader.answers.units import ANY, Measure, measure_of, unit_of

_POWER = r" ?\^ ?\{? ?([23]) ?\}?"
_TEXT_UNIT = re.compile(
    rf"\\text ?\{{ ?([A-Za-zμ ./°-]{{1,40}})(?:\}}(?:{_POWER})?|{_POWER} ?\}})\Z|"
    rf"(?<=[0-9}}]) ?(?<![a-zA-Z])([A-Za-z]{{2,}}(?: [a-z]+){{0,3}})(?:{_POWER})?\Z"
)
_TEMPERATURE = re.compile(r"\^\\circ ?(?:\\text ?\{ ?)?([CFK])\}?\Z")
_FUNCTION = re.compile(r"\\(?!(?:frac|sqrt|pi|cdot|times|circ)(?![a-zA-Z]))[a-zA-Z]+")
_CHANGES_VALUE = re.compile(
    r"squared|cubed|factorial|hundred|thousand|million|billion|trillion|dozen|score|gross|base"
    r"|below|above|under|over|minus|plus|times|negative|half|halves|third|quarter|tenth|th\b"
    r"|\b(?:i|e|pi|or|and|to|not|less|more|least|most|about|mod|root|square|cube|pairs?|if|when)\b",
    re.IGNORECASE,
)
PERCENT, _DEGREE, _RADIAN = Measure("percent"), Measure("degree"), Measure("radian")
_HUNDREDTH, _HALF_TURN = Exact.of(Fraction(1, 100)), PI * Exact.of(Fraction(1, 180))


@dataclass(frozen=True)
class Quantity:
    """Tidied LaTeX of a number, and what its unit measures; None without one."""

    head: str
    measure: Measure | None = None


def split_quantity(latex: str, *, trusted: bool = False) -> Quantity:
    """Part a tidied answer from its unit; what is not surely a unit stays.

    A trusted author, of a gold answer, may name things that no list of units has.
    """
    last = latex[-1:]
    if last.isdigit() and "$" not in latex and "\\text" not in latex and latex[-2:-1] != "^":
        return Quantity(latex)
    if last == "%":
        return Quantity(latex[:-1].rstrip(), PERCENT)
    if "$" in latex:
        return _money(latex)
    if latex.endswith(r"^\circ") and not _FUNCTION.search(latex):
        return Quantity(latex[: -len(r"^\circ")].rstrip(), _DEGREE)
    if match := _TEMPERATURE.search(latex):
        return Quantity(latex[: match.start()].rstrip(), Measure(f"°{match[1]}"))
    return _with_words(latex, trusted=trusted)


def factors(gold: Quantity, answer: Quantity, question: Question) -> Iterator[Exact]:
    """By what the answer's number may be multiplied before it is compared with the gold's.

    Units are compared by what they measure; a unit left out is any unit. A gold percentage takes
    its number for itself, as its question asks "what percentage"; so does any number, if its
    question asks for a percentage. Degrees and radians are converted.
    """
    measures = gold.measure, answer.measure
    plain = {None, ANY}
    if measures[0] == measures[1] or plain.issuperset(measures):
        yield Exact.of(1)
    elif PERCENT in measures:
        yield from _percent(gold, answer, question)
    elif _DEGREE in measures and {None, ANY, _RADIAN}.intersection(measures):
        if _RADIAN not in measures:
            yield Exact.of(1)
        yield _HALF_TURN.inverse() if measures[0] == _DEGREE else _HALF_TURN
    elif plain.intersection(measures):
        yield Exact.of(1)
    elif measures[0] and measures[1] and measures[0].dimension == measures[1].dimension:
        yield Exact.of(measures[1].size / measures[0].size)


def _percent(gold: Quantity, answer: Quantity, question: Question) -> Iterator[Exact]:
    other = answer.measure if gold.measure == PERCENT else gold.measure
    if other not in (None, ANY):
        return
    if gold.measure == PERCENT:
        yield Exact.of(1)
        yield Exact.of(100)
    else:
        if question.asks_percent:
            yield Exact.of(1)
        yield _HUNDREDTH


def _money(latex: str) -> Quantity:
    head = latex.replace(r"\$", "", 1).strip()
    is_prefix = latex.startswith((r"\$", r"-\$", r"+\$")) or latex.endswith(r"\$")
    if not is_prefix or "$" in head:
        return Quantity(latex)
    behind = split_quantity(head)  # "$5 dollars" is said twice, "$5 per hour" is no money
    dollars = measure_of("dollars")
    return Quantity(behind.head if behind.measure == dollars else head, dollars)


def _with_words(latex: str, *, trusted: bool) -> Quantity:
    match = _TEXT_UNIT.search(latex)
    if match is None or not match.start():
        return Quantity(latex)
    words, power = match[1] or match[4], match[2] or match[3] or match[5]
    head = latex[: match.start()].rstrip()
    if head.endswith((r"^\circ", "%", "/", "=", "$", "-", ",")):
        return Quantity(latex)
    unit = unit_of(words.replace("°", "degrees "), power, is_text=match[1] is not None)
    if unit is not None:
        return Quantity(head, measure_of(unit))
    is_thing = trusted and match[1] is not None and not power and words.strip(" .")[2:]
    return Quantity(head, ANY) if is_thing and not _CHANGES_VALUE.search(words) else Quantity(latex)
