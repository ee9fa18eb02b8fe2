"""Which steps belong to the derivation of the answer, and how much of one they are.

A step is *grounded* if each number that it computes with is of the problem, an earlier result, or a
constant such as 60. Those that lead to the answer, found backwards from it, are its derivation.
Numbers are compared by nine digits, without signs, and as hundredths. In the pool only.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import islice, pairwise, product
from random import Random
from typing import NamedTuple

from answers.boxes import last_boxed
from answers.grammar import read_expression
from answers.nodes import Node, Unreadable, rebuild
from answers.steps import RIGHT, WRONG, Derivation
from answers.steps.evaluation import NoValue, Value, values
from answers.steps.judging import Judged, judged
from answers.steps.letters import refuted

_TYPICAL = r"$\frac{1}{2}\sqrt{8} = \sqrt{2} \approx 1.41$ and $\sin 30^\circ + x = x + 2^{-1}$"
_NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?|\.\d+)(\s?\\?%|\s?percent)?(?:\s?/\s?(\d+))?")
_NAMES = """1 one once single another first; 2 two twice half halves double doubled doubles pair
both couple second; 3 three third thirds thrice triple tripled; 4 four quarter quarters fourth
fourths; 5 five fifth fifths nickel nickels; 6 six sixth; 7 seven seventh; 8 eight eighth eighths;
9 nine ninth; 10 ten tenth decade dime dimes; 11 eleven; 12 twelve dozen dozens; 13 thirteen;
14 fourteen; 15 fifteen; 16 sixteen; 17 seventeen; 18 eighteen; 19 nineteen; 20 twenty; 30 thirty;
40 forty; 50 fifty; 60 sixty; 70 seventy; 80 eighty; 90 ninety; 100 hundred; 1000 thousand"""
_NAMED = {
    name: float(number) for number, *names in map(str.split, _NAMES.split(";")) for name in names
}
_CONSTANTS = frozenset({1, 2, 3, 4, 5, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000})  # as factors
_TERMS = frozenset({12, 24, 60})  # and as terms
_FACTORS = frozenset({"*", "/", "fraction", "^", "root", "mixed", "slash", "percent", "binomial"})
_FIXED = frozenset({0, 1, 2, 100})  # as ``1 - 0.2``, a square, half: no change of the problem's
_MAX_READINGS = 8
_SAME_CHANGE = 0.01  # up to which two changes differ by rounding alone
_UNGROUNDED, _UNKNOWN, _GROUNDED = range(3)
_ENOUGH = 0.66  # of the solution's results, or of its given numbers: there are many ways
_HALF = 0.49  # and without a solution, of the problem's
_GAP = 0.25  # what a step on the way that is not grounded leaves
_LEAST = 4  # the derivation is at least one of so many right steps, or they are all sorts of things


class _Link(NamedTuple):
    """A step: the numbers it computes with and results in, and the earlier links that it needs.

    ``changes`` are the factors by which its results change with the numbers of the problem, in two
    readings; none where any will do.
    """

    judged: Judged
    status: int
    operands: tuple[float, ...] = ()
    results: tuple[float, ...] = ()
    needs: tuple[int, ...] = ()
    changes: tuple[float, ...] = ()


def warm_up() -> None:
    derive(_TYPICAL, _TYPICAL, _TYPICAL, "1", 10)


def derive(text: str, problem: str, solution: str, answer: str, most: int) -> Derivation:
    """How far a text derives the answer from the problem, held against a solution if there is one.

    With other numbers in the problem, other results would follow. It is worth 1 if the answer, or
    enough of the solution's results, would then be as the solution's, else their share; less with
    each step that is wrong, or on its way but not grounded. Splitting gains nothing.
    """
    moves = _moves_of(problem)
    known = set(moves)
    moving = moves if solution else {}
    reference = _Links(solution, known, moving, answer, most)
    results = {n for link in reference.links if link.judged.sides for n in link.results}
    operands = {n for link in reference.links for n in link.operands}
    known = known | (operands - results)
    goals = _values_of(answer) or _values_of(last_boxed(text) or "")
    asked = results - known - goals
    found = _Links(text, known, moving, answer, most)
    theirs = _merge_changes(reference.links)
    changes = {n: theirs.get(n, ()) for n in asked | goals} if solution else {}
    given = operands & known if solution else _plain_numbers_of(problem)
    low, path = found.worth(goals, asked, given, changes)
    steps, size = [link.judged.step for link in found.links], len(asked) + 1
    wrong = len({step.identity for step in steps if step.verdict == WRONG})
    low *= size / (size + wrong)
    may_follow = not goals or (found.is_open() and (not reference.links or reference.is_open()))
    is_open = bool(steps) and (may_follow or found.is_open(found.path(goals, sure=False)))
    high = 1.0 if is_open and not wrong else low
    used = [at in path for at in range(len(steps))]
    return Derivation(steps, used, size if results else 0, low, high)


class _Links:
    def __init__(
        self, text: str, known: set[float], moving: Mapping[float, float], answer: str, most: int
    ) -> None:
        self.links = list[_Link]()
        self._known = known
        self._moving = moving
        self._makers = dict[float, int]()  # of each number, the last link of the best status
        for at, each in enumerate(refuted(judged(text, most), text, answer)):
            self.links.append(link := self._linked(each))
            for number in link.results:
                if self.links[self._makers.setdefault(number, at)].status <= link.status:
                    self._makers[number] = at

    def is_open(self, among: Iterable[int] | None = None) -> bool:
        links = self.links if among is None else [self.links[at] for at in among]
        return any(link.status == _UNKNOWN and link.results for link in links)

    def worth(
        self,
        goals: set[float],
        asked: set[float],
        given: set[float],
        changes: Mapping[float, Sequence[float]],
    ) -> tuple[float, set[int]]:
        """The value, if what cannot be judged is worth nothing and nothing is wrong; the path."""
        way = self.path(goals)
        path = way or self.path(asked)
        links = [self.links[at] for at in path]
        gaps = sum(link.status == _UNGROUNDED for link in links)
        if gaps == len(links):
            return 0.0, set()
        results = _merge_changes(links)
        pairs = {n: (results.get(_match(results, n) or n, (0.0,)), changes[n]) for n in changes}
        same = {n for n, pair in pairs.items() if _is_same_change(*pair)}
        part = _share(asked, asked & same) if asked else 0.0
        if way:
            whole = _share(given, {n for link in links for n in link.operands})
            is_compared = any(all(pairs[n]) for n in goals & pairs.keys())
            is_whole = goals & same if is_compared else whole > (_ENOUGH if changes else _HALF)
            part = max(part, 1.0 if is_whole else whole / 2)
        if goals and not way:
            part /= 2
        elif part > _ENOUGH:
            part = 1.0
        steps = [link.judged.step for link in self.links]
        right = len({step.identity for step in steps if step.verdict == RIGHT})
        return part * _GAP**gaps * min(1.0, _LEAST * len(path) / max(1, right)), path

    def path(self, goals: Iterable[float], *, sure: bool = True) -> set[int]:
        """The links that lead to the goals; where it must be sure, over none that is open."""
        made = [n for goal in goals if (n := _match(self._makers, goal)) is not None]
        waiting, path = [self._makers[n] for n in made], set[int]()
        while waiting:
            link = self.links[at := waiting.pop()]
            is_unsure = sure and link.status == _UNKNOWN
            if at not in path and not is_unsure and link.judged.step.verdict != WRONG:
                path.add(at)
                waiting += link.needs
        return path

    def changes(self, number: float) -> tuple[float, ...] | None:
        """Those of an earlier result, None where it is none."""
        made = _match(self._makers, number)
        return None if made is None else self.links[self._makers[made]].changes

    def _linked(self, each: Judged) -> _Link:
        computed = [side for side in each.sides if not side.is_literal]
        if not computed:
            return _Link(each, _UNKNOWN, results=tuple(map(_key, each.claims)))
        results = tuple(map(_key, each.values))
        if each.step.verdict == WRONG:
            return _Link(each, _UNGROUNDED, results=results[-1:])
        grounded = (self._grounded(each, side, results) for side in computed)
        link = max(grounded, key=operator.attrgetter("status"))
        last = self.links[-1] if self.links else link
        if last.status > link.status and last.judged.relation.right is each.relation.left:
            return _Link(each, last.status, (), results, (len(self.links) - 1,), last.changes)
        return link

    def _grounded(self, each: Judged, side: Node, results: tuple[float, ...]) -> _Link:
        """The step as far as the numbers of a side ground it; constants need no others."""
        found = {n: (self._source(n), is_free) for n, is_free in self._operands(side)}
        sources = {n: source for n, (source, is_free) in found.items() if source[0] or not is_free}
        constants = found.keys() - {*sources, 1, 100}
        is_enough = 0 < len(sources) >= len(constants)
        status = min(status for status, _ in sources.values()) if is_enough else _UNGROUNDED
        needs = tuple(at for _, at in sources.values() if at is not None)
        changes = self._side_changes(side) if self._moving and status == _GROUNDED else ()
        return _Link(each, status, tuple(sources), results, needs, changes)

    def _side_changes(self, side: Node) -> tuple[float, ...]:
        """Its factors, as each number may be the problem's or an earlier result; 0 for no value."""
        numbers = [node.number for node in reversed([*side.walk()]) if node.kind == "number"]
        options = [self._number_changes(_key(number)) for number in numbers]
        changes = list[float]()
        for factors in islice(product(*options), _MAX_READINGS):
            others = map(operator.mul, numbers, map(Fraction, factors))
            try:
                after = values(rebuild(side, partial(_with_next, others)), {})[0]
                changes.append(float(after / values(side, {})[0]))
            except ArithmeticError:
                changes.append(0.0)
        return tuple(changes)

    def _number_changes(self, number: float) -> list[float]:
        made, moving = self.changes(number), _match(self._moving, number)
        changes = list(made or ())
        if moving is not None:
            changes.append(self._moving[moving])
        elif made is None or _match(self._known, number) is not None:
            changes.append(1.0)
        return changes

    def _operands(self, tree: Node, parent: str = "") -> Iterator[tuple[float, bool]]:
        """The numbers in a tree, and whether each may be a constant: a factor, or ``1 - 0.2``."""
        if tree.kind == "number":
            is_factor = not _CONSTANTS.isdisjoint({tree.number, tree.number and 1 / tree.number})
            yield _key(tree.number), (is_factor and parent in _FACTORS) or tree.number in _TERMS
        kind = parent if tree.kind in {"negative", "grouped"} else tree.kind
        is_rest = kind in {"+", "-"} and tree.parts[0].number in {1, 100}
        for part in tree.parts[1 if is_rest else 0 :]:
            yield from self._operands(part, kind)

    def _source(self, number: float) -> tuple[int, int | None]:
        made = _match(self._makers, number)
        at = None if made is None else self._makers[made]
        status = _UNGROUNDED if at is None else self.links[at].status
        if _match(self._known, number) is not None:
            return _GROUNDED, at if status == _GROUNDED else None
        return (_UNGROUNDED if at is None else status or _GROUNDED), at


def _moves_of(problem: str) -> dict[float, float]:
    """The numbers of a problem, in digits or words, with the factors by which they move.

    Of percentages and fractions the rest, too, which moves with them.
    """
    numbers = list[float]()
    rests = dict[float, float]()
    for digits, percent, bottom in _NUMBER.findall(problem):
        number = float(digits.replace(",", ""))
        numbers.append(number)
        if percent:
            rests |= {100 - number: 100 - _moved(number), 100 + number: 100 + _moved(number)}
        if bottom:
            numbers.append(float(bottom))
            rests[float(bottom) - number] = _moved(float(bottom)) - _moved(number)
    named = [_NAMED.get(word, 0.0) for word in re.findall("[a-z]+", problem.lower())]
    numbers += [*filter(None, named), *(a + b for a, b in pairwise(named) if a >= 20 > b > 0)]
    others = {**rests, **{number: _moved(number) for number in numbers}}
    return {_key(number): other / number if number else 1.0 for number, other in others.items()}


def _moved(number: float) -> float:
    return number if number in _FIXED else number * Random(number).uniform(1.1, 1.5)


def _plain_numbers_of(problem: str) -> set[float]:
    """Those in digits that are no percentages and no part of a fraction."""
    found = _NUMBER.findall(problem)
    return {_key(float(digits.replace(",", ""))) for digits, *rest in found if not any(rest)}


def _with_next(numbers: Iterator[Fraction], node: Node) -> Node:
    return replace(node, number=next(numbers)) if node.kind == "number" else node


def _merge_changes(links: Iterable[_Link]) -> dict[float, list[float]]:
    found = dict[float, list[float]]()
    for link in links:
        for number in link.results:
            found.setdefault(number, []).extend(link.changes)
    return found


def _is_same_change(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    alike = (math.isclose(a, b, rel_tol=_SAME_CHANGE) for a, b in product(ours, theirs))
    return not ours or not theirs or any(alike)


def _values_of(answer: str) -> set[float]:
    found = set[float]()
    for part in answer.replace(r"\$", "").split(", "):
        numbers = {_key(float(digits.replace(",", ""))) for digits, _, _ in _NUMBER.findall(part)}
        try:
            found.add(_key(values(read_expression(part), {})[0]))
            found |= numbers if re.search("pi|sqrt", part) else set()
        except KeyError:  # a formula
            continue
        except (Unreadable, NoValue):
            found |= numbers if len(numbers) == 1 else set()
    return found


def _key(number: Value) -> float:
    return float(f"{abs(float(number)):.9g}")


def _match(found: Collection[float], number: float) -> float | None:
    """The number as it is found, or a hundredth or a hundred of it if either is no integer."""
    if number in found:
        return number
    others = (_key(number * 100), _key(number / 100))
    is_whole = number.is_integer()
    return next((n for n in others if n in found and not (is_whole and n.is_integer())), None)


def _share(asked: Collection[float], found: Collection[float]) -> float:
    return sum(_match(found, n) is not None for n in asked) / len(asked) if asked else 1.0
