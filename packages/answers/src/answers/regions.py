r"""Relations and lists of inequalities as intervals and their unions."""

from __future__ import annotations

from answers.nodes import Node
from answers.scalars import get_letter
from answers.values import (
    Expression,
    Number,
    Relation,
    Set,
    Tuple,
    Union,
    Value,
    Words,
)

INFINITY = Expression(Node("infinity"), r"\infty")
MINUS_INFINITY = Expression(Node("negative", (Node("infinity"),)), r"-\infty")
_FLIPPED = {">": "<", ">=": "<="}
_ORDERS = frozenset({"<", "<="})
_INEQUALITIES = _ORDERS | {"!="}


def read_relation(relation: Relation) -> Value:
    r"""Read an interval, the set after ``x \in``, or the relation with all its signs upwards."""
    sides = relation.sides
    signs = relation.signs
    name = sides[0]
    names = name.parts if isinstance(name, Tuple) else (name,)
    if signs == (r"\in",) and all(map(get_letter, names)):
        region = sides[1]
        if isinstance(region, Tuple):
            return Tuple(region.parts, region.brackets, get_letter(name))
        if isinstance(region, Words):
            return relation
        return region
    if all(sign in _FLIPPED for sign in signs):
        flipped = [_FLIPPED[sign] for sign in reversed(signs)]
        signs = tuple(flipped)
        sides = sides[::-1]
        relation = Relation(sides, signs, relation.texts[::-1])
    if signs == ("!=",) and get_letter(sides[0]):
        gap = sides[1]
        below = Tuple((MINUS_INFINITY, gap))
        above = Tuple((gap, INFINITY))
        if _is_constant(gap):
            return Union((below, above))
    return _read_interval(relation) or relation


def _is_constant(value: Value) -> bool:
    if isinstance(value, Expression):
        return not value.letters
    return isinstance(value, Number)


def _read_interval(relation: Relation) -> Tuple | None:
    sides = relation.sides
    signs = relation.signs
    if len(signs) > 2 or not _ORDERS.issuperset(signs):
        return None
    opens = "[" if signs[:1] == ("<=",) else "("
    closes = "]" if signs[-1:] == ("<=",) else ")"
    if len(signs) == 1 and get_letter(sides[0]):
        sides = (MINUS_INFINITY, *sides)
        opens = "("
    elif len(signs) == 1:
        sides = (*sides, INFINITY)
        closes = ")"
    low, letter, high = sides
    name = get_letter(letter)
    if name and _is_end(low, name) and _is_end(high, name):
        return Tuple((low, high), opens + closes, name)
    return None


def _is_end(value: Value, letter: str) -> bool:
    if isinstance(value, Expression):
        return letter not in value.letters and letter not in ("e", "i")
    return not isinstance(value, Relation | Set | Union)


def join_inequalities(members: tuple[Value, ...], *, has_or: bool, has_and: bool) -> Value | None:
    """Join a list of which some members are inequalities; None for other lists."""
    num_inequalities = sum(map(_is_inequality, members))
    if len(members) < 2 or not num_inequalities:
        return None
    if has_or:
        return _unite(members)
    if num_inequalities < len(members):
        return None
    intervals = [member for member in members if isinstance(member, Tuple)]
    letters = {interval.letter for interval in intervals}
    if len(letters) == 1 and len(intervals) == len(members):
        return Union(members, r"\cap" if has_and else ",")
    if has_and and len(letters) < 2:
        return Union(members, r"\cap")
    return Set(tuple(map(_label, members)))


def _label(inequality: Value) -> Tuple:
    """Pair an inequality with its letter."""
    letter = inequality.letter if isinstance(inequality, Tuple) else ""
    return Tuple((Words(letter), inequality))


def _is_inequality(value: Value) -> bool:
    if isinstance(value, Relation):
        return not _INEQUALITIES.isdisjoint(value.signs)
    return isinstance(value, Tuple) and bool(value.letter)


def _unite(members: tuple[Value, ...]) -> Value:
    """Unite ``x = 0`` and ``1 < x``; members with different letters are no union."""
    letters = set[str]()
    pieces = list[Value]()
    for member in members:
        letter = member.letter if isinstance(member, Tuple) else None
        if isinstance(member, Relation) and member.signs == ("=",):
            letter = get_letter(member.sides[0]) or None
            member = Set((member.sides[1],)) if letter else member
        pieces.append(member)
        if letter is not None:
            letters.add(letter)
    if len(letters) < 2:
        return Union(tuple(pieces))
    return Expression(None, repr(members))
