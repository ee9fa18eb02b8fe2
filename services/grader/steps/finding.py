r"""Where a text says that something equals, or is less than, something else.

A *chain* such as ``a = b < c`` stands between words, punctuation, line breaks and brackets. A side
that may belong to more than is seen here is not read at all. Linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from services.grader.answers.tokens import Token
from services.grader.steps.pieces import MODULO, pieces

_SIGNS = frozenset({"=", "<", ">", "<=", ">=", "!=", r"\approx", r"\equiv"})
_ENDS = frozenset({"relation", "word", "stop", "wall"})
_CLOSES = {")": {"(", "["}, "]": {"(", "["}, "}": {"{"}, r"\}": {r"\{"}}
_CLOSES |= {r"\rangle": {r"\langle"}, r"\rfloor": {r"\lfloor"}, r"\rceil": {r"\lceil"}}
_MAX_SIDE = 300  # tokens
_NEAR = 200  # characters of a sentence on each side of a relation
_SENTENCE_ENDS = re.compile(r"(?<=[.?!;])(?=[\s$])|\n")
_DOUBT = re.compile(
    r"(?i)\b(?:not|cannot|never|false|wrong|incorrect|contradict\w*|impossible|fails?"
    r"|mod\w*|base|round\w*|nearest|remainders?)\b|n['’]t\b|\?|[✗❌]"
)


class Relation(NamedTuple):
    r"""Two sides and one of ``= < > <= >= != \approx \equiv``, perhaps modulo a number.

    It stands from ``start``, in a chain from its sign, to before ``end``. The left side of a
    ``named`` one may belong to a word, as in ``Week 2 = 35 + 35``.
    """

    left: list[Token]
    sign: str
    right: list[Token]
    start: int
    end: int
    modulus: int | None = None
    named: bool = False


def relations(text: str) -> Iterator[Relation]:
    """Every relation whose sides can be told, in the order in which their chains begin."""
    found = pieces(text)
    partners = _pairs(found)
    done = set[int]()
    for at, piece in enumerate(found):
        if piece.kind != "relation" or at in done:
            continue
        places = [_end(found, partners, at, -1), at]
        while found[places[-1]].kind == "relation":
            places.append(_end(found, partners, places[-1], 1))
        done.update(places[1:-1])
        yield from _chain(found, places)


def _pairs(found: list[Token]) -> dict[int, int]:
    """The places of brackets that belong together, by each of both."""
    partners, waiting = dict[int, int](), list[int]()
    for at, piece in enumerate(found):
        if piece.kind == "wall":
            waiting.clear()
        elif piece.kind == "open":
            waiting.append(at)
        elif piece.kind == "close":
            opener = waiting.pop() if waiting else 0
            if found[opener].text in _CLOSES.get(piece.text, {piece.text}):
                partners |= {at: opener, opener: at}
            else:
                waiting.clear()
    return partners


def _end(found: list[Token], partners: dict[int, int], at: int, step: int) -> int:
    """The nearest place before or behind a sign that is no more of its side."""
    at += step
    while found[at].kind not in _ENDS:
        if found[at].kind in {"open", "close"}:
            partner = partners.get(at, at - step)
            if (partner - at) * step < 0:  # the bracket around all of it
                return at
            at = partner
        at += step
    return at


def _chain(found: list[Token], places: list[int]) -> Iterator[Relation]:
    """The relations of a chain, of which the signs' places are given, between those of its ends."""
    first, last = found[places[0]], found[places[-1]]
    is_part = any(end.kind in {"open", "close"} and end.text not in "()[]" for end in (first, last))
    if is_part:
        return
    modulus = _modulus(found, places[-1])
    sides = [_side(found, *ends) for ends in pairwise(places)]
    for sign, (left, right) in zip(places[1:], pairwise(sides), strict=False):
        if left and right and found[sign].text in _SIGNS:
            start = left[0].start if sign == places[1] else found[sign].start
            end = right[-1].end
            named = sign == places[1] and first.kind == "word" and len(left) == 1
            yield Relation(left, found[sign].text, right, start, end, modulus, named)


def _side(found: list[Token], before: int, behind: int) -> list[Token]:
    """The side between two places; empty where it cannot be told."""
    if not 0 < behind - before - 1 <= _MAX_SIDE or found[before].text in MODULO:
        return []
    side = found[before + 1 : behind]
    if any(piece.kind in _ENDS for piece in side):
        return []
    joins = side[0].text in set("+*/^!%") or (side[0].text == "-" and side[1:] and side[1].gap)
    return [] if found[before].kind == "word" and (joins or not side[0].gap) else side


def _modulus(found: list[Token], at: int) -> int | None:
    r"""The number of ``mod 7``, ``(mod 7)`` or ``\pmod{7}``, where that begins."""
    while found[at].text in {"", "("} and at + 1 < len(found):
        at += 1
    if found[at].text not in MODULO:
        return None
    at += 2 if found[at + 1].text == "{" else 1
    return int(found[at].text) if found[at].text.isdecimal() else None


def is_doubtful(text: str, start: int, end: int) -> bool:
    """Whether a sentence denies or asks something, rounds, or counts in another way."""
    before = _SENTENCE_ENDS.split(text[max(0, start - _NEAR) : start])[-1]
    behind = _SENTENCE_ENDS.split(text[end : end + _NEAR], maxsplit=1)[0]
    return bool(_DOUBT.search(f"{before} {behind}"))
