r"""Equations as answers: what a name stands for, and which equations say the same."""

from __future__ import annotations

import re

from services.grader.answers.exact import TooHard
from services.grader.answers.formulas import formula_or_none, read_formula
from services.grader.answers.polynomials import Formula
from services.grader.answers.shapes import Kind, Shape
from services.grader.latex import squeezed

_INDEX = re.compile(r"_(?:\w|\{[^{}]*\})|(?<=[a-zA-Z])\([^()]*\)|\\(?:text|overline|angle) ?")
_NAME = re.compile(
    r"(?!\s*-)(?!.*\b(?:not|no|never|wrong|unlike)\b)(?!.*\\(?:sqrt|ln|log|lg|cdot|times)(?![a-zA-Z]))"
    r"(?=.*[a-zA-Z])[a-zA-Z\\{}'+*(), -]+"
)


def links(shape: Shape, text: str) -> tuple[tuple[str, ...] | None, str | None]:
    """What stands behind the name in ``x = 4/2 = 2``, and the name; without a name, None.

    An answer that is no relation is one link, an equation that is not solved has None.
    """
    if shape.kind is not Kind.RELATION:
        return (text,), None
    if set(shape.marks.split()) != {"="}:
        return None, None
    sides = shape.parts if _is_name(shape.parts[0]) else shape.parts[::-1]
    if _is_name(sides[0]):
        return sides[1:], squeezed(sides[0])
    return (shape.parts, None) if all(is_number(side) for side in shape.parts) else (None, None)


def is_number(side: str) -> bool:
    """Whether this is a formula without letters."""
    formula = formula_or_none(side)
    return formula is not None and not formula.letters


def same_relation(gold: Shape, answer: Shape) -> bool:
    """Whether two relations with two sides each are multiples of each other.

    Raises:
        TooHard: if their sides are no formulas that can be read here.
    """
    if gold.marks != answer.marks:
        return False
    difference = _difference(gold)
    if difference.number is not None:
        return False  # it says nothing, or what is impossible
    sign = _difference(answer).is_multiple_of(difference)
    return sign != 0 if gold.marks in ("=", r"\ne") else sign == 1


def _is_name(side: str) -> bool:
    r"""``x``, ``f(3)``, ``a_1``, ``\angle ABC`` or ``m+n``: no digits but in an index."""
    return _NAME.fullmatch(_INDEX.sub("", side)) is not None and not is_number(side)


def _difference(shape: Shape) -> Formula:
    if len(shape.parts) != 2:
        raise TooHard("a chain of relations")
    left, right = (read_formula(side) for side in shape.parts)
    return left + -right
