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
    r"""Whether both name the same; None if the gold is no name, or has another name for it.

    ``\angle ABC`` is ``\angle CBA``, and may be ``\angle B``.
    """
    expected = _symbol(gold)
    if expected is None or expected == _REALS:
        return None
    found = _symbol(answer)
    if found is None or found[0] != expected[0]:
        return False
    (kind, name), (_, other) = expected, found
    if kind == "angle" and len(name) != len(other):
        return None
    return name == other or (kind in _HAS_TWO_ENDS and name == other[::-1])


def _symbol(latex: str) -> tuple[str, str] | None:
    match = _SYMBOL.fullmatch(latex)
    return match and (match["kind"], match["braced"] or match["bare"])
