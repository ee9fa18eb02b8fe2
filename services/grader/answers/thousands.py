r"""Commas of thousands: ``1,000`` is a number wherever a comma cannot be meant to part a list.

A group that begins with 0 is never a member: its commas are always of thousands. Any others are
outside of brackets, as in ``1,234\pi``; in a tuple, set or interval they part the members, unless
others with a space behind them do, as in ``(1,250, 2,500)`` and ``\{1, 5, 1,200\}``; in
``(1,100, 2)`` one comma has a space and one has none, and both part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from services.grader.answers.tokens import Token

_PARTS_MEMBERS = frozenset({r"\{", r"\langle", "(", "["})


@dataclass
class _Level:
    """What stands between two brackets, and how its members are parted."""

    parts_members: bool = False
    runs: list[int] = field(default_factory=list)  # places of numbers with commas
    apart: int = 0
    has_tight: bool = False

    @property
    def is_joined(self) -> bool:
        """Whether a comma between three digits each is one of thousands."""
        is_parted = self.apart not in (0, len(self.runs)) or not self.parts_members
        return not self.has_tight and is_parted


def joined(found: list[Token], *, is_list: bool = False) -> list[Token]:
    """Tokens in which a number has no comma: joined, or parted where they are of a list."""
    if any("," in token.text and token.kind == "number" for token in found):
        together = set() if is_list else _joined_at(found)
        found = [part for at, token in enumerate(found) for part in _parted(token, at in together)]
    return _blanks_joined(found)


def _joined_at(found: list[Token]) -> set[int]:
    levels = [_Level()]
    closed = list[_Level]()
    for at, token in enumerate(found):
        if token.kind == "number" and "," in token.text:
            if _is_tight(found, at):
                levels[-1].has_tight = True
            else:
                levels[-1].runs.append(at)
        elif token.kind == "open":
            before = found[at - 1].text if at else ""
            levels.append(_Level(token.text in _PARTS_MEMBERS or before in ("=", "_")))
        elif token.kind == "close" and len(levels) > 1:
            closed.append(levels.pop())
        elif token.kind == "semicolon" or (token.kind == "comma" and _has_gap(found, at)):
            levels[-1].apart += 1
        elif token.kind == "comma":
            levels[-1].has_tight = True
    runs = ((at, level) for level in (*levels, *closed) for at in level.runs)
    return {at for at, level in runs if level.is_joined or ",0" in found[at].text}


def _has_gap(found: list[Token], at: int) -> bool:
    return at + 1 < len(found) and found[at + 1].gap


def _is_tight(found: list[Token], at: int) -> bool:
    """Whether a comma without a space stands beside a number with commas, or it begins with 0."""
    before = at > 0 and found[at - 1].kind == "comma" and not found[at].gap
    after = at + 1 < len(found) and found[at + 1].kind == "comma" and not _has_gap(found, at + 1)
    return before or (after and at + 2 < len(found)) or found[at].text.startswith("0")


def _parted(token: Token, is_joined: bool) -> Iterator[Token]:
    if token.kind != "number" or "," not in token.text:
        yield token
    elif is_joined:
        yield token._replace(text=token.text.replace(",", ""))
    else:
        for at, part in enumerate(token.text.split(",")):
            if at:
                yield Token("comma", ",")
            yield token._replace(text=part, gap=token.gap and not at)


def _blanks_joined(found: list[Token]) -> list[Token]:
    """``12 000`` is a number too."""
    kept = list[Token]()
    for token in found:
        if kept and _is_group(kept[-1], token):
            kept[-1] = kept[-1]._replace(text=kept[-1].text + token.text, end=-1)
        else:
            kept.append(token)
    return kept


def _is_group(before: Token, token: Token) -> bool:
    """Whether three digits continue the number before them, whose end is -1 if it is joined."""
    if not (token.gap and token.kind == before.kind == "number" and before.text.isdigit()):
        return False
    whole = token.text.partition(".")[0]
    is_head = before.text[0] != "0" and (len(before.text) <= 3 or before.end == -1)
    return is_head and len(whole) == 3 and whole.isdigit()
