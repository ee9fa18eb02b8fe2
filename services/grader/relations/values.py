"""The value of a tree, in every way in which the tree can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain, combinations, islice

from services.grader.relations import reals
from services.grader.relations.nodes import Node
from services.grader.relations.reals import Value


@dataclass(frozen=True)
class Way:
    """One way to read what is read in two ways."""

    percent_is_hundredth: bool = True
    degree_is_unit: bool = False  # 180° is 180, and not π
    percent_is_of_before: bool = False  # 80 - 20% is 64
    mixed_is_sum: bool = True
    slash_binds_all: bool = True
    log_is_natural: bool = False
    angle_in_degrees: bool = False  # sin 30


_MAX_WAYS = 8
_WHAT_FORKS = {
    "percent": "percent_is_hundredth",
    "degree": "degree_is_unit",
    "mixed": "mixed_is_sum",
    "slash": "slash_binds_all",
}


def ways(trees: list[Node]) -> Iterator[Way]:
    """The ways to read these trees together; the usual one first, then those most like it."""
    usual, forks = Way(), _all_forks(trees)
    numbers = range(len(forks) + 1)
    changes = chain.from_iterable(combinations(forks, number) for number in numbers)
    for changed in islice(changes, _MAX_WAYS):
        yield replace(usual, **{name: not getattr(usual, name) for name in changed})


def num_ways(trees: list[Node]) -> int:
    """How many ways there are to read these trees together."""
    return min(_MAX_WAYS, 2 ** len(_all_forks(trees)))


def _all_forks(trees: list[Node]) -> list[str]:
    return sorted({name for tree in trees for node in tree.walk() for name in _forks(node)})


def _forks(node: Node) -> Iterator[str]:
    if node.kind in _WHAT_FORKS:
        yield _WHAT_FORKS[node.kind]
    if _adds_percent(node):
        yield "percent_is_of_before"
    if node.kind == "function" and node.letter == "log" and len(node.parts) == 1:
        yield "log_is_natural"
    if node.kind == "function" and node.letter in reals.ANGLED.keys() | reals.ARCS.keys():
        yield "angle_in_degrees"


def is_percentage(node: Node) -> bool:
    """Whether all terms are percentages."""
    if node.kind in {"+", "-", "negative"}:
        return all(map(is_percentage, node.parts))
    return node.kind == "percent"


def _adds_percent(node: Node) -> bool:
    """Whether per cent are added to, or taken off, what is none."""
    is_change = node.kind in {"+", "-"} and node.parts[1].kind == "percent"
    return is_change and not is_percentage(node.parts[0])


def value(tree: Node, way: Way, letters: Mapping[str, Fraction]) -> Value:
    """The value of a tree.

    Raises:
        NoValue: if it is undefined, not real, or too large.
    """
    if tree.kind == "number":
        return tree.number
    if tree.kind == "letter":
        return letters[tree.letter]
    if tree.kind == "pi":
        return reals.PI
    parts = [value(part, way, letters) for part in tree.parts]
    if way.percent_is_of_before and _adds_percent(tree):
        parts[1] = reals.times(*parts)
    return reals.bounded(_operation(tree, way)(*parts))


def _operation(tree: Node, way: Way) -> Callable[..., Value]:
    match tree.kind:
        case "function":
            return partial(_called, tree.letter, way)
        case "percent":
            return reals.percent if way.percent_is_hundredth else reals.itself
        case "degree":
            return reals.itself if way.degree_is_unit else reals.radians
        case "mixed":
            return reals.plus if way.mixed_is_sum else reals.times
        case "slash":
            return reals.over_all if way.slash_binds_all else reals.over_first
    return _OPERATIONS[tree.kind]


def _called(name: str, way: Way, a: Value, *base: Value) -> Value:
    if name in reals.ARCS:
        angle = reals.arc(reals.ARCS[name], a)
        return _degrees(angle) if way.angle_in_degrees else angle
    if name in reals.ANGLED:
        exact_degrees = way.angle_in_degrees and isinstance(a, Fraction)
        return reals.ANGLED[name](reals.radians(a) if exact_degrees else a)
    if name == "exp":
        return reals.exp(a)
    if name == "ln" or (name == "log" and not base and way.log_is_natural):
        return reals.log(a)
    return reals.over(reals.log(a), reals.log(base[0] if base else Fraction(10)))


def _degrees(angle: Value) -> Value:
    return reals.over(reals.times(angle, Fraction(180)), reals.PI)


_OPERATIONS: Mapping[str, Callable[..., Value]] = {
    "+": reals.plus,
    "-": reals.minus,
    "*": reals.times,
    "/": reals.over,
    "fraction": reals.over,
    "negative": reals.negative,
    "numeral": reals.itself,
    "repeating": reals.itself,
    "grouped": reals.itself,
    "absolute": reals.absolute,
    "^": reals.power,
    "root": reals.root,
    "factorial": reals.factorial_of,
    "binomial": reals.binomial,
    "floor": reals.floor,
    "ceiling": reals.ceiling,
}
