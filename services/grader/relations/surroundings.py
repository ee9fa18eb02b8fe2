"""What stands beside a side, and whether it changes what the side says."""

from __future__ import annotations

from collections.abc import Sequence

from services.grader.answers.units import unit_of
from services.grader.relations.tokens import Token, vocabulary

# Words that make something else of the number behind, or before, them.
_NUMBER_WORDS = vocabulary(
    """choose mod modulo divided times plus minus over to of percent dozen hundred thousand
    million billion factorial squared cubed base by per power less more than point remainder rem
    half third quarter double twice triple root not no without except versus vs"""
)
_BEHIND = _NUMBER_WORDS - vocabulary("to of base by per power root versus vs than")
_DENIALS = vocabulary(
    """not false contradiction contradicts contradictory impossible extraneous isn't doesn't can't
    isn’t doesn’t can’t cannot wrong incorrect never absurd fails"""
)
_OF_NOTHING = vocabulary("solution solutions real such value values")  # that there is no ...
_OPERANDS = {"number", "repeating", "name", "command", "open", "function"}
# Where numbers are written, or go on, in another way: 5 + 5 = 12 base 8, 8 + 5 = 1 PM.
_SYSTEMS = vocabulary(
    """base binary ternary octal decimal hex hexadecimal modulo mod am pm o'clock o’clock"""
)
_SUPPOSE = vocabulary("if whether suppose supposing assume assuming")
_LINKS = vocabulary(
    """and or so then thus hence therefore since because but that is have has get gives where
    with if when for while also as means yields are we"""
)


def is_denial(token: Token, after: Token) -> bool:
    """Whether a word may say that what stands before it is not true, unlike ``7, not 8``."""
    said = token.text.lower().split() if token.kind in {"word", "words"} else []
    if said == ["no"]:
        return after.kind == "word" and after.text in _OF_NOTHING
    of_what_follows = said[-1:] == ["not"] and after.kind in _OPERANDS
    return not _DENIALS.isdisjoint(said[:-1] if of_what_follows else said)


def is_unclear(last: Token | None, token: Token, after: Token) -> bool:
    """A ratio or a time of day: ``2:30`` ``3 : 4``."""
    if token.text != ":" or after.kind != "number" or last is None or last.kind != "number":
        return False
    return not after.gap or token.gap or token.in_math


def may_be_argument(side: Sequence[Token], before: Token) -> bool:
    """Whether a side in brackets may be the argument of what is ``before``: ``#(9) = 9^2``."""
    separates = before.kind in {"comma", "open", "arrow"} or before.text in {".", ";", ":"}
    return bool(side) and not side[0].gap and not separates and _is_in_brackets(side)


def may_be_name(side: Sequence[Token], before: Token) -> bool:
    """Whether a number only says which: ``Week 2 = 35 + 35``."""
    is_number = len(side) == 1 and side[0].kind == "number"
    return is_number and before.kind == "word" and before.text not in _LINKS


def is_supposed(before: Token) -> bool:
    """Whether what follows is not said to be true: ``if 1 + 1 = 3``."""
    said = before.text.lower().split() if before.kind in {"word", "words"} else []
    return not _SUPPOSE.isdisjoint(said[-1:])


def _is_in_brackets(side: Sequence[Token]) -> bool:
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
    if last in _NUMBER_WORDS:
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


def unit_behind(end: Token, after: Token, second: Token) -> str | None:
    """The unit behind the last side, and its power; "in" rather leads to a place or a base."""
    words = _said(end)
    power = second.text if after.text == "^" and second.text in {"2", "3"} else None
    is_simple = end.kind in {"word", "words"} and words != "in" and "per" not in words.split()
    return unit_of(words, power) if is_simple and "/" not in words else None


def may_go_on(end: Token, after: Token) -> bool:
    """Whether the rest of a mixed number may stand behind the last side: ``5 and 2/3``."""
    return end.text == "and" and (after.kind == "number" or after.text == "(")


def is_only_part(end: Token, after: Token, third: Token) -> bool:
    """Whether a smaller unit follows: ``1`` hour ``45`` minutes, ``2`` hours and ``30`` minutes."""
    follows = third if after.text == "and" else after
    return unit_behind(end, after, third) is not None and follows.kind == "number"


def may_mean_more(end: Token, after: Token) -> bool:
    """Whether a word that may change the number stands behind the last side."""
    words = _said(end)
    if end.kind == "word" and words == "in":  # total, or binary, or Z_5
        return after.kind != "word" or after.text in _SYSTEMS
    if end.kind not in {"word", "words"} or not words or unit_behind(end, after, after):
        return False
    if end.kind == "words":
        return words.split()[0] not in _LINKS
    return words == "square" or words in _SYSTEMS or not end.gap


def _said(end: Token) -> str:
    return " ".join(end.text.lower().split()).strip(".,;: ")
