"""The marks of an answer: what parts it outside of all brackets, and what only stands around it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from services.grader.answers.tokens import Side, Token, tokens

_STATEMENT = re.compile(
    r"(?:(?:the )?(?:final )?answer(?: is)? ?:?|thus,?|so,?|therefore,?|[一总]?共有?|答案?[是为]?)",
    re.IGNORECASE,
)
_FOR_ALL = re.compile(r"for(?: all| any| every)?(?: real)?(?: numbers?)?(?: [a-zA-Z])?")
JOINTS = (r"\cup", r"\cap", r"\setminus")
_MAX_BRACKETS = 40
SYSTEMS = frozenset(["cases", "aligned", "array"])
_PARTS_MEMBERS = frozenset({r"\{", r"\langle", "(", "["})


def flat(found: Iterable[Token]) -> list[Token]:
    r"""With the mathematics of ``\text{42}``, and words that join or part as marks."""
    flat, is_apart = list[Token](), False
    for token in found:
        meant = _meant(token)
        if meant and is_apart:
            meant[0] = meant[0]._replace(gap=True)
        flat += meant
        is_apart = token.kind == "words" and token.text.endswith(" ")
    return flat


def _meant(token: Token) -> list[Token]:
    said = token.text.strip() if token.kind in ("words", "letters") else ""
    if said == "USD":
        return [token._replace(kind="money", text="dollar")]
    if said.casefold() in ("or", "and"):
        return [token._replace(kind="and", text=said.casefold())]
    if token.text == r"\forall" or (token.kind == "words" and _FOR_ALL.fullmatch(said)):
        letter = [Token("letters", said[-1:])] if said[-2:-1] == " " else []
        return [token._replace(kind="and", text="for"), *letter]
    if token.kind == "words" and said.casefold() == "to":
        return [token._replace(kind="colon", text=":")]
    if token.kind == "words" and not said[:1].isalpha():
        inside = flat(tokens(token.text))
        return [each._replace(gap=each.gap or not at) for at, each in enumerate(inside)]
    return [token]


def bare(side: Side) -> Side:
    """Without what stands around an answer: statements, dots, braces."""
    for _ in range(8):
        before = side
        while side and (side[-1].text in (".", ",", ";") or side[-1].text.strip() == "."):
            side = side[:-1]
        if side and side[-1].kind == "number":
            side = (*side[:-1], side[-1]._replace(text=side[-1].text.rstrip(".") or "."))
        while side and (side[0].text in ("=", ".") or _STATEMENT.fullmatch(side[0].text.strip())):
            side = side[1:]
        if len(side) > 1 and side[0].text == "{" and closes(side) == len(side) - 1:
            side = side[1:-1]
        if side == before:
            return side
    return side


def closes(side: Side) -> int:
    """Where the bracket that begins is closed; -1 if it is not."""
    depth = 0
    for at, token in enumerate(side):
        depth += (token.kind == "open") - (token.kind == "close")
        if depth == 0:
            return at
    return -1


def without_open_brace(side: Side) -> Side:
    r"""A system has a brace on its left alone."""
    is_open = len(side) > 1 and side[0].text == r"\{" and side[1].text in SYSTEMS
    return side[1:] if is_open and closes(side[1:]) == len(side) - 2 else side


def cuts_of(side: Side) -> dict[str, list[int]] | None:
    """Where marks stand outside of all brackets; None if these do not match."""
    found, depth = dict[str, list[int]](), 0
    for at, token in enumerate(side):
        depth += (token.kind == "open") - (token.kind == "close")
        if not 0 <= depth <= _MAX_BRACKETS:
            return None
        if depth == 0 and token.kind in ("and", "comma", "semicolon"):
            found.setdefault("and", []).append(at)
        elif depth == 0 and token.kind in ("relation", "colon"):
            found.setdefault(token.kind, []).append(at)
        elif depth == 0 and (token.text in JOINTS or _is_less(side, at)):
            found.setdefault(token.text if token.text in JOINTS else JOINTS[-1], []).append(at)
    return found if depth == 0 else None


def _is_less(side: Side, at: int) -> bool:
    r"""Whether a minus takes points out of a set: ``\mathbb{R} - \{2\}``."""
    return side[at].text == "-" and at > 0 and [t.text for t in side[at - 1 : at + 2]] == [
        r"\mathbb R", "-", r"\{"
    ]  # fmt: skip


def parted_at(side: Side, at: list[int]) -> list[Side]:
    begins, ends = [0, *(cut + 1 for cut in at)], [*at, len(side)]
    return [side[a:b] for a, b in zip(begins, ends, strict=True)]


class _Level(NamedTuple):
    """What stands between two brackets."""

    has_members: bool
    runs: list[int]  # places of numbers with commas
    gaps: list[bool]  # of each other comma, whether a space is behind it

    @property
    def is_joined(self) -> bool:
        """Whether a comma between three digits each is one of thousands."""
        is_parted = not self.has_members or len(self.gaps) not in (0, len(self.runs))
        return False not in self.gaps and is_parted


def joined(found: list[Token], *, is_list: bool = False) -> list[Token]:
    r"""Tokens in which a number has no comma: joined, or parted where they are of a list.

    A group that begins with 0 is never a member: its commas are always of thousands. Any others are
    outside of brackets, as in ``1,234\pi``; in a tuple, set or interval they part the members,
    unless others with a space behind them do, as in ``(1,250, 2,500)`` and ``\{1, 5, 1,200\}``; in
    ``(1,100, 2)`` one comma has a space and one has none, and both part.
    """
    if not any("," in token.text and token.kind == "number" for token in found):
        return found
    together = set() if is_list else _joined_at(found)
    return [part for at, token in enumerate(found) for part in _parted(token, at in together)]


def _joined_at(found: list[Token]) -> set[int]:
    levels, closed = [_Level(False, [], [])], list[_Level]()
    for at, token in enumerate(found):
        if token.kind == "number" and "," in token.text:
            if _is_tight(found, at):
                levels[-1].gaps.append(False)
            else:
                levels[-1].runs.append(at)
        elif token.kind == "open":
            is_behind = at > 0 and found[at - 1].text in ("=", "_")
            levels.append(_Level(token.text in _PARTS_MEMBERS or is_behind, [], []))
        elif token.kind == "close" and len(levels) > 1:
            closed.append(levels.pop())
        elif token.kind in ("semicolon", "comma"):
            levels[-1].gaps.append(token.kind == "semicolon" or _has_gap(found, at))
    runs = ((at, level) for level in (*levels, *closed) for at in level.runs)
    return {at for at, level in runs if level.is_joined or ",0" in found[at].text}


def _has_gap(found: list[Token], at: int) -> bool:
    return at + 1 < len(found) and found[at + 1].gap


def _is_tight(found: list[Token], at: int) -> bool:
    """Whether a comma without a space stands beside a number with commas, or it begins with 0."""
    before = at > 0 and found[at - 1].kind == "comma" and not found[at].gap
    after = at + 1 < len(found) and found[at + 1].kind == "comma" and not _has_gap(found, at + 1)
    return before or (after and at + 2 < len(found)) or found[at].text.startswith("0")


def _parted(token: Token, is_joined: bool) -> list[Token]:
    if token.kind != "number" or "," not in token.text:
        return [token]
    head, *rest = token.text.split(",")
    if is_joined:
        return [token._replace(text="".join((head, *rest)))]
    others = ((Token("comma", ","), token._replace(text=part, gap=False)) for part in rest)
    return [token._replace(text=head), *chain(*others)]
