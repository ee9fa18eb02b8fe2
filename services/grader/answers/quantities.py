r"""A number and its unit: ``15\text{ cm}^2``, ``\$3``, ``90^\circ``, ``12\%``, ``5 inches``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from services.grader.answers.asking import UNKNOWN, Question
from services.grader.answers.exact import PI, Exact
from services.grader.answers.times import is_half_of_day
from services.grader.answers.units import ANY, THINGS, Measure, measure_of, unit_of

_POWER = r" ?\^ ?\{? ?([23]) ?\}?"
_TEXT_UNIT = re.compile(
    rf"\\text ?\{{ ?([A-Za-zμ ./°-]{{1,40}})(?:\}}(?:{_POWER})?|{_POWER} ?\}})\Z|"
    rf"(?<=[0-9}}]) ?(?<![a-zA-Z])([A-Za-z]{{2,}}(?:/[a-z]+|(?: [a-z]+){{0,3}}))(?:{_POWER})?\Z"
)
_TEMPERATURE = re.compile(r"\^\\circ ?(?:\\text ?\{ ?)?([CFK])\}?\Z")
_FUNCTION = re.compile(r"\\(?!(?:frac|sqrt|pi|cdot|times|circ)(?![a-zA-Z]))[a-zA-Z]+")
_CHANGES_VALUE = re.compile(
    r"\b(?:squared|cubed|factorial|dozen|score|gross|base|below|above|under|(?<!left )over|minus"
    r"|plus|negative|half|halves|third|quarter|[b-z]|pi|or|and|to|not?|less|than|least|most|about"
    r"|mod|root|square(?! [a-z])|cube(?! [a-z])|pair|if|when|twice|double|triple|wrong|false"
    r"|incorrect|never|unless|except|versus|nor|but|instead"
    r"|one(?!-)|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen|hundred|thousand"
    r"|[a-z]+illion|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|th"
    r"|[a-z]*(?:four|fif|six|seven|eigh|nin|ten|elf|hundred|sand|lion|teen|tie)th"
    r"|lakh|crore|grand(?! [a-z])|couple|short(?!s| [a-z])|loss|reciprocal|inverse(?!s)|remainder"
    r"|impossible|unknown(?!s))s?\b",
    re.IGNORECASE,
)
_PLURAL = re.compile(r"\b(?:squares|cubes|pairs|quarters|roots)\b")  # of a problem, things
_AND = re.compile(r"\b([a-zA-Z]+) and (?=([a-zA-Z]+))")
_SAYS_NOTHING = frozenset(
    re.findall(
        r"\w+",
        "a additional all altogether an apart at away day days deep different each every extra far "
        "for her high his in left long more now of old on over per remaining tall the their total "
        "unique way ways wide year years",
    )
)
_USD = re.compile(r"\A(?:\\text ?\{ ?USD ?\}|USD) ?")
_PER = re.compile(r"(\\text ?\{ ?|(?<=[0-9]) )(?=(?:per|an?) )")
PERCENT, _DEGREE, _RADIAN = Measure("percent"), Measure("degree"), Measure("radian")
_HUNDREDTH, _HALF_TURN = Exact.of(Fraction(1, 100)), PI * Exact.of(Fraction(1, 180))


@dataclass(frozen=True)
class Quantity:
    """Tidied LaTeX of a number, and what its unit measures; None without one."""

    head: str
    measure: Measure | None = None


def split_quantity(latex: str, *, question: Question = UNKNOWN, trusted: bool = False) -> Quantity:
    """Part a tidied answer from its unit; what is not surely a unit stays.

    Things that no list of units has may be named as the problem names them, or by a trusted author,
    of a gold answer.
    """
    latex = _USD.sub(r"\\$", latex, count=1) if "USD" in latex else latex
    last = latex[-1:]
    if last.isdigit() and "$" not in latex and "\\text" not in latex and latex[-2:-1] != "^":
        return Quantity(latex)
    if last == "%":
        return Quantity(latex[:-1].rstrip(), PERCENT)
    if "$" in latex:
        return _money(latex, question)
    if latex.endswith(r"^\circ") and not _FUNCTION.search(latex):
        return Quantity(latex[: -len(r"^\circ")].rstrip(), _DEGREE)
    if match := _TEMPERATURE.search(latex):
        return Quantity(latex[: match.start()].rstrip(), Measure(f"°{match[1]}"))
    return _with_words(latex, question, trusted=trusted)


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


def _money(latex: str, question: Question) -> Quantity:
    head = latex.replace(r"\$", "", 1).strip()
    is_prefix = latex.startswith((r"\$", r"-\$", r"+\$")) or latex.endswith(r"\$")
    if not is_prefix or "$" in head:
        return Quantity(latex)
    behind = split_quantity(_PER.sub(r"\1dollars ", head), question=question)
    dollars = measure_of("dollars")  # "$5 dollars" is said twice, "$5 per hour" is no money
    if behind.measure is None:
        return Quantity(head, dollars)
    if behind.measure.dimension.partition("/")[0] == dollars.dimension:
        return behind
    return Quantity(behind.head if behind.measure == THINGS else head, dollars)


def _with_words(latex: str, question: Question, *, trusted: bool) -> Quantity:
    match = _TEXT_UNIT.search(latex)
    if match is None or not match.start():
        return Quantity(latex)
    words, power = match[1] or match[4], match[2] or match[3] or match[5]
    head = latex[: match.start()].rstrip()
    if head.endswith((r"^\circ", "%", "/", "=", "$", "-", ",")) or is_half_of_day(words):
        return Quantity(latex)
    unit = unit_of(words.replace("°", "degrees "), power, is_text=match[1] is not None)
    if unit is not None:
        return Quantity(head, measure_of(unit))
    words = _AND.sub(lambda m: _joined(m, question), words)
    if power or _CHANGES_VALUE.search(_PLURAL.sub(lambda m: _if_unknown(m, question), words)):
        return Quantity(latex)
    measure = _measure_of_words(words.replace(".", "").split(), question)
    is_thing = trusted and match[1] is not None and words.strip(" .")[2:]
    return Quantity(head, measure or ANY) if measure or is_thing else Quantity(latex)


def _joined(match: re.Match[str], question: Question) -> str:
    """``dogs and`` without its "and", if the problem has the same words, ``dogs and cats``."""
    is_known = all(map(question.counts, match.groups()))
    return f"{match[1]} " if is_known and question.mentions(match[0] + match[2]) else match[0]


def _if_unknown(match: re.Match[str], question: Question) -> str:
    return "" if question.counts(match[0]) else match[0]


def _measure_of_words(words: list[str], question: Question) -> Measure | None:
    """What words measure that the problem has, or that say nothing, beside a unit or without one.

    None if some word is neither.
    """
    for end in range(len(words), 0, -1):
        if unit := unit_of(" ".join(words[:end]), None):
            return measure_of(unit) if _are_known(words[end:], question) else None
    for begin in range(1, len(words)):
        if unit := unit_of(" ".join(words[begin:]), None):
            return measure_of(unit) if _are_known(words[:begin], question) else None
    return THINGS if question.text and _are_known(words, question) else None


def _are_known(words: list[str], question: Question) -> bool:
    return all(word in _SAYS_NOTHING or question.counts(word) for word in words)
