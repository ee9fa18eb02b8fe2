r"""A number and what stands behind it: a unit, a percent sign, words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

from services.grader.answers.nodes import Node, integer
from services.grader.answers.question import MAX_CHARS, Question
from services.grader.answers.tokens import vocabulary
from services.grader.answers.units import DEGREE, PERCENT, RADIAN, THINGS, Measure, measure_of
from services.grader.answers.values import Expression, Number, Quantity, Value, Words
from services.grader.answers.verdict import Comparison, Verdict, any_of

_CHANGES_VALUE = re.compile(
    r"\b(?:squared|cubed|factorial|dozen|score|gross|base|below|above|under|(?<!left )over|minus"
    r"|plus|negative|half|halves|third|quarter|[b-z]|pi|or|and|to|not?|less|than|least|most|about"
    r"|mod|root|square(?! [a-z])|cube(?! [a-z])|pair|if|when|twice|double|triple|wrong|false"
    r"|incorrect|never|unless|except|versus|nor|but|instead|is|are|maybe|i e"
    r"|one(?!-)|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen|hundred|thousand"
    r"|[a-z]+illion|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|th"
    r"|[a-z]*(?:four|fif|six|seven|eigh|nin|ten|elf|hundred|sand|lion|teen|tie)th"
    r"|lakh|crore|grand(?! [a-z])|couple|short(?!s| [a-z])|loss|reciprocal|inverse(?!s)|remainder"
    r"|impossible|unknown(?!s)|younger|fewer|lower|another|[ap]\.?m"
    r"|january|february|march|april|may|june|july|august|september|october|november|december)s?\b",
    re.IGNORECASE,
)
_PLURAL = re.compile(r"\b(?:squares|cubes|pairs|quarters|roots|halves|thirds)\b")
_SAYS_NOTHING = frozenset(
    vocabulary(
        "a additional all altogether an apart at away day days deep different each every extra "
        "far for her high his in left long more now of old on over per remaining tall the their "
        "total unique way ways wide year years"
    )
)
_UNIT_ASKED = re.compile(
    r"(?:how many|number of|in) ((?:square |cubic |sq |cu )?[a-z]{2,20}"
    r"(?: per [a-z]{1,12})?)(?![a-z])",
    re.IGNORECASE,
)
_ASKS = re.compile(r"(?i:\b(?:how|what|which|find|determine|compute|calculate)\b)")
_ONE, _HUNDREDTH, _HUNDRED = (Number(Fraction(each)) for each in ("1", "1/100", "100"))
_HALF_TURN = Expression.of(Node("fraction", (Node("pi"), integer(180))))
_DEGREES_OF_RADIAN = Expression.of(Node("fraction", (integer(180), Node("pi"))))
_HAN = re.compile(r"[\u4e00-\u9fff ]+")
_COUNTERS = re.compile("[个人只本元块件条张台辆棵头匹家名位岁种组箱袋瓶盒支枝朵颗粒套]{1,2}")
Scale = Number | Expression
_UNKNOWN = Measure((("unknown", 1),))  # words that nobody knows to say another value


def quantities(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Units are compared by what they measure; a unit left out is the one that is asked for."""
    if not (isinstance(gold, Quantity) or isinstance(answer, Quantity)):
        return None
    if not all(isinstance(each, Quantity | Number | Expression) for each in (gold, answer)):
        return None if not _is_word(gold, answer) else Verdict(False, "words")
    measure, other = _measure(gold, by.question), _measure(answer, by.question, is_answer=True)
    if False in (measure, other):  # words that change the value are only themselves
        return Verdict(_said(gold) == _said(answer) and by.same(_head(gold), _head(answer)).equal,
                       "words")  # fmt: skip
    assert not isinstance(measure, bool)
    assert not isinstance(other, bool)
    scales = list(_factors(measure, other, by.question))
    if not scales:
        return Verdict(False, "unit")
    is_rounded = len({measure, other}) == 1 or (
        PERCENT not in (measure, other) and None in (measure, other)
    )
    head = _head(answer)
    verdicts = [_same(_head(gold), head, scale, by, is_rounded) for scale in scales]
    equal = any_of(verdict.equal for verdict in verdicts)
    if equal and other is _UNKNOWN:
        return Verdict(None, "words")
    return Verdict(equal, "unit" if len(scales) > 1 or scales[0] != _ONE else verdicts[0].path)


def _is_word(gold: Value, answer: Value) -> bool:
    return isinstance(gold, Words) or isinstance(answer, Words)


def _head(value: Value) -> Value:
    return value.head if isinstance(value, Quantity) else value


def _said(value: Value) -> str:
    return " ".join(value.unit.casefold().split()) if isinstance(value, Quantity) else ""


def _same(gold: Value, answer: Value, scale: Scale, by: Comparison, is_rounded: bool) -> Verdict:
    if not is_rounded:
        gold, answer = _without_places(gold), _without_places(answer)
    return by.same(gold, answer if scale == _ONE else _scaled(answer, scale))


def _without_places(value: Value) -> Value:
    return Number(value.value) if isinstance(value, Number) else value


def _scaled(value: Value, scale: Scale) -> Value:
    if isinstance(value, Number) and isinstance(scale, Number):
        return Number(value.value * scale.value, value.places)
    if not isinstance(value, Number | Expression) or not (value.tree and scale.tree):
        return Expression(None, "")
    return Expression.of(Node("*", (scale.tree, value.tree)))


def _measure(value: Value, question: Question, *, is_answer: bool = False) -> Measure | bool | None:
    """What its unit measures, None without one; False where words change the value."""
    if not isinstance(value, Quantity):
        return None
    unit = value.unit.replace("°", "degree")
    if (measure := measure_of(unit)) is not None:
        return measure
    if _HAN.fullmatch(unit):
        return THINGS if _COUNTERS.fullmatch(unit) else False
    kept = _PLURAL.sub(lambda match: "" if question.counts(match[0]) else match[0], value.unit)
    if _CHANGES_VALUE.search(kept) or not re.fullmatch(r"[A-Za-z'’ ./-]+", value.unit):
        return False
    return _of_words(value.unit.replace(".", "").split(), value.is_bare and is_answer, question)


def _of_words(words: list[str], is_bare: bool, question: Question) -> Measure | bool:
    """A unit beside other words, or things; unknown if the problem has none of the words."""
    cuts = [(0, end) for end in range(len(words), 0, -1)]
    cuts += [(begin, len(words)) for begin in range(1, len(words))]
    found = ((measure_of(" ".join(words[a:b])), words[:a] + words[b:]) for a, b in cuts)
    unit, rest = next(((unit, rest) for unit, rest in found if unit), (None, words))
    rest = [word for word in rest if word not in _SAYS_NOTHING]
    if unit:
        return unit if all(map(question.counts, rest)) or not question.text else _UNKNOWN
    if is_bare and not all(map(question.counts, rest)):
        return False
    return THINGS if not (question.text and rest) or any(map(question.counts, rest)) else _UNKNOWN


def _factors(gold: Measure | None, answer: Measure | None, question: Question) -> Iterator[Scale]:
    """By what the answer's number may be multiplied before it is compared with the gold's."""
    asked = (
        _unit_of(question.text[-MAX_CHARS:])
        if gold is None and answer not in (None, PERCENT, DEGREE)
        else None
    )
    if asked and answer and not _shares(asked, answer):
        gold = asked
    if gold is None or answer is None or gold.is_any or answer.is_any:
        yield from _beside_none(gold, answer, question)
    elif gold.dimension == answer.dimension:
        yield Number(answer.size / gold.size)
    elif {gold, answer} <= {THINGS, _UNKNOWN}:
        yield _ONE
    elif {gold, answer} == {DEGREE, RADIAN}:
        yield _DEGREES_OF_RADIAN if gold == DEGREE else _HALF_TURN


@lru_cache(1024)
def _unit_of(problem: str) -> Measure | None:
    """The unit that the answer is asked in, where only one is named."""
    if len(_ASKS.findall(problem)) != 1:
        return None
    found = {measure_of(unit.lower()) for unit in _UNIT_ASKED.findall(problem)} - {None}
    return found.pop() if len(found) == 1 else None


def _shares(asked: Measure, answer: Measure) -> bool:
    """Whether an answer says more than was asked: dollars per day, if dollars are."""
    bases = {base for base, _ in answer.dimension}
    is_more = bases > {base for base, _ in asked.dimension}
    return is_more or answer.is_any or answer in (THINGS, _UNKNOWN)


def _beside_none(
    gold: Measure | None, answer: Measure | None, question: Question
) -> Iterator[Scale]:
    """A gold percentage takes its number for itself, and degrees may be radians left out."""
    if gold == PERCENT:
        yield from (_ONE, _HUNDRED)
    elif answer == PERCENT:
        if question.asks_percent:
            yield _ONE
        yield _HUNDREDTH
    else:
        yield _ONE
        if DEGREE in (gold, answer):
            yield _DEGREES_OF_RADIAN if gold == DEGREE else _HALF_TURN
