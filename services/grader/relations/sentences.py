"""What the sentence around a relation says of it: that it is false, asked, rounded, of a base."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from services.grader.relations.surroundings import is_denial
from services.grader.relations.tokens import Token, vocabulary

SOFT = {"edge", "row", "newline"}  # a chain goes on behind these if a relation comes next
END = Token("paragraph", "\n\n")

_MAX_TO_DENIAL = 10  # tokens
_MAX_TO_REFUSAL = 6  # in a sentence of its own


_REFERS_BACK = vocabulary("this that which these a contradiction impossible absurd false")
_REFUSALS = vocabulary(
    "contradiction contradicts contradictory impossible absurd false wrong incorrect"
)
_TRUE = vocabulary("true right correct possible equal hold")
_SYSTEMS = vocabulary("mod modulo modulus binary ternary octal hexadecimal clock")
_SYSTEMS_OF_TWO = {("in", "base"), ("units", "digit"), ("unit", "digit"), ("ones", "digit")}
_SYSTEMS_OF_TWO |= {("last", "digit"), ("last", "digits"), ("units", "digits"), ("last", "two")}
_ROUNDINGS = vocabulary(
    """remainder remainders rem leftover round rounds rounded rounding nearest floor ceiling
    quotient full whole complete about approximately roughly around estimate estimated"""
)
_SUPPOSITIONS = vocabulary(
    """if when whether suppose supposing assume assuming solve solving set setting equate equating
    equation given case either"""
)


class Scope(NamedTuple):
    """What a sentence, or a line, speaks of."""

    has_system: bool = False  # a modulus, a base, or a clock
    is_rounded: bool = False  # a remainder or a rounding
    is_supposed: bool = False  # a case or an equation to solve


class Around(NamedTuple):
    """The next three tokens that are no edge or line break, and what is said of what came before.

    ``is_denied`` holds if the token itself is a denial too.
    """

    token: Token = END
    second: Token = END
    third: Token = END
    is_denied: bool = False
    scope: Scope = Scope()

    def behind(self) -> Around:
        """What is around the next token, as far as it is known."""
        return self._replace(token=self.second, second=self.third, third=END)


def around(found: list[Token]) -> list[Around]:
    """What is around each token; linear in their number."""
    following = (END, END, END)
    seen: list[Around] = []
    said = zip(reversed(found), reversed(_scopes(found)), _denials(found), strict=True)
    for token, scope, is_denied in said:
        seen.append(Around(*following, is_denied, scope))
        if token.kind not in SOFT:
            following = (token, *following[:2])
    return seen[::-1]


def _denials(found: list[Token]) -> list[bool]:
    """Whether a denial follows in the sentence, or is all that the next one says; from the end."""
    behind, to_denial, to_refusal = END, _MAX_TO_DENIAL, _MAX_TO_REFUSAL
    denied: list[bool] = []
    for token in reversed(found):
        if not _ends_sentence(token):
            to_denial = 0 if is_denial(token, behind) else to_denial + 1
            to_refusal = 0 if _is_refusal(token, behind) else to_refusal + 1
        elif not _ends_sentence(behind):
            is_refused = behind.text.lower() in _REFERS_BACK and to_refusal < _MAX_TO_REFUSAL
            to_denial, to_refusal = 0 if is_refused else _MAX_TO_DENIAL, _MAX_TO_REFUSAL
        denied.append(to_denial < _MAX_TO_DENIAL)
        behind = behind if token.kind in SOFT else token
    return denied


def _ends_sentence(token: Token) -> bool:
    return token.kind == "paragraph" or token.text in {".", ";", "?"}


def _is_refusal(token: Token, after: Token) -> bool:
    return token.text.lower() in _REFUSALS or (token.text == "not" and after.text in _TRUE)


def is_refused(end: Token, after: Token, third: Token) -> bool:
    """Whether the words right behind a chain call it false: "is false", "is not true"."""
    negation = (after.text, third.text) if end.text == "is" else (end.text, after.text)
    is_negated = negation[0] in {"not", "isn't", "isn’t"} and negation[1] in _TRUE
    return is_negated or (end.text == "is" and after.text in _REFUSALS)


def _scopes(found: list[Token]) -> list[Scope]:
    scopes: list[Scope] = []
    sentence: list[Token] = []
    for token in found:
        goes_on = bool(sentence) and sentence[-1].text in {",", ":"}
        sentence.append(token)
        if _ends_sentence(token) or (token.kind == "newline" and not goes_on):
            scopes += [_scope(sentence)] * len(sentence)
            sentence = []
    return scopes + [_scope(sentence)] * len(sentence)


def _scope(sentence: list[Token]) -> Scope:
    said = [
        word
        for token in sentence
        if token.kind in {"word", "words", "mod"} or token.text == r"\mathbb"
        for word in (token.text.lower().split() or [token.kind])
    ]
    words = set(said)
    has_system = not words.isdisjoint(_SYSTEMS | {r"\mathbb"})
    has_system = has_system or not _SYSTEMS_OF_TWO.isdisjoint(pairwise(said))
    return Scope(
        has_system,
        is_rounded=not words.isdisjoint(_ROUNDINGS),
        is_supposed=not words.isdisjoint(_SUPPOSITIONS),
    )
