"""A chain of sides and signs as relations, with what its surroundings may change about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from services.grader.relations.sentences import END, Around, is_refused
from services.grader.relations.surroundings import (
    begins_cleanly,
    ends_cleanly,
    is_only_part,
    is_supposed,
    may_be_argument,
    may_be_name,
    may_go_on,
    may_mean_more,
    unit_behind,
)
from services.grader.relations.tokens import STAR, Token

MAX_SIDE_TOKENS = 300
RELATIONS = frozenset({"=", "<", ">", "<=", ">=", "!=", "~~", "==="})
START = END._replace(text="")  # of the text


@dataclass(frozen=True)
class Side:
    """The tokens of one side; ``doubtful`` if what is around it may change what it says."""

    tokens: tuple[Token, ...]
    doubtful: bool = False

    @property
    def text(self) -> str:
        """As written, but for white space and spelling."""
        return "".join(token.text for token in self.tokens).replace(STAR, "*")


@dataclass(frozen=True)
class Relation:
    """Two sides and one of ``= < > <= >= != ~~ ===``, perhaps modulo the last tokens.

    A ``unit`` behind it may have converted it, what ``is_rough`` may be rounded to a whole number,
    and an equation with letters that ``is_supposed`` may have no solution. Its ``place`` is where
    it starts and ends in the text.
    """

    left: Side
    sign: str
    right: Side
    modulus: Side | None = None
    unit: str | None = None
    is_rough: bool = False
    is_supposed: bool = False
    place: tuple[int, int] = (0, 0)

    @property
    def text(self) -> str:
        """The same for all ways to space it."""
        modulus = f" mod {self.modulus.text.strip('{}')}" if self.modulus else ""
        return f"{self.left.text}{self.sign}{self.right.text}{modulus}"


class Chain(NamedTuple):
    """Sides with signs between them, and what stands before: the end of another expression."""

    sides: list[list[Token]]
    signs: list[str]
    before: Token
    after_operand: bool  # whether there was another expression at all


def relations_of(chain: Chain, end: Token, ahead: Around) -> Iterator[Relation]:
    """The relations of a chain, with what ends it and what comes ahead of that."""
    if is_refused(end, ahead.token, ahead.second):
        return
    last, modulus = _without_modulus(chain.sides[-1])
    exclaims = bool(last) and last[-1].text == "!" and not last[-1].in_math
    sides = [*chain.sides[:-1], last if ends_cleanly(end) and not exclaims else []]
    if not begins_cleanly(chain.before, chain.after_operand, sides[0]):
        sides[0] = []
    made = _doubted([_side(side) for side in sides], chain, end, ahead)
    is_alone = chain.before == START and len(chain.signs) == 1
    written = pairwise(chain.sides)
    for (left, right), sign, (a, b) in zip(pairwise(made), chain.signs, written, strict=True):
        if left.tokens and right.tokens and sign in RELATIONS:
            is_last = right is made[-1]
            yield Relation(
                left,
                sign,
                right,
                _side(modulus) if modulus else None,
                unit_behind(end, ahead.token, ahead.second) if is_last else None,
                ahead.scope.is_rounded or (is_last and may_go_on(end, ahead.token)),
                ahead.scope.is_supposed or is_alone,
                (a[0].start, b[-1].end),
            )


def _doubted(sides: list[Side], chain: Chain, end: Token, ahead: Around) -> list[Side]:
    if ahead.scope.has_system or end.text == "?":
        return [replace(side, doubtful=True) for side in sides]
    first, before = sides[0].tokens, chain.before
    doubts = (may_be_argument(first, before), may_be_name(first, before), is_supposed(before))
    sides[0] = replace(sides[0], doubtful=any(doubts))
    after = (ahead.token, ahead.second)
    doubts = (ahead.is_denied, may_mean_more(end, ahead.token), is_only_part(end, *after))
    sides[-1] = replace(sides[-1], doubtful=any(doubts))
    return sides


def _side(side: list[Token]) -> Side:
    readable = len(side) <= MAX_SIDE_TOKENS and all(token.kind != "unknown" for token in side)
    return Side(tuple(side) if readable else ())


def _without_modulus(side: list[Token]) -> tuple[list[Token], list[Token]]:
    r"""A last side and its modulus: ``4 \pmod{7}``, ``4 (mod 7)``, ``4 mod 7``."""
    at = next((at for at, token in enumerate(side) if token.kind == "mod"), None)
    if at is None:
        return side, []
    if at and side[at - 1].text == "(" and side[-1].text == ")":
        return side[: at - 1], side[at + 1 : -1]
    return side[:at], side[at + 1 :]
