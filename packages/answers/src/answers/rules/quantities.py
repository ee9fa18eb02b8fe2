"""Quantities: numbers with units, or with words for counted things."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

from answers.comparison import Comparison, Verdict, disjunction
from answers.nodes import Node, integer
from answers.problem import MAX_CHARS, Problem
from answers.scalars import get_tree
from answers.tokens import lexicon
from answers.units import DEGREE, PERCENT, RADIAN, THINGS, Measure, read_unit
from answers.values import Expression, Number, Quantity, Value, Words

# Words after a number that make it another value. A lookahead spares the word in units.
_CHANGES_VALUE = re.compile(
    r"""
    \b (?:
      squared|cubed|factorial|dozen|score|gross|base|below|above|under|(?<!left\ )over|minus|plus
      |negative|half|halves|third|quarter|[b-z]|pi|or|and|to|not?|less|than|least|most|about|mod
      |root|square(?!\ [a-z])|cube(?!\ [a-z])|pair|if|when|twice|double|triple|wrong|false
      |incorrect|never|unless|except|versus|nor|but|instead|is|are|maybe|i\ e
      |one(?!-)|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen|hundred
      |thousand|[a-z]+illion|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|th
      |[a-z]*(?:four|fif|six|seven|eigh|nin|ten|elf|hundred|sand|lion|teen|tie)th
      |lakh|crore|grand(?!\ [a-z])|couple|short(?!s|\ [a-z])|loss|reciprocal|inverse(?!s)
      |remainder|impossible|unknown(?!s)|younger|fewer|lower|another|[ap]\.?m
      |january|february|march|april|may|june|july|august|september|october|november|december
    ) s?\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Of these words the plural may be a counted thing, if the problem has it.
_PLURAL = re.compile(r"\b(?:squares|cubes|pairs|quarters|roots|halves|thirds)\b")
_PLAIN_WORDS = re.compile(r"[A-Za-z'’ ./-]+")
# Words that say nothing about a count.
_FILLERS = lexicon(
    """
    a additional all altogether an apart at away day days deep different each every extra far for
    her high his in left long more now of old on over per remaining tall the their total unique way
    ways wide year years
    """
)
_UNIT_ASKED = re.compile(
    r"""
    (?:how\ many|number\ of|in) \ (
      (?:square\ |cubic\ |sq\ |cu\ )? [a-z]{2,20} (?:\ per\ [a-z]{1,12})?
    ) (?![a-z])
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ASKS = re.compile(r"(?i:\b(?:how|what|which|find|determine|compute|calculate)\b)")
_HAN = re.compile(r"[\u4e00-\u9fff ]+")
_COUNTERS = re.compile("[个人只本元块件条张台辆棵头匹家名位岁种组箱袋瓶盒支枝朵颗粒套]{1,2}")
_UNKNOWN = Measure((("unknown", 1),))  # words that do not occur in the problem

Scale = Number | Expression
_ONE = Number(Fraction(1))
_HUNDREDTH = Number(Fraction(1, 100))
_HUNDRED = Number(Fraction(100))
_RADIANS = (Node("pi"), integer(180))
_RADIANS_PER_DEGREE = Expression.from_tree(Node("fraction", _RADIANS))
_DEGREES_PER_RADIAN = Expression.from_tree(Node("fraction", _RADIANS[::-1]))


def compare_quantities(gold: Value, answer: Value, comparison: Comparison) -> Verdict | None:
    """Units are compared by their measures; a missing unit is the one that is asked for."""
    if not isinstance(gold, Quantity) and not isinstance(answer, Quantity):
        return None
    if not _is_amount(gold) or not _is_amount(answer):
        has_words = isinstance(gold, Words) or isinstance(answer, Words)
        if has_words:
            return Verdict(False, "words")
        return None
    problem = comparison.problem
    measure = _measure(gold, problem)
    other = _measure(answer, problem, is_answer=True)
    head, unit = _split(gold)
    other_head, other_unit = _split(answer)
    if isinstance(measure, bool) or isinstance(other, bool):
        is_same_unit = unit.casefold().split() == other_unit.casefold().split()
        return Verdict(is_same_unit and comparison.are_equal(head, other_head), "words")
    scales = list(_find_scales(measure, other, problem))
    if not scales:
        return Verdict(False, "unit")
    has_percent = PERCENT in (measure, other)
    if measure != other and (has_percent or (measure and other)):
        head = _drop_places(head)
        other_head = _drop_places(other_head)
    scaled_heads = [_multiply(other_head, scale) for scale in scales]
    verdicts = [comparison.compare(head, scaled) for scaled in scaled_heads]
    equal = disjunction([verdict.equal for verdict in verdicts])
    if equal and other is _UNKNOWN:
        return Verdict(None, "words")
    return Verdict(equal, verdicts[0].path if scales == [_ONE] else "unit")


def _is_amount(value: Value) -> bool:
    return isinstance(value, Quantity | Number | Expression)


def _split(value: Value) -> tuple[Value, str]:
    if isinstance(value, Quantity):
        return (value.head, value.unit)
    return (value, "")


def _drop_places(value: Value) -> Value:
    if isinstance(value, Number):
        return Number(value.value)
    return value


def _multiply(value: Value, scale: Scale) -> Value:
    if scale == _ONE:
        return value
    if isinstance(value, Number) and isinstance(scale, Number):
        return Number(value.value * scale.value, value.places)
    tree = get_tree(value)
    if tree is None or scale.tree is None:
        return Expression(None, "")
    return Expression.from_tree(Node("*", (scale.tree, tree)))


def _measure(value: Value, problem: Problem, *, is_answer: bool = False) -> Measure | bool | None:
    """Return the measure of a unit; False for words that equal only themselves; None without."""
    if not isinstance(value, Quantity):
        return None
    unit = value.unit.replace("°", "degree")
    measure = read_unit(unit)
    if measure is not None:
        return measure
    if _HAN.fullmatch(unit):
        if _COUNTERS.fullmatch(unit):
            return THINGS
        return False
    words = _PLURAL.sub(lambda word: word[0] * (not problem.counts(word[0])), value.unit)
    if _CHANGES_VALUE.search(words) or not _PLAIN_WORDS.fullmatch(value.unit):
        return False
    is_bare = value.is_bare and is_answer
    words = value.unit.replace(".", "").split()
    return _measure_words(words, is_bare, problem)


def _measure_words(words: list[str], is_bare: bool, problem: Problem) -> Measure | bool:
    """Return the measure of a unit among words, or of counted things.

    It is unknown if the problem has none of the words.
    """
    unit, words = _find_unit(words)
    words = [word for word in words if word not in _FILLERS]
    are_counted = list(map(problem.counts, words))
    if unit:
        if all(are_counted) or not problem.text:
            return unit
        return _UNKNOWN
    if is_bare and not all(are_counted):
        return False
    says_nothing = not problem.text or not words
    if says_nothing or any(are_counted):
        return THINGS
    return _UNKNOWN


def _find_unit(words: list[str]) -> tuple[Measure | None, list[str]]:
    """Return the longest unit at the beginning or else the end of words, and the other words."""
    spans = [(0, end) for end in range(len(words), 0, -1)]
    spans += [(begin, len(words)) for begin in range(1, len(words))]
    for begin, end in spans:
        unit = read_unit(" ".join(words[begin:end]))
        if unit:
            return unit, words[:begin] + words[end:]
    return None, words


def _find_scales(gold: Measure | None, answer: Measure | None, problem: Problem) -> Iterator[Scale]:
    """Yield the numbers that may convert the answer to the unit of the gold answer."""
    gold = gold or _find_asked_unit(answer, problem)
    angle = _DEGREES_PER_RADIAN if gold == DEGREE else _RADIANS_PER_DEGREE
    if gold and answer and not (gold.is_any or answer.is_any):
        if gold.dimension == answer.dimension:
            yield Number(answer.size / gold.size)
        elif {gold, answer} == {DEGREE, RADIAN}:
            yield angle
        elif {gold, answer} == {THINGS, _UNKNOWN}:
            yield _ONE
    elif gold == PERCENT:  # 12% may be given as 12
        yield from (_ONE, _HUNDRED)
    elif answer == PERCENT:
        yield from (_ONE, _HUNDREDTH) if problem.asks("percent") else (_HUNDREDTH,)
    else:  # a unit missing next to degrees may be radians
        yield from (_ONE, angle) if DEGREE in (gold, answer) else (_ONE,)


def _find_asked_unit(answer: Measure | None, problem: Problem) -> Measure | None:
    """Return the unit asked for, unless the answer says more: dollars per day, not dollars."""
    if answer is None or answer.is_any:
        return None
    if answer in (PERCENT, DEGREE, THINGS, _UNKNOWN):
        return None
    unit = _read_asked_unit(problem.text[-MAX_CHARS:])
    if unit is None:
        return None
    bases = {base for base, _ in answer.dimension}
    asked_bases = {base for base, _ in unit.dimension}
    return None if bases > asked_bases else unit


@lru_cache(1024)
def _read_asked_unit(problem: str) -> Measure | None:
    """Return the unit that the only question of a problem asks for."""
    if len(_ASKS.findall(problem)) != 1:
        return None
    names = _UNIT_ASKED.findall(problem)
    units = {read_unit(name.lower()) for name in names} - {None}
    if len(units) == 1:
        return units.pop()
    return None
