r"""Where a text says that something equals, or is less than, something else.

A *chain* such as ``a = b < c`` stands between words, punctuation, line breaks and brackets. A side
that may belong to more than is seen here is not read at all. Linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from answers.steps.segments import MODULO, segments
from answers.tokens import Token

_SIGNS = frozenset({"=", "<", ">", "<=", ">=", "!=", r"\approx", r"\equiv"})
_ENDS = frozenset({"relation", "word", "stop", "wall"})
_OPENERS = {")": "([", "]": "([", "}": "{", r"\}": r"\{", r"\rangle": r"\langle"}
_OPENERS |= {r"\rfloor": r"\lfloor", r"\rceil": r"\lceil"}
_MODULUS = re.compile("[0-9]{1,300}")
_MAX_SIDE = 300  # tokens
_ANSWER = 10  # characters behind a question
_NEAR = 200  # characters of a sentence on each side of a relation
_SENTENCE_ENDS = re.compile(r"(?<=[.?!;])(?=[\s$])|\n")
_DOUBT = re.compile(
    r"(?i)\b(?:false|wrong|incorrect|contradict\w*|impossible|fails?|no solutions?"
    r"|mod(?!\W{0,3}1\b)|modul[oa]r?|base|round\w*|nearest|remainders?)\b|[✗❌]"
)
_QUESTION = re.compile(  # a question mark alone takes nothing back
    r"(?i)\b(?:is|are|do|does|did|can|could|would|should|what|why|how|if|whether|check|verify)\b"
    r"[^?]*\?|\?\W*(?:no|not|wait|hmm|but|check|wrong|that|this)\b"
)
_DENIAL = re.compile(r"(?i)(?:\b(?:not|cannot|never)|n['’]t)\b[^,.$]{0,20}\$?\Z")  # before
_DENIAL_BEHIND = re.compile(r"(?i)\b(?:is|are|was|were|do|does|did)(?: not|n['’]t)\b")
_NAME = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,} ?\$?\Z")  # before a single number
_UNIT = re.compile(r"[ /-][A-Za-z]{2}")  # behind one
_SHARE = re.compile(r"(?:[0-9] [a-z]+ (?:in|per|of|for)|[-+*/] [a-z]+) \Z")
_MIXED = re.compile(r"[0-9] and \Z")  # before a fraction
_DASH = re.compile(r"[0-9][^.\n]*[a-z] \Z")  # before a dash that may be a minus


class Relation(NamedTuple):
    r"""Two sides and one of ``= < > <= >= != \approx \equiv``, perhaps modulo a number."""

    left: list[Token]
    sign: str
    right: list[Token]
    start: int
    end: int
    modulus: int | None = None

    def is_doubtful(self, text: str) -> bool:
        before = _SENTENCE_ENDS.split(text[max(0, self.start - _NEAR) : self.start])[-1]
        after = text[self.end : self.end + _NEAR]
        behind = _SENTENCE_ENDS.split(after, maxsplit=1)[0]
        question = behind + after[len(behind) : len(behind) + _ANSWER] if "?" in behind else ""
        is_denied = _DENIAL.search(before) or _DENIAL_BEHIND.search(behind)
        is_asked = _QUESTION.search(f"{before} {question}")
        return bool(is_denied or is_asked or _DOUBT.search(f"{before} {behind}"))

    def is_loose(self, text: str) -> bool:
        """Whether its left side may belong to words beside it, as in ``Week 2 = 35 + 35``."""
        is_first = self.start == self.left[0].start
        before = text[max(0, self.start - _NEAR) : self.start] if is_first else ""
        if len(self.left) == 1:
            sign = text[self.left[0].end : self.right[0].start]
            return bool(_NAME.search(before) or _UNIT.match(sign))
        pattern = _MIXED if self.left[1].text == "/" else _SHARE
        is_dash = self.left[0].text == r"\pm" and _DASH.search(before)
        return bool(is_dash or pattern.search(before))


def relations(text: str) -> list[Relation]:
    found = list(segments(text))
    return [each for places in sorted(_chains(found)) for each in _relations(found, places)]


def _chains(found: list[Token]) -> Iterator[list[int]]:
    """The places before a chain, of its signs, and behind it; the innermost under way is last."""
    openers, chains = [0], [[0]]
    for at, piece in enumerate(found):
        if piece.kind == "relation":
            chains[-1].append(at)
        elif piece.kind == "open":
            openers.append(at)
            chains.append([at])
        elif piece.kind == "close" and _is_pair(found[openers[-1]], piece):
            opener, inner = openers.pop(), chains.pop()
            yield [*inner, at]
            if inner != [opener] and found[opener].gap:  # a remark
                yield [*chains[-1], opener]
                chains[-1] = [at]
        elif piece.kind in {"word", "stop", "close"}:
            yield [*chains[-1], at]
            chains[-1] = [at]
        elif piece.kind == "wall":  # what is open stays so
            yield from map(_ended, chains, [*openers[1:], at])
            openers, chains = [at], [[at]]


def _ended(chain: list[int], end: int) -> list[int]:
    return [*chain, end]


def _is_pair(opener: Token, closer: Token) -> bool:
    return opener.kind == "open" and opener.text in _OPENERS.get(closer.text, closer.text)


def _relations(found: list[Token], places: list[int]) -> Iterator[Relation]:
    first, last = found[places[0]], found[places[-1]]
    if len(places) < 3 or any(
        end.kind in {"open", "close"} and end.text not in "()[]" for end in (first, last)
    ):
        return
    modulus = _modulus(found, places[-1])
    sides = [_side(found, *ends) for ends in pairwise(places)]
    for sign, (left, right) in zip(places[1:], pairwise(sides), strict=False):
        if left and right and found[sign].text in _SIGNS:
            is_first = sign == places[1]
            start = left[0].start if is_first else found[sign].start
            yield Relation(left, found[sign].text, right, start, right[-1].end, modulus)


def _side(found: list[Token], before: int, behind: int) -> list[Token]:
    if not 0 < behind - before - 1 <= _MAX_SIDE or found[before].text in MODULO:
        return []
    side = found[before + 1 : behind]
    if any(piece.kind in _ENDS for piece in side):
        return []
    joins = side[0].text in set("+*/^!%") or (side[0].text == "-" and side[1:] and side[1].gap)
    return [] if found[before].kind == "word" and (joins or not side[0].gap) else side


def _modulus(found: list[Token], at: int) -> int | None:
    near = [piece.text for piece in found[at : at + 5] if piece.text not in {"", "(", "{"}]
    is_modulus = len(near) > 1 and near[0] in MODULO and _MODULUS.fullmatch(near[1])
    modulus = int(near[1]) if is_modulus else 0
    return modulus if modulus > 1 else None  # modulo 1 it says nothing
