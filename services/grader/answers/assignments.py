"""Values of several names, ``x=1, y=2``, as the tuple that they are."""

from __future__ import annotations

import re
from itertools import permutations

from services.grader.answers.asking import Question
from services.grader.answers.shapes import OR, Kind, Shape, shape_of

_NAME = r"(?:[a-zA-Z]|\\[a-z]+)(?:_(?:\w|\{\w+\}))?"
_ASSIGNMENT = re.compile(rf"({_NAME}) ?=([^=<>]+)")
_NAMES = re.compile(rf"\( ?{_NAME}(?: ?, ?{_NAME})+ ?\)")
_POINT = re.compile(r"[A-Z] ?(\(.*\))")
_MAX_NAMES = 6
_MAX_LOOKED_FOR = 3


def as_tuples(
    gold: Shape, answer: Shape, texts: tuple[str, str], question: Question
) -> tuple[Shape, Shape]:
    """Two answers with their names in one order, if one of them is a tuple or an open interval."""
    gold, answer = _assigned(gold), _assigned(answer)
    if not (is_tuple(gold) or is_tuple(answer)):
        return gold, answer
    if is_tuple(gold):
        answer = _without_name(answer)
    return _as_tuple(gold, texts[0], question), _as_tuple(answer, texts[1], question)


def is_tuple(shape: Shape) -> bool:
    """Whether this is a tuple, or an open interval."""
    return (shape.kind, shape.marks) == (Kind.TUPLE, "()")


def _assigned(shape: Shape) -> Shape:
    """``(y,x) = (1,2)`` as the list of its assignments; any other answer as it is."""
    if shape.marks != "=" or len(shape.parts) != 2 or not _NAMES.fullmatch(shape.parts[0]):
        return shape
    names, values = (shape_of(side) for side in shape.parts)
    if not (names and values and is_tuple(values) and len(names.parts) == len(values.parts)):
        return shape
    pairs = zip(names.parts, values.parts, strict=True)
    return Shape(Kind.SET, tuple(f"{name}={value}" for name, value in pairs))


def _without_name(shape: Shape) -> Shape:
    """``P(3,4)`` is a point with its name."""
    match = _POINT.fullmatch(shape.parts[0]) if shape.kind is Kind.SCALAR else None
    return (match and shape_of(match[1])) or shape


def _as_tuple(shape: Shape, latex: str, question: Question) -> Shape:
    """A list of assignments to different names as a tuple; any other answer as it is."""
    is_short = 1 < len(shape.parts) <= _MAX_NAMES
    if shape.kind is not Kind.SET or not is_short or OR.search(latex):
        return shape
    pairs = [match.groups() for part in shape.parts if (match := _ASSIGNMENT.fullmatch(part))]
    values = {name: value.strip() for name, value in pairs}
    if len(values) != len(shape.parts):
        return shape
    order = _order(list(values), question, in_brackets=latex.startswith("("))
    return Shape(Kind.TUPLE, tuple(values[name] for name in order), "()")


def _order(names: list[str], question: Question, *, in_brackets: bool) -> list[str]:
    """As the problem has them in brackets, else by the alphabet.

    As written with Greek letters, and in brackets if they are no neighbours: (m,b) and (n,k), but
    not (y,x).
    """
    if len(names) <= _MAX_LOOKED_FOR:
        for order in permutations(names):
            if question.mentions(f"({','.join(order)})"):
                return list(order)
    letters = [ord(name[0]) for name in names]
    is_far = max(letters) - min(letters) >= max(len(names), _MAX_LOOKED_FOR)
    is_kept = any("\\" in name for name in names) or (in_brackets and is_far)
    return names if is_kept else sorted(names)
