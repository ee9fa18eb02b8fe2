r"""Inequalities in one letter: ``1 < x \le 2`` is an interval, several may share one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from services.grader.answers.formulas import SMALL_GREEK, formula_or_none

NAME = rf"(?:[a-zA-Z]|\\(?:{'|'.join(SMALL_GREEK)}|ell)(?![a-zA-Z]))(?:_(?:\w|\{{\w+\}}))?"
VARIABLE = re.compile(NAME)
_MINUS_INFINITY, _INFINITY = r"-\infty", r"\infty"
_BRACKETS = {"<": "()", r"\le": "[]"}


@dataclass(frozen=True)
class Interval:
    """What a letter may be: between two ends, as they are written, with their brackets."""

    letter: str
    ends: tuple[str, str]
    brackets: str

    @property
    def with_letter(self) -> str:
        """The inequality, spelled so that it is not taken for an interval of any letter."""
        below, above = ("<" if bracket in "()" else r"\le" for bracket in self.brackets)
        left = "" if self.ends[0] == _MINUS_INFINITY else f"{self.ends[0]} {below} "
        right = "" if self.ends[1] == _INFINITY else f" {above} {self.ends[1]}"
        return f"{left}({self.letter}){right}"


def interval_of(sides: tuple[str, ...], signs: tuple[str, ...]) -> Interval | None:
    r"""The interval that ``<`` and ``\le`` leave to a letter; None if there is none."""
    if not all(sign in _BRACKETS for sign in signs) or len(signs) > 2:
        return None
    brackets = [_BRACKETS[sign] for sign in signs]
    if len(signs) == 2:
        left, letter, right = sides
        opens, closes = brackets[0][0], brackets[1][1]
    elif VARIABLE.fullmatch(sides[0]):
        left, (letter, right), opens, closes = _MINUS_INFINITY, sides, "(", brackets[0][1]
    else:
        (left, letter), right, opens, closes = sides, _INFINITY, brackets[0][0], ")"
    if not VARIABLE.fullmatch(letter) or letter in left + right:
        return None
    return Interval(letter, (left, right), opens + closes)


def intersection(intervals: Sequence[Interval]) -> Interval | None:
    """What several of one letter have in common; None if that is empty or cannot be told."""
    lower = _tightest([(i.ends[0], i.brackets[0]) for i in intervals], sign=1)
    upper = _tightest([(i.ends[1], i.brackets[1]) for i in intervals], sign=-1)
    if lower is None or upper is None:
        return None
    least, most = _value(lower[0]), _value(upper[0])
    if least is not None and most is not None and least >= most:
        is_point = least == most and (lower[1], upper[1]) == ("[", "]")
        return Interval(intervals[0].letter, (lower[0], upper[0]), "[]") if is_point else None
    return Interval(intervals[0].letter, (lower[0], upper[0]), lower[1] + upper[1])


def _tightest(ends: list[tuple[str, str]], *, sign: int) -> tuple[str, str] | None:
    """The largest of lower ends (``sign`` 1), the smallest of upper ones (-1)."""
    finite = sorted({end for end in ends if not end[0].endswith(_INFINITY)})
    if len(finite) < 2:
        return finite[0] if finite else ends[0]
    ranked = [(_value(end), bracket in "()", (end, bracket)) for end, bracket in finite]
    if any(value is None for value, _, _ in ranked):
        return None
    return max(ranked, key=lambda each: (sign * (each[0] or Decimal(0)), each[1]))[2]


def _value(end: str) -> Decimal | None:
    if end.endswith(_INFINITY):
        return Decimal("-Infinity" if end == _MINUS_INFINITY else "Infinity")
    formula = formula_or_none(end)
    return formula.approximation if formula else None
