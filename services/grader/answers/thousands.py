r"""Commas of thousands: ``1,000`` is a number wherever a comma cannot be meant to part a list.

A group that begins with 0 is never a member: its commas are always of thousands. Any others are
outside of brackets, as in ``1,234\pi``; in a tuple, set or interval they part the members, unless
others with a space behind them do, as in ``(1,250, 2,500)`` and ``\{1, 5, 1,200\}``; in
``(1,100, 2)`` one comma has a space and one has none, and both part. Linear in the text's length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<run>(?<![0-9.,^_])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9]|,[^ ]))"
    r"|(?P<opens>\\\{|\\langle(?![a-zA-Z])|[=_] ?\{|[(\[])|(?P<group>\{)"
    r"|(?P<closes>\\\}|\\rangle(?![a-zA-Z])|[)\]}])"
    r"|(?P<apart>, |;)|(?P<tight>,)|\\."
)
_LIST = re.compile(r"[1-9][0-9]{2}(?:,[1-9][0-9]{2})+")


@dataclass
class _Level:
    """What stands between two brackets, and how its members are parted."""

    parts_members: bool = False
    runs: int = 0
    apart: int = 0
    has_tight: bool = False

    @property
    def is_joined(self) -> bool:
        """Whether a comma between three digits each is one of thousands."""
        return not self.has_tight and (self.apart not in (0, self.runs) or not self.parts_members)


def joined(latex: str) -> str:
    """Tidied LaTeX without its commas of thousands."""
    if "," not in latex:
        return latex
    levels, runs = [_Level()], list[tuple[re.Match[str], _Level]]()
    for match in _TOKEN.finditer(latex):
        kind = match.lastgroup
        if kind == "run":
            runs.append((match, levels[-1]))
            levels[-1].runs += 1
        elif kind in ("opens", "group"):
            levels.append(_Level(parts_members=kind == "opens"))
        elif kind == "closes" and len(levels) > 1:
            levels.pop()
        levels[-1].apart += kind == "apart"
        levels[-1].has_tight |= kind == "tight"
    return _without_commas(latex, runs)


def may_be_list(latex: str) -> bool:
    """Whether a number with commas may be a list as well: 100,200, but not 1,200 or 100,000."""
    return _LIST.fullmatch(latex) is not None


def _without_commas(latex: str, runs: list[tuple[re.Match[str], _Level]]) -> str:
    pieces, end = list[str](), 0
    for match, level in runs:
        if level.is_joined or ",0" in match.group():
            pieces += latex[end : match.start()], match.group().replace(",", "")
            end = match.end()
    return "".join((*pieces, latex[end:]))
