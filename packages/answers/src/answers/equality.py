"""Whether two answers are equal: they are read, and put to the rules one after the other.

Rules decide most pairs in microseconds. They leave open what takes too long; worker processes apply
the same rules with computer algebra.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from answers.comparison import Algebra, Comparison, OutOfWork, Verdict
from answers.problem import Problem
from answers.reading import read_answer
from answers.rules import RULES
from answers.rules.relations import has_tree
from answers.scalars import read_scalar
from answers.tokens import tokenize
from answers.values import Choice, Expression, Number, Quantity, Set, Value

_MAX_SYMBOLS = 3
_SCIENTIFIC = re.compile(r"-?[0-9]{1,20}[eE]-[0-9]{1,2}")  # 2e-3, which may be 2e minus 3
_HUNDREDS = re.compile(r"[1-9][0-9]{2}(?:,[1-9][0-9]{2})+")  # but not 1,200 or 100,000
_BARE_UNIT = re.compile(r"(.*[0-9}]) ([a-zA-Z]{1,3}(?:/[a-zA-Z]{1,3})?(?:\^\{?[23]\}?)?)")
# Marks and spaces that mean nothing.
_MEANINGLESS = re.compile(r"\\(?:left|right)(?![a-zA-Z.])| (?![0-9a-zA-Z])|(?<=[^0-9a-zA-Z\\,]) ")


def compare(gold: str, answer: str, problem: str = "") -> Verdict:
    """Compare two answers by rules alone.

    The problem tells which names an answer may have, and whether 12% may be 12.
    """
    try:
        return compare_with_algebra(None, gold, answer, problem)
    except OutOfWork:
        return Verdict(None, "work")


def compare_with_algebra(
    algebra: Algebra | None, gold: str, answer: str, problem: str = ""
) -> Verdict:
    """Compare two answers, however many parts they have; algebra decides where no rule does."""
    if verdict := _compare_texts(gold, answer):
        return verdict
    comparison = Comparison(Problem(problem), algebra, RULES)
    expected = read_answer(gold)
    value = read_answer(answer, is_chosen=isinstance(expected, Choice))
    if isinstance(expected, Number) and _SCIENTIFIC.fullmatch(answer):
        value = Number(Fraction(answer))
    elif isinstance(value, Number) and _SCIENTIFIC.fullmatch(gold):
        expected = Number(Fraction(gold))
    product = _read_product(gold, expected, value, comparison.problem)
    value = _read_product(answer, value, expected, Problem())
    expected = _read_bare_unit(gold, product, value)
    value = _read_bare_unit(answer, value, product)
    verdict = comparison.compare(expected, value)
    if verdict.equal is False and ("," in gold or "," in answer):
        return _compare_lists(comparison, gold, answer) or verdict
    return verdict


def _compare_texts(gold: str, answer: str) -> Verdict | None:
    if gold == answer:
        return Verdict(True, "exact")
    digits = gold + answer
    if gold and answer and digits.isdecimal() and digits.isascii():
        is_same = gold.lstrip("0") == answer.lstrip("0")
        return Verdict(is_same, "number")
    if _squeeze(gold) == _squeeze(answer):
        return Verdict(True, "exact")
    return None


@lru_cache(4096)
def _squeeze(text: str) -> str:
    """Remove marks and spaces that mean nothing: equal texts are equal answers."""
    return _MEANINGLESS.sub("", text).replace(r"\dfrac", r"\frac")


def _read_product(text: str, value: Value, other: Value, problem: Problem) -> Value:
    """Read ``3mg`` as a product if the other answer or the problem has m and g."""
    if not isinstance(value, Quantity) or not value.is_bare:
        return value
    symbols = [char for char in value.unit if char.isalpha()]
    if not 1 < len(symbols) <= _MAX_SYMBOLS:
        return value
    letters = {"e"}
    if isinstance(other, Expression):
        letters |= other.letters
    if letters.issuperset(symbols) or all(map(problem.mentions, symbols)):
        product = read_scalar(tuple(tokenize(text)))
        return product if has_tree(product) else value
    return value


def _read_bare_unit(text: str, value: Value, other: Value) -> Value:
    """Read ``9 m/s`` as a speed if the other answer has a unit."""
    if not isinstance(value, Expression) or not isinstance(other, Quantity):
        return value
    match = _BARE_UNIT.fullmatch(text)
    return read_answer(rf"{match[1]}\text{{ {match[2]}}}") if match else value


def _compare_lists(comparison: Comparison, gold: str, answer: str) -> Verdict | None:
    """Read ``100,200`` as a list if the other answer is one."""
    expected = read_answer(gold)
    value = read_answer(answer)
    if isinstance(expected, Set):
        members = read_answer(answer, is_list=True)
        if members != value:
            return comparison.compare(expected, members)
        return None
    if not isinstance(value, Set) or not value.joint:
        return None
    if not _HUNDREDS.fullmatch(gold):
        return None
    members = read_answer(gold, is_list=True)
    if isinstance(members, Set):
        return comparison.compare(members, value)
    return None
