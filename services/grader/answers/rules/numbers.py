"""Numbers, numerals and single expressions: exact, but for decimals that are a correct rounding."""

from __future__ import annotations

from decimal import Decimal

from services.grader.answers.estimates import are_different
from services.grader.answers.nodes import written
from services.grader.answers.values import Expression, Number, Numeral, Relation, Value
from services.grader.answers.verdict import Comparison, Verdict


def numbers(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Equal, or an exact value and its decimals, at least six of them, correctly rounded."""
    if not (isinstance(gold, Number) and isinstance(answer, Number)):
        return None
    if gold.value == answer.value:
        return Verdict(True, "number")
    if gold.places is None and answer.places is None:
        return Verdict(False, "number")
    decimal, exact = sorted((gold, answer), key=_places)
    return Verdict(
        decimal.rounds(Decimal(exact.value.numerator) / exact.value.denominator), "number"
    )


def _places(number: Number) -> int:
    """An exact number has no end of them."""
    return 10**6 if number.places is None else number.places


def numerals(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Numbers in a named base are the same if their digits are: to convert was the question."""
    if isinstance(gold, Numeral) and not isinstance(answer, Relation):
        if isinstance(answer, Number):
            digits = str(answer.value) if answer.places is None else ""
            return Verdict(digits == gold.digits, "numeral")
        return Verdict(gold == answer, "numeral")
    if isinstance(answer, Numeral):
        is_plain = isinstance(gold, Number) and str(gold.value) == answer.digits
        return Verdict(is_plain and answer.base == 10, "numeral")
    return None


def expressions(gold: Value, answer: Value, by: Comparison) -> Verdict:
    """The last rule: the same spelled in two ways, two numbers far apart, or else by algebra.

    Whatever is no single expression is no other's equal.
    """
    if not isinstance(gold, Number | Expression) or not isinstance(answer, Number | Expression):
        return Verdict(False, "kind")
    if "infinity" in (_kind(gold), _kind(answer)):
        is_like = _kind(gold) == _kind(answer) and _is_negative(gold) == _is_negative(answer)
        return Verdict(is_like, "infinity")
    if gold.tree and answer.tree:
        if written(gold.tree) == written(answer.tree):
            return Verdict(True, "expression")
        if are_different(gold.tree, answer.tree) and not _may_be_rounded(gold, answer):
            return Verdict(False, "expression")
    return Verdict(by.by_algebra(gold, answer), "algebra")


def _may_be_rounded(*values: Number | Expression) -> bool:
    return any(isinstance(value, Number) and value.places is not None for value in values)


def _kind(value: Number | Expression) -> str:
    tree = value.tree
    if tree is not None and tree.kind == "negative":
        tree = tree.parts[0]
    return tree.kind if tree else ""


def _is_negative(value: Number | Expression) -> bool:
    return value.tree is not None and value.tree.kind == "negative"
