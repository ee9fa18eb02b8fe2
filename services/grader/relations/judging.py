"""Is a relation right? Only what is surely wrong is called wrong; in doubt there is no verdict.

Numbers alone are decided exactly, or by intervals of 60 digits. An equation with letters is right
if it holds for all their values, which is tried out at random points, and else *open*: a
definition, a condition, a question. Runs in a worker of the pool only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import islice
from random import Random

from services.grader.relations.clauses import Relation, relations
from services.grader.relations.reading import Node, read
from services.grader.relations.reals import E, NoValue, Value, compare
from services.grader.relations.tokens import STAR
from services.grader.relations.values import Way, value, ways

RIGHT, WRONG, OPEN = "right", "wrong", "open"

_POINTS, _MAX_POINTS = 6, 24  # at which an identity must hold, and that are tried
_BEYOND = 2  # units of the last place by which an approximation is surely wrong
_NEAR = Fraction(1, 10)  # a share by which it must be off too, if it is computed from decimals
_CLOSE = Fraction(1, 1000)  # a share by which rounded decimals may spoil an equation
_LARGE = 100  # an integer from here on may be rounded
_UNJUDGED = (ValueError, ArithmeticError, NotImplementedError)  # of reading, values and mpmath
_TYPICAL = r"$\frac{1}{2}\sqrt{8} = \sqrt{2} \approx 1.41$ and $\sin 30^\circ + x = x + 2^{-1}$"


def judge(text: str, start: int, stop: int) -> list[tuple[str, str]]:
    """Text and verdict of every relation from number ``start`` to before ``stop`` that has one."""
    chosen = islice(relations(text), start, stop)
    judged = ((relation.text, verdict(relation)) for relation in chosen)
    return [(written, found) for written, found in judged if found is not None]


def count(text: str) -> int:
    """How many relations there are to judge."""
    return sum(1 for _ in relations(text))


def warm_up() -> None:
    """Load and compute a little of everything, so that forked workers begin warm."""
    judge(_TYPICAL, 0, 10)


def verdict(relation: Relation) -> str | None:
    """`RIGHT`, `WRONG`, `OPEN`, or None if it says nothing or cannot be decided."""
    if relation.left.text == relation.right.text:
        return None
    try:
        return _verdict(relation)
    except _UNJUDGED:
        return None


def _verdict(relation: Relation) -> str | None:
    left, right = read(relation.left.tokens), read(relation.right.tokens)
    modulus = read(relation.modulus.tokens) if relation.modulus else None
    if _letters([left, right, *([modulus] if modulus else [])]):
        return (
            RIGHT if relation.sign in {"=", "==="} and _is_identity(relation, left, right) else OPEN
        )
    if modulus:
        return _congruence(relation, left, right, modulus)
    if left.is_literal and right.is_literal:
        return None
    found = _in_some_way(_holds(relation.sign, left, right, way) for way in ways([left, right]))
    return None if found == WRONG and _is_excused(relation, left, right) else found


def _letters(trees: Iterable[Node]) -> set[str]:
    return {node.letter for tree in trees for node in tree.walk() if node.kind == "letter"}


def _in_some_way(outcomes: Iterator[bool | None]) -> str | None:
    """Right if it is in one way to read it, wrong if it is in all."""
    seen = set[bool | None]()
    for outcome in outcomes:
        if outcome:
            return RIGHT
        seen.add(outcome)
    return WRONG if seen == {False} else None


def _holds(sign: str, left: Node, right: Node, way: Way) -> bool | None:
    try:
        sides = value(left, way, {}), value(right, way, {})
    except _UNJUDGED:
        return None
    if sign == "~~":
        return _is_near(left, right, way, *sides)
    order = compare(*sides)
    if order is None or sign == "===":
        return True if order == 0 else None
    return {
        "=": order == 0,
        "!=": order != 0,
        "<": order < 0,
        ">": order > 0,
        "<=": order <= 0,
        ">=": order >= 0,
    }[sign]


def _is_near(left: Node, right: Node, way: Way, a: Value, b: Value) -> bool | None:
    """Whether the difference is within the rounding of the coarser side; None if just beyond."""
    units = [_unit(side, way) for side in (left, right) if side.is_literal]
    if not units:
        return True if compare(a, b) == 0 else None
    unit = max(units)
    away = abs(_difference(a, b))
    if compare(away, unit / 2) in {-1, 0}:
        return True
    computed = (side for side in (left, right) if not side.is_literal)
    has_decimals = any(node.places for side in computed for node in side.walk())
    far = compare(away, unit * _BEYOND) == 1
    far = far and (not has_decimals or compare(away, _NEAR * abs(b)) == 1)
    return False if far else None


def _is_excused(relation: Relation, left: Node, right: Node) -> bool:
    """Whether what looks wrong may mean something else than what was read."""
    sides = (relation.left, relation.right)
    defined = any(token.text == STAR for side in sides for token in side.tokens)
    of_something = ("%" in relation.left.text) != ("%" in relation.right.text)
    doubtful = any(side.doubtful for side in sides)
    return defined or of_something or doubtful or _is_rounded(relation, left, right)


def _is_rounded(relation: Relation, left: Node, right: Node) -> bool:
    """Whether "=" is written where decimals are near: ``\\sqrt{2} = 1.414``."""
    if relation.sign != "=":
        return False
    way = next(ways([left, right]))
    a, b = value(left, way, {}), value(right, way, {})
    away = abs(_difference(a, b))
    shown = [_unit(side, way) for side in (left, right) if side.is_literal and _is_rounding(side)]
    if shown:
        return not _is_whole(away, max(shown)) and compare(away, max(shown)) == -1
    has_decimals = any(node.places for side in (left, right) for node in side.walk())
    return has_decimals and compare(away, _CLOSE * abs(b)) == -1


def _is_whole(away: Value, unit: Fraction) -> bool:
    """Whether the sides differ by whole units: then nothing was rounded away."""
    return isinstance(away, Fraction) and (away / unit).denominator == 1


def _is_rounding(literal: Node) -> bool:
    """Decimals, or an integer of three digits or more."""
    number = next(node for node in literal.walk() if node.kind == "number")
    return bool(number.places) or number.number >= _LARGE


def _difference(a: Value, b: Value) -> Value:
    exact = isinstance(a, Fraction) and isinstance(b, Fraction)
    return a - b if exact else value(_MINUS, Way(), {"a": a, "b": b})


_MINUS = Node("-", (Node("letter", letter="a"), Node("letter", letter="b")))


def _unit(literal: Node, way: Way) -> Fraction:
    """The worth of the last place that is shown; zeros at the end of an integer may be rounding."""
    [number] = [node for node in literal.walk() if node.kind == "number"]
    digits = str(number.number.numerator)
    zeros = len(digits) - len(digits.rstrip("0")) if not number.places and number.number else 0
    hundredth = way.percent_is_hundredth and any(n.kind == "percent" for n in literal.walk())
    return Fraction(10) ** (zeros - number.places) / (100 if hundredth else 1)


def _congruence(relation: Relation, left: Node, right: Node, modulus: Node) -> str | None:
    sides = [value(side, Way(), {}) for side in (left, right, modulus)]
    if not all(isinstance(side, Fraction) and side.denominator == 1 for side in sides):
        raise NoValue("no congruence of integers")
    if sides[2] <= 0:
        raise NoValue("a modulus that is not positive")
    if (sides[0] - sides[1]) % sides[2] == 0:
        return RIGHT if relation.sign in {"=", "==="} else None
    return WRONG if relation.sign == "===" else None


def _is_identity(relation: Relation, left: Node, right: Node) -> bool:
    if relation.modulus:
        return False
    names = sorted(_letters([left, right]))
    if names == ["e"] and _agree([left, right], Way(), {"e": E}):
        return True
    return any(_agrees_everywhere(left, right, names, way) for way in ways([left, right]))


def _agrees_everywhere(left: Node, right: Node, names: list[str], way: Way) -> bool:
    """Whether the sides are equal at the first points where both have a value."""
    chance, equal = Random(0), 0
    whole = any(node.kind in {"factorial", "binomial"} for node in (*left.walk(), *right.walk()))
    for number in range(_MAX_POINTS):
        point: dict[str, Value] = {name: _coordinate(chance, number, whole) for name in names}
        agree = _agree([left, right], way, point)
        if agree is False:
            return False
        equal += bool(agree)
        if equal == _POINTS:
            return True
    return False


def _coordinate(chance: Random, number: int, whole: bool) -> Fraction:
    """Positive and negative, large and small, or whole numbers from 3 to 12."""
    if whole:
        return Fraction(chance.randint(3, 12))
    size = Fraction(chance.randint(1, 97), (101, 7, 31)[number % 3])
    return -size if chance.random() < 0.4 and number % 4 else size


def _agree(sides: list[Node], way: Way, point: dict[str, Value]) -> bool | None:
    try:
        left, right = (value(side, way, point) for side in sides)
    except _UNJUDGED:
        return None
    order = compare(left, right)
    return None if order is None else order == 0
