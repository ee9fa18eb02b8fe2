"""Whether a relation is right. Only sure errors are called wrong.

Numbers alone are computed. An equation with letters is right if it holds for all their values, and
else *open*: a definition, a condition, a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
from random import Random
from typing import NamedTuple

from answers.grammar import read_tree
from answers.nodes import Node, Unreadable
from answers.steps import OPEN, RIGHT, UNREAD, WRONG, Step
from answers.steps.evaluation import E, NoValue, Value, compare, evaluate, number, to_integer
from answers.steps.relations import Relation, find_relations
from answers.tokens import lexicon

# An identity must hold at this number of points; more are tried if some have no value.
_NUM_POINTS = 6
_MAX_POINTS = 24
# Rounding may change a value by the first share, and surely not by the second.
_CLOSE = 0.005
_FAR = 0.1
# The share of a last place by which a rounded value may be off.
_LAST_PLACE = 0.9999
_ORDERS = {
    "=": {0},
    r"\approx": {0},
    r"\equiv": {0},
    "!=": {-1, 1},
    "<": {-1},
    ">": {1},
    "<=": {-1, 0},
    ">=": {0, 1},
}
_INEXACT = lexicon("/ fraction root ^ slash function pi")
_EQUALITIES = lexicon(r"= \approx \equiv")
_SYMMETRIC = _EQUALITIES | {"!="}
_READ_ERRORS = (Unreadable, NoValue)

Sides = tuple[Node, Node]
Pair = tuple[Value, Value]


class Judged(NamedTuple):
    """A step, its relation, and the trees of both sides.

    Of an equation ``sides`` are those that can be computed, and ``values`` are their values.
    """

    step: Step
    relation: Relation
    trees: Sequence[Node] = ()
    sides: Sequence[Node] = ()
    values: Sequence[Value] = ()

    @property
    def claims(self) -> list[Value]:
        """The values, and the numbers in a relation that cannot be judged."""
        if self.step.verdict not in {OPEN, UNREAD}:
            return list(self.values)
        tokens = [*self.relation.left_side, *self.relation.right_side]
        numbers = [token.text.replace(",", "") for token in tokens if token.kind == "number"]
        return [*map(float, numbers), *self.values]


def judge_text(text: str, max_steps: int) -> list[Judged]:
    """Judge the first relations in a text; leave out those that say nothing."""
    relations = find_relations(text)[:max_steps]
    steps = [_judge_in_text(relation, text) for relation in relations]
    return [step for step in steps if step]


def _judge_in_text(relation: Relation, text: str) -> Judged | None:
    """Judge a relation, unless it looks wrong and is not meant as a claim."""
    step = Step(UNREAD, "", relation.start, relation.end)
    unread = Judged(step, relation)
    try:
        judged = _judge(relation)
    except _READ_ERRORS:
        return unread
    if judged is None or judged.step.verdict != WRONG:
        return judged
    if relation.modulus is not None:
        return judged
    if relation.is_doubtful(text):
        return None
    if relation.is_loose(text):
        return unread
    return judged


def _judge(relation: Relation) -> Judged | None:
    sides = read_tree(relation.left_side), read_tree(relation.right_side)
    plain: list[Node] = [side for side in sides if not side.letters]
    values: Sequence[Value] = ()
    note = ""
    if relation.modulus is not None:
        verdict = _judge_congruence(relation.sign, relation.modulus, sides, len(plain))
    elif len(plain) < len(sides):
        is_right = relation.sign in {"=", r"\equiv"} and _is_identity(sides)
        verdict = RIGHT if is_right else OPEN
        values = [evaluate(side)[0] for side in plain]
        if all(side.kind != "letter" for side in sides):
            plain = []
    else:
        verdict, values = _judge_numbers(relation.sign, sides)
        note = _describe(*values) if verdict == WRONG else ""
        if verdict == OPEN and _are_far(*values):
            plain = []
    keys = [_get_key(side) for side in sides]
    if verdict is None or (keys[0] == keys[1] and verdict != WRONG):
        return None
    if relation.sign in _SYMMETRIC:
        keys.sort()
    identity = f"{keys[0]} {relation.sign} {keys[1]} {relation.modulus or ''}"
    step = Step(verdict, identity, relation.start, relation.end, note)
    if not values or relation.sign not in _EQUALITIES:
        return Judged(step, relation, sides)
    return Judged(step, relation, sides, plain, values)


def walk_sides(sides: Sequence[Node]) -> chain[Node]:
    return chain.from_iterable(side.walk() for side in sides)


def _get_key(node: Node) -> str:
    """Return the same text for trees that differ only in spelling, brackets and order."""
    parts = [_get_key(part) for part in node.parts]
    if node.kind in {"grouped", "plusminus"}:
        return parts[-1]
    if node.kind == "number":
        return str(node.number)
    kind = "/" if node.kind == "fraction" else node.kind
    if kind in {"+", "*"}:
        parts.sort()
    return f"{kind}{node.letter}({' '.join(parts)})"


def _judge_numbers(sign: str, sides: Sides) -> tuple[str | None, Pair]:
    """Return a verdict and the values: right in one reading is right, wrong is wrong in all."""
    pairs: list[Pair] = list(product(*map(evaluate, sides)))
    outcomes = [holds(sign, sides, pair) for pair in pairs]
    if all(side.is_literal for side in sides):
        return None, pairs[0]
    if True in outcomes:
        return RIGHT, pairs[outcomes.index(True)]
    is_open = None in outcomes or _adds_percentage(sides)
    return OPEN if is_open else WRONG, pairs[0]


def _adds_percentage(sides: Sides) -> bool:
    sums = [node for node in walk_sides(sides) if node.kind in {"+", "-"}]
    return any(part.kind == "percent" for node in sums for part in node.parts)


def _are_far(first: Value, second: Value) -> bool:
    return abs(first - second) > _FAR * max(abs(first), abs(second))


def _describe(first: Value, second: Value) -> str:
    digits = f"{float(first):.10g}"
    other_digits = f"{float(second):.10g}"
    return f"left {digits}, right {other_digits}" if digits != other_digits else ""


def holds(sign: str, sides: Sequence[Node], pair: Pair) -> bool | None:
    """Return whether a relation holds between two values; None if that is in doubt."""
    first, second = pair
    if compare(first, second) in _ORDERS[sign]:
        return True
    if sign == r"\equiv":
        return None
    if sign not in {"=", r"\approx"}:
        return False
    difference = float(abs(first - second))
    share = difference / float(max(abs(first), abs(second)))
    is_close = share < _CLOSE
    is_near = difference < _LAST_PLACE * max(map(_last_place, sides))
    if sign == r"\approx":
        if is_close or is_near:
            return True
        if share > _FAR or _is_exact(sides):
            return False
        return None
    is_rounded = any(node.places for node in walk_sides(sides))
    is_inexact = any(node.kind in _INEXACT for node in walk_sides(sides))
    may_be_rounded = is_close and is_rounded and is_inexact
    if is_near:
        may_be_rounded = is_close or is_rounded
    # Cents are hundredths of dollars, and per cents of shares.
    hundredfolds = (compare(100 * first, second), compare(first, 100 * second))
    is_hundredfold = 0 in hundredfolds
    return None if may_be_rounded or is_hundredfold else False


def _is_exact(sides: Sequence[Node]) -> bool:
    """Return whether a sum or product of integers equals a number that is no estimate in tens."""
    computed = walk_sides([side for side in sides if not side.is_literal])
    if any(node.places or node.kind in _INEXACT for node in computed):
        return False
    literal = walk_sides([side for side in sides if side.is_literal])
    return all(node.kind != "number" or node.number % 10 for node in literal)


def _last_place(side: Node) -> float:
    """Return the worth of one in the last place of a plain number, or 0."""
    unit = 0.01 if side.kind == "percent" else 1.0
    plain = side.parts[0] if side.kind in {"negative", "percent"} else side
    if plain.kind == "number":
        return unit * 10.0**-plain.places
    return 0.0


def _judge_congruence(sign: str, modulus: int, sides: Sides, num_plain: int) -> str | None:
    if num_plain < len(sides):
        return OPEN
    first, second = (to_integer(evaluate(side)[0]) for side in sides)
    if sign not in {"=", r"\equiv"}:
        return None
    if (first - second) % modulus == 0:
        return RIGHT
    return WRONG


def _is_identity(sides: Sides) -> bool:
    """Return whether the sides are equal at random points, in some of their readings."""
    chance = Random(0)
    names = sorted(sides[0].letters | sides[1].letters)
    kinds = {node.kind for node in walk_sides(sides)}
    has_counts = not kinds.isdisjoint({"factorial", "binomial"})
    num_points = 0
    for _ in range(_MAX_POINTS):
        point = {name: draw_coordinate(chance, is_whole=has_counts) for name in names}
        point["e"] = E
        try:
            pairs = list(product(*(evaluate(side, point) for side in sides)))
        except NoValue:
            continue
        if not any(compare(*pair) == 0 for pair in pairs):
            return False
        num_points += 1
        if num_points == _NUM_POINTS:
            return True
    return False


def draw_coordinate(chance: Random, *, is_whole: bool) -> Value:
    """Draw a number of either sign, large or small, or a whole number from 3 to 12."""
    if is_whole:
        return number(chance.randint(3, 12))
    sign = chance.choice([-1, 1, 1])
    top = sign * chance.randint(1, 97)
    return number(top) / chance.choice([7, 31, 101])
