r"""Relations as what they leave to a letter: ``1 < x \le 2`` is an interval."""

from __future__ import annotations

from services.grader.answers.nodes import Node
from services.grader.answers.values import (
    Expression,
    Number,
    Relation,
    Set,
    Tuple,
    Union,
    Value,
    Words,
)

_FLIPPED = {">": "<", ">=": "<="}
_BRACKETS = {"<": "()", "<=": "[]"}
_INFINITY = Node("infinity")
INFINITY = Expression(_INFINITY, r"\infty")
MINUS_INFINITY = Expression(Node("negative", (_INFINITY,)), r"-\infty")
REALS = Tuple((MINUS_INFINITY, INFINITY))
_INEQUALITIES = frozenset({"<", "<=", "!="})


def letter_of(value: Value) -> str:
    """The letter that a value is; empty if it is none."""
    is_letter = isinstance(value, Expression) and value.tree and value.tree.kind == "letter"
    return value.tree.letter if is_letter and isinstance(value, Expression) and value.tree else ""


def read_relation(relation: Relation) -> Value:
    r"""An interval, the set behind ``x \in``, or the relation with all its signs upwards."""
    sides, signs = relation.sides, relation.signs
    if signs == (r"\in",) and _are_letters(sides[0]):
        region = sides[1]
        if isinstance(region, Tuple):
            region = Tuple(region.parts, region.brackets, letter_of(sides[0]))
        return relation if isinstance(region, Words) else region
    if all(sign in _FLIPPED for sign in signs):
        signs = tuple(_FLIPPED[sign] for sign in reversed(signs))
        sides = sides[::-1]
        relation = Relation(sides, signs, relation.texts[::-1])
    if (interval := _interval(relation)) is not None:
        return interval
    if signs == ("!=",) and letter_of(sides[0]) and isinstance(sides[1], Number | Expression):
        pieces = Tuple((MINUS_INFINITY, sides[1])), Tuple((sides[1], INFINITY))
        if isinstance(sides[1], Number) or not sides[1].letters:
            return Union(pieces)
    return relation


def _are_letters(value: Value) -> bool:
    parts = value.parts if isinstance(value, Tuple) else (value,)
    return all(map(letter_of, parts))


def _interval(relation: Relation) -> Tuple | None:
    r"""The interval that ``<`` and ``<=`` leave to a letter; None if there is none."""
    sides, signs = relation.sides, relation.signs
    if len(signs) > 2 or not all(sign in _BRACKETS for sign in signs):
        return None
    frames = [_BRACKETS[sign] for sign in signs]
    if len(signs) == 2:
        low, letter, high, opens, closes = *sides, frames[0][0], frames[1][1]
    elif letter_of(sides[0]):
        low, letter, high, opens, closes = MINUS_INFINITY, *sides, "(", frames[0][1]
    else:
        low, letter, high, opens, closes = *sides, INFINITY, frames[0][0], ")"
    name = letter_of(letter)
    if not name or not all(_is_end(end, name) for end in (low, high)):
        return None
    return Tuple((low, high), opens + closes, name)


def _is_end(value: Value, letter: str) -> bool:
    if isinstance(value, Expression):
        return letter not in value.letters and letter not in ("e", "i")
    return not isinstance(value, Relation | Set | Union)


def united(members: tuple[Value, ...], *, has_or: bool, has_and: bool) -> Value | None:
    """What several inequalities leave to their letters; None if they are members of a list."""
    inequalities = [member for member in members if _is_inequality(member)]
    if len(members) < 2 or not inequalities:
        return None
    if has_or:
        return _pieces(members)
    if len(inequalities) < len(members):
        return None
    intervals = [member for member in members if isinstance(member, Tuple)]
    letters = {interval.letter for interval in intervals}
    if len(intervals) < len(members) or len(letters) > 1:
        return Union(members, r"\cap") if has_and and len(letters) < 2 else _lettered(members)
    return Union(members, r"\cap" if has_and else ",")


def _lettered(members: tuple[Value, ...]) -> Set:
    return Set(tuple(Tuple((Words(getattr(each, "letter", "")), each)) for each in members))


def _is_inequality(value: Value) -> bool:
    if isinstance(value, Relation):
        return not _INEQUALITIES.isdisjoint(value.signs)
    return isinstance(value, Tuple) and bool(value.letter)


def _pieces(members: tuple[Value, ...]) -> Value | None:
    """One of them holds: ``x = 0`` or ``1 < x``; of different letters they are no union."""
    letters, pieces = set[str](), list[Value]()
    for member in members:
        if isinstance(member, Relation) and member.signs == ("=",) and letter_of(member.sides[0]):
            letters.add(letter_of(member.sides[0]))
            pieces.append(Set((member.sides[1],)))
        else:
            letters |= {member.letter} if isinstance(member, Tuple) else set()
            pieces.append(member)
    return Union(tuple(pieces)) if len(letters) < 2 else Expression(None, repr(members))
