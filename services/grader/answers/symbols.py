r"""Answers that only name a thing: ``\angle ABC``, ``\overline{AB}``, ``\mathbb{Z}``."""

from __future__ import annotations

import re

_SYMBOL = re.compile(
    r"\\(?P<kind>angle|triangle|overline|overrightarrow|overleftrightarrow|mathbb|mathcal)"
    r"(?![a-zA-Z]) ?(?:\{ ?(?P<braced>[A-Z]{1,6}) ?\}|(?P<bare>[A-Z]{1,6}))"
)
_HAS_TWO_ENDS = frozenset({"angle", "overline", "overleftrightarrow"})
_REALS = ("mathbb", "R")


def same_symbol(gold: str, answer: str) -> bool | None:
    r"""Whether both name the same; None if the gold is no name.

    ``\angle ABC`` is ``\angle CBA`` and ``\angle B``, and ``\overline{AB}`` is AB.
    """
    expected = _symbol(gold)
    if expected is None or expected == _REALS:
        return None
    kind, name = expected
    found, other = _symbol(answer) or (kind, answer)
    if found != kind:
        return False
    if kind == "angle":
        name, other = _at_vertex(name, other), _at_vertex(other, name)
    return name == other or (kind in _HAS_TWO_ENDS and name == other[::-1])


def _at_vertex(angle: str, other: str) -> str:
    """An angle by its middle letter, if the other one is so called."""
    return angle[1] if len(angle) == 3 and len(other) == 1 else angle


def _symbol(latex: str) -> tuple[str, str] | None:
    match = _SYMBOL.fullmatch(latex)
    return match and (match["kind"], match["braced"] or match["bare"])
