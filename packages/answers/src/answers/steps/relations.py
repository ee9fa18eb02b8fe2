r"""Where a text says that an expression equals, or is less than, another one.

A *chain* such as ``a = b < c`` stands between words, punctuation, line breaks and brackets. A side
that may continue beyond these is not read. The search is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from answers.steps.segments import MODULO, split_segments
from answers.tokens import Token, lexicon

_SIGNS = lexicon(r"= < > <= >= != \approx \equiv")
_ENDS = lexicon("relation word stop wall")
_OPENERS = {
    ")": "([",
    "]": "([",
    "}": "{",
    r"\}": r"\{",
    r"\rangle": r"\langle",
    r"\rfloor": r"\lfloor",
    r"\rceil": r"\lceil",
}
_CONTINUES = frozenset("+*/^!%")
_MODULUS = re.compile("[0-9]{1,300}")
_MAX_SIDE_TOKENS = 300
# Characters of a sentence before and after a relation, and after a question.
_SENTENCE_CHARS = 200
_REPLY_CHARS = 10
_SENTENCE_ENDS = re.compile(r"(?<=[.?!;])(?=[\s$])|\n")
_DOUBT = re.compile(
    r"""
    \b (?:
      false|wrong|incorrect|contradict\w*|impossible|fails?|no\ solutions?
      |mod(?!\W{0,3}1\b)|modul[oa]r?|base|round\w*|nearest|remainders?
    ) \b
    | [✗❌]
    """,
    re.IGNORECASE | re.VERBOSE,
)
# A question mark alone takes nothing back.
_QUESTION = re.compile(
    r"""
    \b(?:is|are|do|does|did|can|could|would|should|what|why|how|if|whether|check|verify)\b [^?]* \?
    | \?\W* (?:no|not|wait|hmm|but|check|wrong|that|this)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_DENIAL_BEFORE = re.compile(r"(?i)(?:\b(?:not|cannot|never)|n['’]t)\b[^,.$]{0,20}\$?\Z")
_DENIAL_AFTER = re.compile(r"(?i)\b(?:is|are|was|were|do|does|did)(?: not|n['’]t)\b")
# Before or after a number that is a whole side: a name, a unit.
_NAME = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,} ?\$?\Z")
_UNIT = re.compile(r"[ /-][A-Za-z]{2}")
_SHARE = re.compile(r"(?:[0-9] [a-z]+ (?:in|per|of|for)|[-+*/] [a-z]+) \Z")
# Before a fraction: 2 and 1/2. Before a dash: a term, so that the dash is a minus.
_MIXED = re.compile(r"[0-9] and \Z")
_TERM = re.compile(r"[0-9][^.\n]*[a-z] \Z")


class Relation(NamedTuple):
    r"""Two sides and one of ``= < > <= >= != \approx \equiv``, perhaps modulo a number."""

    left_side: list[Token]
    sign: str
    right_side: list[Token]
    start: int
    end: int
    modulus: int | None = None

    def is_doubtful(self, text: str) -> bool:
        """Return whether the sentence denies the relation, or asks whether it holds."""
        start = max(0, self.start - _SENTENCE_CHARS)
        before = _SENTENCE_ENDS.split(text[start : self.start])[-1]
        following = text[self.end : self.end + _SENTENCE_CHARS]
        after = _SENTENCE_ENDS.split(following, maxsplit=1)[0]
        question = following[: len(after) + _REPLY_CHARS] if "?" in after else ""
        if _DENIAL_BEFORE.search(before) or _DENIAL_AFTER.search(after):
            return True
        is_question = _QUESTION.search(f"{before} {question}")
        return bool(is_question or _DOUBT.search(f"{before} {after}"))

    def is_loose(self, text: str) -> bool:
        """Return whether the left side may continue into words, as in ``Week 2 = 35 + 35``."""
        first = self.left_side[0]
        is_first = self.start == first.start
        start = max(0, self.start - _SENTENCE_CHARS)
        before = text[start : self.start] if is_first else ""
        if len(self.left_side) == 1:
            sign = text[first.end : self.right_side[0].start]
            return bool(_NAME.search(before) or _UNIT.match(sign))
        if first.text == r"\pm" and _TERM.search(before):
            return True
        pattern = _MIXED if self.left_side[1].text == "/" else _SHARE
        return pattern.search(before) is not None


def find_relations(text: str) -> list[Relation]:
    tokens = list(split_segments(text))
    chains = sorted(_find_chains(tokens))
    return [relation for chain in chains for relation in _read_chain(tokens, chain)]


def _find_chains(tokens: list[Token]) -> Iterator[list[int]]:
    """Yield the places before each chain, of its signs, and after it.

    Of the chains that have begun the innermost is the last.
    """
    openers = [0]
    chains = [[0]]
    for at, token in enumerate(tokens):
        if token.kind == "relation":
            chains[-1].append(at)
        elif token.kind == "open":
            openers.append(at)
            chains.append([at])
        elif token.kind == "close" and _is_pair(tokens[openers[-1]], token):
            opener = openers.pop()
            inner = chains.pop()
            yield [*inner, at]
            if inner != [opener] and tokens[opener].gap:  # a remark
                yield [*chains[-1], opener]
                chains[-1] = [at]
        elif token.kind in {"word", "stop", "close"}:
            yield [*chains[-1], at]
            chains[-1] = [at]
        elif token.kind == "wall":  # open brackets stay open
            yield from map(_append, chains, [*openers[1:], at])
            openers = [at]
            chains = [[at]]


def _append(chain: list[int], end: int) -> list[int]:
    return [*chain, end]


def _is_pair(opener: Token, closer: Token) -> bool:
    return opener.kind == "open" and opener.text in _OPENERS.get(closer.text, closer.text)


def _read_chain(tokens: list[Token], places: list[int]) -> Iterator[Relation]:
    first = places[0]
    last = places[-1]
    if len(places) < 3 or _is_inside(tokens[first]) or _is_inside(tokens[last]):
        return
    modulus = _read_modulus(tokens, last)
    sides = [_read_side(tokens, before, after) for before, after in pairwise(places)]
    for place, (side, next_side) in zip(places[1:], pairwise(sides), strict=False):
        sign = tokens[place]
        if side and next_side and sign.text in _SIGNS:
            start = side[0].start if place == places[1] else sign.start
            end = next_side[-1].end
            yield Relation(side, sign.text, next_side, start, end, modulus)


def _is_inside(end: Token) -> bool:
    """Return whether the end of a chain is a bracket of an expression, such as a root."""
    return end.kind in {"open", "close"} and end.text not in "()[]"


def _read_side(tokens: list[Token], before: int, after: int) -> list[Token]:
    side = tokens[before + 1 : after]
    if not 0 < len(side) <= _MAX_SIDE_TOKENS or tokens[before].text in MODULO:
        return []
    if any(token.kind in _ENDS for token in side):
        return []
    if tokens[before].kind != "word":
        return side
    first = side[0]
    is_minus = first.text == "-" and len(side) > 1 and side[1].gap
    if is_minus or first.text in _CONTINUES or not first.gap:
        return []
    return side


def _read_modulus(tokens: list[Token], at: int) -> int | None:
    texts = [token.text for token in tokens[at : at + 5]]
    texts = [text for text in texts if text not in {"", "(", "{"}]
    if len(texts) < 2 or texts[0] not in MODULO:
        return None
    if not _MODULUS.fullmatch(texts[1]):
        return None
    modulus = int(texts[1])
    return modulus if modulus > 1 else None  # modulo 1 all numbers are equal
