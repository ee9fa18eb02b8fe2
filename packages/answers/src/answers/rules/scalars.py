"""Numbers, expressions, words and choices."""

from __future__ import annotations

from decimal import Decimal

from answers.comparison import Comparison, Verdict
from answers.nodes import are_different, serialize
from answers.regions import INFINITY, MINUS_INFINITY
from answers.values import Choice, Expression, Number, Value, Words


def compare_numbers(gold: Value, answer: Value, comparison: Comparison) -> Verdict | None:
    """Numbers are equal, or one is the other rounded to at least six decimals."""
    if not (isinstance(gold, Number) and isinstance(answer, Number)):
        return None
    if gold.value == answer.value:
        return Verdict(True, "number")
    if gold.places is None and answer.places is None:
        return Verdict(False, "number")
    is_answer_rounded = gold.places is None or (
        answer.places is not None and answer.places < gold.places
    )
    rounded = answer if is_answer_rounded else gold
    exact = gold if is_answer_rounded else answer
    value = Decimal(exact.value.numerator) / exact.value.denominator
    return Verdict(rounded.rounds(value), "number")


def compare_expressions(gold: Value, answer: Value, comparison: Comparison) -> Verdict:
    """The last rule: expressions have one tree, are far apart, or are left to algebra."""
    if not isinstance(gold, Number | Expression):
        return Verdict(False, "kind")
    if not isinstance(answer, Number | Expression):
        return Verdict(False, "kind")
    if gold.tree is None or answer.tree is None:
        return comparison.ask_algebra(gold, answer)
    if serialize(gold.tree) == serialize(answer.tree):
        return Verdict(True, "expression")
    is_decimal = _is_decimal(gold) or _is_decimal(answer)
    is_far = not is_decimal and are_different(gold.tree, answer.tree)
    if is_far or _is_infinite(gold) or _is_infinite(answer):
        return Verdict(False, "expression")
    return comparison.ask_algebra(gold, answer)


def _is_decimal(value: Value) -> bool:
    return isinstance(value, Number) and value.places is not None


def _is_infinite(value: Number | Expression) -> bool:
    return value.tree in (INFINITY.tree, MINUS_INFINITY.tree)


def compare_words(gold: Value, answer: Value, comparison: Comparison) -> Verdict | None:
    """Words are the same; of a numeral, ``204 base 5``, the digits are enough."""
    if not isinstance(gold, Words) and not isinstance(answer, Words):
        return None
    text = _get_letters(gold).casefold()
    answer_text = _get_letters(answer).casefold()
    is_same = text == answer_text != ""
    if isinstance(answer, Number) and answer.places is None:
        is_same = text.startswith(f"{answer.value} base ")
    return Verdict(is_same, "words")


def _get_letters(value: Value) -> str:
    if isinstance(value, Words):
        return value.text
    if isinstance(value, Choice):
        return value.letters
    if isinstance(value, Expression):
        return value.latex
    return ""


def compare_choices(gold: Value, answer: Value, comparison: Comparison) -> Verdict | None:
    """``(B) 12`` is B, and its value counts for a gold answer 12."""
    if not isinstance(gold, Choice):
        value = answer.value if isinstance(answer, Choice) else None
        if value:
            return comparison.compare(gold, value)
        return None
    if isinstance(answer, Choice):
        is_same = answer.letters == gold.letters
        if is_same and gold.value and answer.value:
            return comparison.compare(gold.value, answer.value)
        return Verdict(is_same, "choice")
    is_letter = isinstance(answer, Expression) and answer.latex.upper() == gold.letters
    if is_letter or not gold.value:
        return Verdict(is_letter, "choice")
    return comparison.compare(gold.value, answer)
