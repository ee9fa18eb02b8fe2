"""Whether two answers are the same: read, and put to the rules one after the other.

Most pairs are settled here, in microseconds, where others wait: what takes too long is left
unknown. In the pool the same rules have computer algebra for what they cannot settle.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from services.grader.answers.question import Question
from services.grader.answers.read import read_answer
from services.grader.answers.rules import RULES, Algebra, Comparison, OutOfWork, Verdict
from services.grader.answers.values import (
    Choice,
    Expression,
    Number,
    Quantity,
    Set,
    Value,
)

_SCIENTIFIC = re.compile(r"-?[0-9]{1,20}[eE]-[0-9]{1,2}")  # or 2e minus 3
_HUNDREDS = re.compile(r"[1-9][0-9]{2}(?:,[1-9][0-9]{2})+")  # but not 1,200 or 100,000
_BARE_UNIT = re.compile(r"(.*[0-9}]) ([a-zA-Z]{1,3}(?:/[a-zA-Z]{1,3})?(?:\^\{?[23]\}?)?)")
_SAYS_NOTHING = re.compile(r"\\(?:left|right)(?![a-zA-Z.])| (?![0-9a-zA-Z])|(?<=[^0-9a-zA-Z\\,]) ")


def compare(gold: str, answer: str, problem: str = "") -> Verdict:
    """Compare two answers as they were written, without computer algebra.

    If the problem is known, what it asks for may be named, and 12% may be 12.
    """
    if verdict := _at_sight(gold, answer):
        return verdict
    try:
        return compare_with(None, gold, answer, problem)
    except OutOfWork:
        return Verdict(None, "work")


def compare_with(algebra: Algebra | None, gold: str, answer: str, problem: str = "") -> Verdict:
    """The same with computer algebra for what no rule settles, and however many parts they have."""
    if verdict := _at_sight(gold, answer):
        return verdict
    if _squeezed(gold) == _squeezed(answer):
        return Verdict(True, "exact")
    comparison, expected = Comparison(Question(problem), RULES, algebra), read_answer(gold)
    found = read_answer(answer, is_chosen=isinstance(expected, Choice))
    if isinstance(expected, Number) and _SCIENTIFIC.fullmatch(answer):
        found = Number(Fraction(answer))
    expected, found = _with_unit(gold, expected, found), _with_unit(answer, found, expected)
    verdict = comparison.same(expected, found)
    if verdict.equal is False and ("," in gold or "," in answer):
        return _as_lists(comparison, gold, answer) or verdict
    return verdict


def _at_sight(gold: str, answer: str) -> Verdict | None:
    """Most answers are integers."""
    if gold == answer:
        return Verdict(True, "exact")
    if gold.isdecimal() and answer.isdecimal() and (gold + answer).isascii():
        return Verdict(gold.lstrip("0") == answer.lstrip("0"), "number")
    return None


@lru_cache(4096)
def _squeezed(text: str) -> str:
    """Without what is around or between marks and says nothing: equal texts are equal answers."""
    return _SAYS_NOTHING.sub("", text).replace(r"\dfrac", r"\frac")


def _with_unit(text: str, value: Value, other: Value) -> Value:
    """``9 m/s`` is a speed beside another one."""
    if not (isinstance(value, Expression) and isinstance(other, Quantity)):
        return value
    bare = _BARE_UNIT.fullmatch(text)
    return read_answer(rf"{bare[1]}\text{{ {bare[2]}}}") if bare else value


def _as_lists(comparison: Comparison, gold: str, answer: str) -> Verdict | None:
    """Beside a list, 100,200 may be one."""
    expected, found = read_answer(gold), read_answer(answer)
    if isinstance(expected, Set):
        split = read_answer(answer, is_list=True)
        return comparison.same(expected, split) if split != found else None
    split = read_answer(gold, is_list=True)
    is_listed = isinstance(found, Set) and found.joint and isinstance(split, Set)
    return comparison.same(split, found) if is_listed and _HUNDREDS.fullmatch(gold) else None
