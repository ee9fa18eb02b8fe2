"""Is a relation right? Only what is surely wrong is called wrong; in doubt there is no verdict.

Numbers alone are worked out. An equation with letters is right if it holds for all their values,
and else *open*: a definition, a condition, a question. Runs in a worker of the pool only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import NamedTuple

from answers.grammar import read_tree
from answers.nodes import Node, Unreadable
from answers.steps import OPEN, RIGHT, UNREAD, WRONG, Step
from answers.steps.evaluation import E, NoValue, Value, compare, number, values, whole
from answers.steps.finding import Relation, relations

_POINTS, _MAX_POINTS = 6, 24  # at which an identity must hold, and that are tried
_CLOSE, _FAR = 0.005, 0.1  # shares by which rounding may spoil an equation, and surely does not
_ORDERS = {"=": {0}, "!=": {-1, 1}, "<": {-1}, ">": {1}, "<=": {-1, 0}, ">=": {0, 1}}
_ORDERS |= {r"\approx": {0}, r"\equiv": {0}}
_INEXACT = frozenset({"/", "fraction", "root", "^", "slash", "function", "pi"})
_EQUALITIES = {"=", r"\approx", r"\equiv"}
_SYMMETRIC = _EQUALITIES | {"!="}

Sides = tuple[Node, Node]
Pair = tuple[Value, Value]


class Judged(NamedTuple):
    """A step; and of an equation the sides that can be worked out, with their values."""

    step: Step
    relation: Relation
    trees: Sequence[Node] = ()
    sides: Sequence[Node] = ()
    values: Sequence[Value] = ()

    @property
    def claims(self) -> list[Value]:
        """The numbers that stand there, where what is said of them cannot be judged."""
        if self.step.verdict not in {OPEN, UNREAD}:
            return list(self.values)
        pieces = [*self.relation.left, *self.relation.right]
        found = [float(piece.text.replace(",", "")) for piece in pieces if piece.kind == "number"]
        return [*found, *self.values]


def judged(text: str, most: int) -> list[Judged]:
    return [each for relation in relations(text)[:most] if (each := _meant(relation, text))]


def _meant(relation: Relation, text: str) -> Judged | None:
    """None if it says nothing, or looks wrong and is not meant so."""
    unread = Judged(Step(UNREAD, "", relation.start, relation.end), relation)
    try:
        found = _judged(relation)
    except (Unreadable, NoValue):
        return unread
    if found is None or found.step.verdict != WRONG or relation.modulus is not None:
        return found
    return None if relation.is_doubtful(text) else unread if relation.is_loose(text) else found


def _judged(relation: Relation) -> Judged | None:
    sides = read_tree(relation.left), read_tree(relation.right)
    plain = [side for side in sides if all(node.kind != "letter" for node in side.walk())]
    found, note = list[Value](), ""
    if relation.modulus is not None:
        is_open = len(plain) < len(sides)
        verdict = OPEN if is_open else _congruence(relation.sign, relation.modulus, sides)
    elif len(plain) < len(sides):
        is_right = relation.sign in {"=", r"\equiv"} and _is_identity(sides)
        verdict = RIGHT if is_right else OPEN
        found = [values(side, {})[0] for side in plain]
        plain = plain if any(side.kind == "letter" for side in sides) else []
    else:
        verdict, found = _of_numbers(relation.sign, sides)
        note = _note(*found) if verdict == WRONG else ""
        is_far = abs(found[0] - found[1]) > _FAR * max(map(abs, found))
        plain = [] if verdict == OPEN and is_far else plain
    keys = [_key(side) for side in sides]
    if verdict is None or (keys[0] == keys[1] and verdict != WRONG):
        return None
    left, right = sorted(keys) if relation.sign in _SYMMETRIC else keys
    identity = f"{left} {relation.sign} {right} {relation.modulus or ''}"
    step = Step(verdict, identity, relation.start, relation.end, note)
    is_equation = found and relation.sign in _EQUALITIES
    return Judged(step, relation, sides, *((plain, found) if is_equation else ()))


def _key(node: Node) -> str:
    """The same for whatever differs only in spelling, brackets and order."""
    parts = [_key(part) for part in node.parts]
    if node.kind in {"grouped", "plusminus"}:
        return parts[-1]
    if node.kind == "number":
        return str(node.number)
    kind = "/" if node.kind == "fraction" else node.kind
    ordered = sorted(parts) if kind in {"+", "*"} else parts
    return f"{kind}{node.letter}({' '.join(ordered)})"


def _of_numbers(sign: str, sides: Sides) -> tuple[str | None, Pair]:
    """Right if it is in one way to read it, wrong if it is in all; with the values."""
    pairs: list[Pair] = list(product(values(sides[0], {}), values(sides[1], {})))
    outcomes = [holds(sign, sides, pair) for pair in pairs]
    if all(side.is_literal for side in sides):
        return None, pairs[0]
    if True in outcomes:
        return RIGHT, pairs[outcomes.index(True)]
    sums = (node for side in sides for node in side.walk() if node.kind in {"+", "-"})
    is_share = any(part.kind == "percent" for node in sums for part in node.parts)
    return OPEN if None in outcomes or is_share else WRONG, pairs[0]


def _note(a: Value, b: Value) -> str:
    left, right = f"{float(a):.10g}", f"{float(b):.10g}"
    return f"left {left}, right {right}" if left != right else ""


def holds(sign: str, sides: Sequence[Node], pair: Pair) -> bool | None:
    """None where that cannot be told."""
    if compare(*pair) in _ORDERS[sign]:
        return True
    if sign == r"\equiv":
        return None
    if sign not in {"=", r"\approx"}:
        return False
    away = float(abs(pair[0] - pair[1]))
    share = away / float(max(map(abs, pair)))
    is_rounded = any(node.places for side in sides for node in side.walk())
    is_close, is_near = share < _CLOSE, away < 0.9999 * max(map(_last_place, sides))
    if sign == "=":
        divides = any(node.kind in _INEXACT for side in sides for node in side.walk())
        may_round = (is_close or is_rounded) if is_near else is_close and is_rounded and divides
        is_hundredfold = 0 in {compare(100 * pair[0], pair[1]), compare(pair[0], 100 * pair[1])}
        return None if may_round or is_hundredfold else False  # such as cents, and per cent
    if is_close or is_near:
        return True
    return False if share > _FAR or _is_exact(sides) else None


def _is_exact(sides: Sequence[Node]) -> bool:
    """Whether a sum or product of integers stands beside a number that is no estimate in tens."""
    computed = [node for side in sides if not side.is_literal for node in side.walk()]
    plain = [node for side in sides if side.is_literal for node in side.walk()]
    is_inexact = any(node.places or node.kind in _INEXACT for node in computed)
    is_estimate = any(node.kind == "number" and node.number % 10 == 0 for node in plain)
    return not is_inexact and not is_estimate


def _last_place(side: Node) -> float:
    """What one in the last place of a plain number is worth; 0 for what is computed."""
    plain = side.parts[0] if side.kind in {"negative", "percent"} else side
    unit = 0.01 if side.kind == "percent" else 1.0
    return unit * 10.0**-plain.places if plain.kind == "number" else 0.0


def _congruence(sign: str, modulus: int, sides: Sides) -> str | None:
    a, b = (whole(values(side, {})[0]) for side in sides)
    if sign not in {"=", r"\equiv"}:
        return None
    return RIGHT if (a - b) % modulus == 0 else WRONG


def _is_identity(sides: Sides) -> bool:
    """Whether the sides are equal at random points, in some way to read them."""
    chance, held = Random(0), 0
    names = sorted({node.letter for s in sides for node in s.walk() if node.kind == "letter"})
    counts = any(node.kind in {"factorial", "binomial"} for s in sides for node in s.walk())
    for _ in range(_MAX_POINTS):
        point = {name: coordinate(chance, whole=counts) for name in names}
        try:
            left, right = (values(side, point | {"e": E}) for side in sides)
        except NoValue:
            continue
        if not any(compare(*pair) == 0 for pair in product(left, right)):
            return False
        held += 1
        if held == _POINTS:
            return True
    return False


def coordinate(chance: Random, *, whole: bool) -> Value:
    """Positive and negative, large and small, or whole numbers from 3 to 12."""
    if whole:
        return number(chance.randint(3, 12))
    return number(chance.choice([-1, 1, 1]) * chance.randint(1, 97)) / chance.choice([7, 31, 101])
