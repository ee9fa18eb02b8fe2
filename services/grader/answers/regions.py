r"""Relations as what they leave to a letter: ``1 < x \le 2`` is an interval."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from services.grader.answers.estimates import estimate
from services.grader.answers.nodes import Node
from services.grader.answers.values import (
    Conditions,
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
        return Union(members, r"\cap") if has_and and len(letters) < 2 else _conditions(members)
    if common := _intersection(intervals):
        return common
    return Union(members, r"\cap" if has_and else r"\cup")


def _conditions(members: tuple[Value, ...]) -> Conditions:
    return Conditions(members, tuple(getattr(member, "letter", "") for member in members))


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


def _intersection(intervals: Sequence[Tuple]) -> Tuple | None:
    """What several of one letter have in common; None if that is empty or cannot be told."""
    low = _tightest([(each.parts[0], each.brackets[0]) for each in intervals], sign=1)
    high = _tightest([(each.parts[1], each.brackets[1]) for each in intervals], sign=-1)
    if low is None or high is None:
        return None
    least, most = _size(low[0]), _size(high[0])
    if least is not None and most is not None and least >= most:
        is_point = least == most and (low[1], high[1]) == ("[", "]")
        return Tuple((low[0], high[0]), "[]", intervals[0].letter) if is_point else None
    return Tuple((low[0], high[0]), low[1] + high[1], intervals[0].letter)


def _tightest(ends: list[tuple[Value, str]], *, sign: int) -> tuple[Value, str] | None:
    """The largest of lower ends (``sign`` 1), the smallest of upper ones (-1)."""
    finite = [end for end in ends if end[0] not in (INFINITY, MINUS_INFINITY)]
    if len(finite) < 2:
        return finite[0] if finite else ends[0]
    ranked = [(_size(end), bracket in "()", (end, bracket)) for end, bracket in finite]
    if any(value is None for value, _, _ in ranked):
        return None
    return max(ranked, key=lambda each: (sign * (each[0] or Decimal(0)), each[1]))[2]


def _size(value: Value) -> Decimal | None:
    if value in (INFINITY, MINUS_INFINITY):
        return Decimal("Infinity" if value == INFINITY else "-Infinity")
    if not isinstance(value, Number | Expression) or value.tree is None:
        return None
    return None if isinstance(value, Expression) and value.letters else estimate(value.tree)
