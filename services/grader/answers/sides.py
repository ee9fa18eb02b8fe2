r"""Equations as answers: what a name stands for, and which equations say the same."""

from __future__ import annotations

import re

from services.grader.answers.asking import UNKNOWN, Question
from services.grader.answers.exact import TooHard
from services.grader.answers.formulas import is_number, read_formula
from services.grader.answers.polynomials import Formula
from services.grader.answers.quantities import split_quantity
from services.grader.answers.shapes import OF_SETS, Kind, Shape, shape_of
from services.grader.latex import squeezed

_INDEX = re.compile(
    r"_(?:\w|\{[^{}]*\}|\{\\text ?\{[^{}]*\} ?\})|(?<=[a-zA-Z])\([^()]*\)"
    r"|\\(?:text|overline|angle) ?"
)
_NAME = re.compile(
    r"(?!\s*-)(?!.*\b(?:not|no|never|wrong|false|incorrect|error|unlike)\b)(?=.*[a-zA-Z])"
    r"(?:[a-zA-Z{}'+*(), -]|\\(?:max|min|Pr|vec|hat|bar|(?:triangle|alpha|beta|gamma|delta|epsilon"
    r"|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|omega|Delta"
    r"|Sigma|Omega|ell)(?![a-zA-Z])))+"
)
_SIZE = re.compile(r"\| ?[A-Z] ?\||\[ ?[A-Z]{3,6} ?\]")  # of a set, of a figure
_EXPECTED = re.compile(r"(?:E|\\mathbb ?\{ ?E ?\}) ?[\[(] ?[A-Za-z] ?[\])]")
_COMMON = re.compile(r"\\(?:gcd|lcm) ?\([^()]*\)")
_BOUND = re.compile(r"(?P<head>[a-zA-Z][(_]\{?)(?P<letter>[a-zA-Z])(?P<tail>[)}]?)")
_LETTER = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]")
_LINE = re.compile(r"[a-zA-Z] ?[+-] ?([^+-]+)")


def links(
    shape: Shape, text: str, question: Question = UNKNOWN
) -> tuple[tuple[str, ...] | None, str | None]:
    """What stands behind the name in ``x = 4/2 = 2``, and the name; without a name, None.

    An answer that is no relation is one link, an equation that is not solved has None. What the
    problem asks for is a name of it, be it ``\\sin x``.
    """
    if shape.kind is not Kind.RELATION:
        return (text,), None
    if set(shape.marks.split()) != {"="}:
        return None, None
    sides = shape.parts if _is_name(shape.parts[0], question) else shape.parts[::-1]
    if _is_name(sides[0], question):
        return sides[1:], squeezed(sides[0])
    heads = (split_quantity(side, question=question).head for side in shape.parts)
    return (shape.parts, None) if all(map(is_number, heads)) else (None, None)


def with_letter_of(name: str | None, other: str | None, links: tuple[str, ...]) -> tuple[str, ...]:
    """The links of ``f(n) = 2n`` as those of ``f(x)``, if they have an n and no x."""
    bound, own = _BOUND.fullmatch(name or ""), _BOUND.fullmatch(other or "")
    found = set(_LETTER.findall("".join(links)))
    if not (bound and own) or r"\text" in found:
        return links
    letter, old = bound["letter"], own["letter"]
    if name != own.expand(rf"\g<head>{letter}\g<tail>") or letter in found or old not in found:
        return links
    return tuple(_LETTER.sub(lambda m: letter if m[0] == old else m[0], link) for link in links)


def is_line(shape: Shape) -> bool:
    """``x + 1 = 0`` says no less than ``x = -1``; any other equation is not solved."""
    sides = [side for side in shape.parts if side != "0"]
    match = _LINE.fullmatch(sides[0]) if len(sides) == 1 else None
    return shape.marks == "=" and match is not None and is_number(match[1])


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


def are_regions(gold: Shape, answer: Shape, both: tuple[str, str]) -> bool:
    """An inequality beside what is not written as one, such as ``|x| > 1`` beside intervals."""
    relation, other = (gold, answer) if gold.kind is Kind.RELATION else (answer, gold)
    is_region = other.kind in (Kind.UNION, Kind.TUPLE) or OF_SETS.search("".join(both))
    return bool(is_region) and "=" not in relation.marks.split()


def sides_are_expressions(*shapes: Shape) -> bool:
    """Whether no side is a list, a set or the like."""
    sides = (shape_of(side) for shape in shapes for side in shape.parts)
    return all(side is not None and side.kind is Kind.SCALAR for side in sides)


def _is_name(side: str, question: Question) -> bool:
    r"""``x``, ``f(3)``, ``a_1``, ``\angle ABC`` or ``m+n``: no digits but in an index."""
    if is_number(side):
        return False
    if _SIZE.fullmatch(side):
        return question.names(side)
    if _EXPECTED.fullmatch(side):
        return not question.text or any(map(question.counts, ("expected", "expectation", "mean")))
    if _COMMON.fullmatch(side) and not question.text:
        return True
    bare = _INDEX.sub("", side)
    if _NAME.fullmatch(bare) and (question.names(bare) or question.mentions(side)):
        return True
    return question.asks_for(side)


def _difference(shape: Shape) -> Formula:
    if len(shape.parts) != 2:
        raise TooHard("a chain of relations")
    left, right = (read_formula(side) for side in shape.parts)
    return left + -right
