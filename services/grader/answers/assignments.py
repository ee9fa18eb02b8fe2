"""Values of several names, ``x=1, y=2``, as the tuple that they are."""

from __future__ import annotations

import re
from itertools import permutations

from services.grader.answers.asking import Question
from services.grader.answers.shapes import Kind, Shape

_ASSIGNMENT = re.compile(r"((?:[a-zA-Z]|\\[a-z]+)(?:_(?:\w|\{\w+\}))?) ?=([^=<>]+)")
_OR = re.compile(r"(?<![a-zA-Z\\])or(?![a-zA-Z])")
_MAX_NAMES = 6
_MAX_LOOKED_FOR = 3


def is_tuple(shape: Shape) -> bool:
    """Whether this is a tuple, or an open interval."""
    return (shape.kind, shape.marks) == (Kind.TUPLE, "()")


def as_tuple(shape: Shape, latex: str, question: Question) -> Shape:
    """A list of assignments to different names as a tuple; any other answer as it is."""
    is_short = 1 < len(shape.parts) <= _MAX_NAMES
    if shape.kind is not Kind.SET or not is_short or _OR.search(latex):
        return shape
    pairs = [match.groups() for part in shape.parts if (match := _ASSIGNMENT.fullmatch(part))]
    values = {name: value.strip() for name, value in pairs}
    if len(values) != len(shape.parts):
        return shape
    order = _order(list(values), question)
    return Shape(Kind.TUPLE, tuple(values[name] for name in order), "()")


def _order(names: list[str], question: Question) -> list[str]:
    """As the problem has them in brackets, else by the alphabet; with Greek letters, as written."""
    if len(names) <= _MAX_LOOKED_FOR:
        for order in permutations(names):
            if question.mentions(f"({','.join(order)})"):
                return list(order)
    return names if any("\\" in name for name in names) else sorted(names)
