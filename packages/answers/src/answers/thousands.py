r"""Commas in numbers: of thousands, or between the members of a list.

A group that begins with 0 is always of thousands. Other groups are, too, outside of brackets, as in
``1,234\pi``. In brackets commas part members, unless other commas, with a space after them, do so,
as in ``\{1, 5, 1,200\}``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from answers.tokens import Token

_MEMBER_BRACKETS = frozenset({r"\{", r"\langle", "(", "["})


@dataclass
class _Level:
    """The commas at one depth of brackets."""

    has_members: bool = False
    # Places of numbers with commas.
    numbers: list[int] = field(default_factory=list)
    # Whether a space follows, for each other comma.
    gaps: list[bool] = field(default_factory=list)

    @property
    def has_thousands(self) -> bool:
        if False in self.gaps:
            return False
        is_parted = len(self.gaps) not in (0, len(self.numbers))
        return is_parted or not self.has_members


def join_thousands(side: list[Token], *, is_list: bool = False) -> list[Token]:
    """Remove commas of thousands, and make others tokens; with ``is_list`` all are others."""
    if not any(map(_has_comma, side)):
        return side
    thousands = set() if is_list else _find_thousands(side)
    tokens = list[Token]()
    for at, token in enumerate(side):
        if not _has_comma(token):
            tokens.append(token)
        elif at in thousands:
            digits = token.text.replace(",", "")
            tokens.append(token._replace(text=digits))
        else:
            tokens += _split_commas(token)
    return tokens


def _has_comma(token: Token) -> bool:
    return token.kind == "number" and "," in token.text


def _split_commas(token: Token) -> list[Token]:
    tokens = list[Token]()
    for text in token.text.split(","):
        tokens.append(Token("comma", ","))
        tokens.append(token._replace(text=text, gap=False))
    tokens[1] = tokens[1]._replace(gap=token.gap)
    return tokens[1:]


def _find_thousands(side: list[Token]) -> set[int]:
    open_levels = [_Level()]
    levels = list(open_levels)
    for at, token in enumerate(side):
        if _has_comma(token):
            if _is_in_tight_list(side, at):
                open_levels[-1].gaps.append(False)
            else:
                open_levels[-1].numbers.append(at)
        elif token.kind == "open":
            has_members = token.text in _MEMBER_BRACKETS
            if at > 0 and side[at - 1].text in ("=", "_"):
                has_members = True
            level = _Level(has_members)
            open_levels.append(level)
            levels.append(level)
        elif token.kind == "close" and len(open_levels) > 1:
            open_levels.pop()
        elif token.kind in ("semicolon", "comma"):
            is_gap = token.kind == "semicolon" or _gap_follows(side, at)
            open_levels[-1].gaps.append(is_gap)
    return {
        at
        for level in levels
        for at in level.numbers
        if level.has_thousands or ",0" in side[at].text
    }


def _gap_follows(side: list[Token], at: int) -> bool:
    return at + 1 < len(side) and side[at + 1].gap


def _is_in_tight_list(side: list[Token], at: int) -> bool:
    """Return whether a comma without a space is next to a number, or the number begins with 0."""
    if side[at].text.startswith("0"):
        return True
    is_comma_before = at > 0 and side[at - 1].kind == "comma"
    if is_comma_before and not side[at].gap:
        return True
    is_comma_next = at + 2 < len(side) and side[at + 1].kind == "comma"
    return is_comma_next and not _gap_follows(side, at + 1)
