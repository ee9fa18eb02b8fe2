"""One expression as a tree of the strict grammar; without computer algebra."""

from __future__ import annotations

from itertools import groupby

from services.grader.relations.nodes import Node, Unreadable
from services.grader.relations.reading import read
from services.grader.relations.tokens import Token, tokens

_HYPERBOLIC = {rf"\{name}": name for name in ("sinh", "cosh", "tanh")}


def tree_of(latex: str) -> Node | None:
    """The tree of a LaTeX expression, or None where it is not in the grammar."""
    side = [_known(token) for token in tokens(f"${latex}$") if token.text != "$"]
    try:
        return read(tuple(_double_factorials_joined(side)), number_may_follow=True)
    except (Unreadable, ValueError):
        return None


def _known(token: Token) -> Token:
    name = _HYPERBOLIC.get(token.text)
    return token._replace(kind="function", text=name) if name else token


def _double_factorials_joined(side: list[Token]) -> list[Token]:
    joined: list[Token] = []
    for text, alike in groupby(side, key=lambda token: token.text):
        run = list(alike)
        joined += [run[0]._replace(text="!!")] if text == "!" and len(run) == 2 else run
    return joined
