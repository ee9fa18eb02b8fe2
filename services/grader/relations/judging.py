"""Is a relation right? Only what is surely wrong is called wrong; in doubt there is no verdict.

Numbers alone are decided exactly, or by intervals of 60 digits. An equation with letters is right
if it holds for all their values, wrong if for none, and else *open*: a definition, a condition, a
question. Runs in a worker of the pool only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

from services.grader.answers.units import conversions_of
from services.grader.relations.chains import Relation
from services.grader.relations.clauses import relations
from services.grader.relations.effort import WORK, Effort
from services.grader.relations.identities import UNDEFINED, is_identity, is_impossible
from services.grader.relations.nodes import Node
from services.grader.relations.notation import Notation, notations, sample
from services.grader.relations.reading import read
from services.grader.relations.reals import NoValue, Value, compare, shown, times
from services.grader.relations.sameness import identity, is_reordered
from services.grader.relations.tokens import STAR
from services.grader.relations.values import Way, is_percentage, value, ways

RIGHT, WRONG, OPEN = "right", "wrong", "open"

_BEYOND = 2  # units of the last place by which an approximation is surely wrong
_NEAR = Fraction(1, 10)  # a share by which it must be off too, if it is computed from decimals
_ROUGH = Fraction(1, 20)  # a share by which an approximation may be off
_CLOSE = Fraction(1, 1000)  # a share by which rounded decimals may spoil an equation
_CONVERTED = Fraction(1, 200)  # a share by which conversions may be rounded
_LARGE = 100  # an integer from here on may be rounded
_TYPICAL = r"$\frac{1}{2}\sqrt{8} = \sqrt{2} \approx 1.41$ and $\sin 30^\circ + x = x + 2^{-1}$"


class Judged(NamedTuple):
    """A relation as written, its verdict, and what all ways to write the same have in common.

    It stands from ``start`` to before ``end`` in the text; ``note`` has the values that differ.
    """

    text: str
    verdict: str
    identity: str
    start: int
    end: int
    note: str


def judge(
    text: str, start: int, stop: int, problem: str = "", notation: int | None = None
) -> list[Judged]:
    """Every relation from number ``start`` to before ``stop`` that has a verdict.

    In another ``notation`` than the `chosen` one the numbers of relations may not be the same.
    """
    read_in = notations(text, problem)[chosen(text, problem) if notation is None else notation]
    return list(_judged(islice(relations(text, read_in), start, stop), Effort()))


def _judged(found: Iterable[Relation], effort: Effort) -> Iterator[Judged]:
    judged = (_judge(relation, effort) for relation in found)
    return (each for each in judged if each is not None)


def places(text: str, problem: str, notation: int) -> list[tuple[int, int]]:
    """Where the relations stand that there are to judge."""
    return [each.place for each in relations(text, notations(text, problem)[notation])]


def chosen(text: str, problem: str = "") -> int:
    """The number of the notation in which least is wrong, then most right, in a sample of it."""
    read_in = notations(text, problem)
    if len(read_in) == 1:
        return 0
    tried = sample(text)
    work = WORK // (4 * len(read_in))
    ranks = [_rank(tried, notation, Effort(work)) for notation in read_in]
    return ranks.index(min(ranks))


def _rank(text: str, notation: Notation, effort: Effort) -> tuple[int, int]:
    verdicts = [each.verdict for each in _judged(relations(text, notation), effort)]
    return verdicts.count(WRONG), -verdicts.count(RIGHT)


def warm_up() -> None:
    """Load and compute a little of everything, so that forked workers begin warm."""
    judge(_TYPICAL, 0, 10)


def _judge(relation: Relation, effort: Effort) -> Judged | None:
    """The relation with its verdict; None if it says nothing or cannot be decided."""
    try:
        left, right = read(relation.left.tokens), read(relation.right.tokens)
        has_letters = bool(_letters([left, right]))
        is_affordable = effort.suffices(left, right, has_letters=has_letters)
        verdict = _verdict(relation, left, right) if is_affordable else OPEN
    except UNDEFINED:
        return None
    if verdict is None or (verdict != WRONG and is_reordered(left, right)):
        return None
    is_plain = not has_letters and relation.modulus is None
    note = _note(left, right) if verdict == WRONG and is_plain else ""
    return Judged(relation.text, verdict, identity(relation, left, right), *relation.place, note)


def _note(left: Node, right: Node) -> str:
    """The values of two sides that differ, if that shows in the digits that fit."""
    try:
        a, b = (shown(value(side, Way(), {})) for side in (left, right))
    except UNDEFINED:
        return ""
    return f"left {a}, right {b}" if a != b else ""


def _verdict(relation: Relation, left: Node, right: Node) -> str | None:
    modulus = read(relation.modulus.tokens) if relation.modulus else None
    if names := sorted(_letters([left, right, *([modulus] if modulus else [])])):
        return OPEN if modulus else _with_letters(relation, left, right, names)
    if modulus:
        return _congruence(relation, left, right, modulus)
    if left.is_literal and right.is_literal:
        return None
    found = _in_some_way(_holds(relation.sign, left, right, way) for way in ways([left, right]))
    return None if found == WRONG and _is_excused(relation, left, right) else found


def _with_letters(relation: Relation, left: Node, right: Node, names: list[str]) -> str:
    if relation.sign not in {"=", "==="}:
        return OPEN
    if is_identity(left, right, names):
        return RIGHT
    doubts = (relation.left.doubtful, relation.right.doubtful, relation.is_supposed)
    is_sure = relation.sign == "=" and not any(doubts)
    return WRONG if is_sure and is_impossible(left, right, names) else OPEN


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
    except UNDEFINED:
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
        return True if compare(away, times(_ROUGH, abs(b))) in {-1, 0} else None
    computed = (side for side in (left, right) if not side.is_literal)
    has_decimals = any(node.places for side in computed for node in side.walk())
    far = compare(away, unit * _BEYOND) == 1
    far = far and (not has_decimals or compare(away, times(_NEAR, abs(b))) == 1)
    return False if far else None


def _is_excused(relation: Relation, left: Node, right: Node) -> bool:
    """Whether what looks wrong may mean something else than what was read."""
    sides = (relation.left, relation.right)
    defined = any(token.text == STAR for side in sides for token in side.tokens)
    if defined or any(side.doubtful for side in sides) or _is_share(left, right):
        return True
    return any(
        (relation.unit is not None and _is_converted(left, right, relation.unit, way))
        or ((relation.is_rough or relation.unit) and _is_whole_rounding(left, right, way))
        or (relation.sign == "=" and _is_rounded(left, right, way))
        for way in ways([left, right])
    )


def _is_share(left: Node, right: Node) -> bool:
    """Whether a number is said to be per cent of something: ``48 = 100\\% + 20\\%``."""
    literal, other = (left, right) if left.is_literal else (right, left)
    return not is_percentage(literal) and literal.is_literal and is_percentage(other)


def _is_converted(left: Node, right: Node, unit: str, way: Way) -> bool:
    """Whether the sides are as far apart as a unit is from another: ``3 \\cdot 20 = 1`` hour."""
    a, b = (abs(value(side, way, {})) for side in (left, right))
    return any(
        compare(_difference(a, times(b, ratio)), times(_CONVERTED, a)) == -1
        and compare(_difference(times(b, ratio), a), times(_CONVERTED, a)) == -1
        for ratio in conversions_of(unit)
    )


def _is_whole_rounding(left: Node, right: Node, way: Way) -> bool:
    """Whether a side may be the other one rounded to a whole number, up or down."""
    a, b = value(left, way, {}), value(right, way, {})
    is_whole = any(isinstance(side, Fraction) and side.denominator == 1 for side in (a, b))
    return is_whole and compare(abs(_difference(a, b)), Fraction(1)) == -1


def _is_rounded(left: Node, right: Node, way: Way) -> bool:
    """Whether "=" is written where decimals are near: ``\\sqrt{2} = 1.414``."""
    a, b = value(left, way, {}), value(right, way, {})
    away = abs(_difference(a, b))
    shown = [_unit(side, way) for side in (left, right) if side.is_literal and _is_rounding(side)]
    if shown:
        finest = min(*shown, Fraction(1))  # zeros at the end round no sum of integers
        return not _is_whole(away, finest) and compare(away, max(shown)) == -1
    has_decimals = any(node.places for side in (left, right) for node in side.walk())
    return has_decimals and compare(away, times(_CLOSE, abs(b))) == -1


def _is_whole(away: Value, unit: Fraction) -> bool:
    """Whether the sides differ by whole units: then nothing was rounded away."""
    return isinstance(away, Fraction) and (away / unit).denominator == 1


def _is_rounding(literal: Node) -> bool:
    """Decimals, percentages, or an integer of three digits or more."""
    number = next(node for node in literal.walk() if node.kind == "number")
    return bool(number.places) or number.number >= _LARGE or is_percentage(literal)


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
    if sides[2] <= 1:
        raise NoValue("a modulus that says nothing, or that is not positive")
    if (sides[0] - sides[1]) % sides[2] == 0:
        return RIGHT if relation.sign in {"=", "==="} else None
    return WRONG if relation.sign == "===" else None
