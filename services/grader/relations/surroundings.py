"""What stands beside a side, and whether it changes what the side says."""

from __future__ import annotations

from collections.abc import Sequence

from services.grader.answers.units import unit_of
from services.grader.equations import NUMBER_WORDS
from services.grader.relations.tokens import Token


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BEHIND = NUMBER_WORDS - _words("to of base by per power root versus vs than")
_DENIALS = _words(
    """not false contradiction contradicts contradictory impossible extraneous isn't doesn't can't
    isn’t doesn’t can’t cannot wrong incorrect never absurd fails"""
)
_LINKS = _words(
    """and or so then thus hence therefore since because but that is have has get gives where
    with if when for while also as means yields are we"""
)


def is_denial(token: Token) -> bool:
    """Whether a word may say that what stands before it is not true."""
    is_prose = token.kind in {"word", "words"}
    return is_prose and not _DENIALS.isdisjoint(token.text.lower().split())


def is_unclear(last: Token | None, token: Token, after: Token) -> bool:
    """A decimal comma, a ratio, a time of day: ``3,5`` ``2:30`` ``3 : 4``."""
    if token.text not in {",", ":"} or after.kind != "number":
        return False
    between = last is not None and last.kind == "number"
    return between and (not after.gap or (token.text == ":" and (token.gap or token.in_math)))


def is_in_brackets(side: Sequence[Token]) -> bool:
    """Whether it may be the argument of something before it: ``#(9) = 9^2``."""
    depth = 0
    for place, token in enumerate(side):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            return place > 0 and place == len(side) - 1
    return False


def begins_cleanly(before: Token, after_operand: bool, side: Sequence[Token]) -> bool:
    """Whether a side is all that stands there, for what is ``before`` it."""
    if not side or before.kind not in {"word", "words"}:
        return True
    *_, last = before.text.lower().split() or [""]
    if last in NUMBER_WORDS:
        return False
    begins = side[0]
    if begins.kind == "operator" and begins.text != "√":
        touches = len(side) > 1 and not side[1].gap
        return before.kind == "word" and begins.text == "-" and begins.gap and touches
    return before.kind == "word" or not after_operand or last in _LINKS


def ends_cleanly(end: Token) -> bool:
    """Whether the word behind a side leaves its number as it is, unlike "times"."""
    first, *_ = end.text.lower().split() or [""]
    if end.kind not in {"word", "words"}:
        return end.kind != "unknown"
    return first not in _BEHIND


def is_measured(end: Token) -> bool:
    """Whether a unit, or a word that may be one, stands behind the last side."""
    words = " ".join(end.text.lower().split()).strip(".,;: ")
    if end.kind == "words":
        return bool(words) and words.split()[0] not in _LINKS
    strange = words == "square" or unit_of(words, None) is not None
    return end.kind == "word" and (strange or not end.gap)
