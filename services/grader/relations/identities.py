"""Equations with letters that hold for all values, or for none; tried out at random points."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from services.grader.relations.nodes import Node
from services.grader.relations.reals import E, NoValue, Value, compare
from services.grader.relations.values import Way, value, ways

Point = dict[str, Value]

_POINTS, _MAX_POINTS = 6, 24  # at which an identity must hold, and that are tried
MAX_TRIALS = 2 * _MAX_POINTS  # of one equation in one way
UNDEFINED = (ValueError, ArithmeticError, NotImplementedError)  # of reading, values and mpmath


def is_identity(left: Node, right: Node, names: list[str]) -> bool:
    """Whether the sides are equal whatever the letters are, in some way to read them."""
    if names == ["e"] and _distances(left, right, [{"e": E}], Way()) == [0]:
        return True
    points = _points(left, right, names)
    return any(_distance(left, right, points, way) == 0 for way in ways([left, right]))


def is_impossible(left: Node, right: Node, names: list[str]) -> bool:
    """Whether the sides differ by the same number whatever the letters are: ``x + 2 = x + 3``.

    Not where it may mean something else: ``n = n + 1`` sets n anew, the index of ``a_n + 1`` may
    go on behind the n, and decimals may be rounded.
    """
    has_decimals = any(node.places for side in (left, right) for node in side.walk())
    if left.kind == "letter" or has_decimals or any("_" in name for name in names):
        return False
    points = _points(left, right, names)
    distances = [_distance(left, right, points, way) for way in ways([left, right])]
    return all(distances)


def _distance(left: Node, right: Node, points: list[Point], way: Way) -> Fraction | None:
    """Left minus right, if it is exactly the same at the first points where both have values."""
    distances = _distances(left, right, points, way)
    is_same = len(distances) == _POINTS and len(set(distances)) == 1
    return distances[0] if is_same else None


def _distances(left: Node, right: Node, points: list[Point], way: Way) -> list[Fraction | None]:
    """Left minus right at points, until they differ; None where it is no exact number."""
    found = list[Fraction | None]()
    for point in points:
        try:
            found.append(_minus(value(left, way, point), value(right, way, point)))
        except UNDEFINED:
            continue
        if len(found) == _POINTS or found[-1] != found[0]:
            break
    return found


def _minus(a: Value, b: Value) -> Fraction | None:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a - b
    order = compare(a, b)
    if order is None:
        raise NoValue("too close to tell")
    return None if order else Fraction(0)


def _points(left: Node, right: Node, names: list[str]) -> list[Point]:
    chance = Random(0)
    whole = any(node.kind in {"factorial", "binomial"} for node in (*left.walk(), *right.walk()))
    return [
        {name: _coordinate(chance, number, whole) for name in names}
        for number in range(_MAX_POINTS)
    ]


def _coordinate(chance: Random, number: int, whole: bool) -> Fraction:
    """Positive and negative, large and small, or whole numbers from 3 to 12."""
    if whole:
        return Fraction(chance.randint(3, 12))
    size = Fraction(chance.randint(1, 97), (101, 7, 31)[number % 3])
    return -size if chance.random() < 0.4 and number % 4 else size
