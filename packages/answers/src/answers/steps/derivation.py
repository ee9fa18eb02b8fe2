"""Which steps belong to the derivation of the answer, and how much of one they are.

A step is *grounded* if each number that it computes with is the problem's, an earlier result, or a
constant such as 60. The derivation is the steps that lead to the answer, found backwards from it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice, product
from typing import NamedTuple

from answers.boxes import last_boxed
from answers.nodes import Node, rebuild
from answers.steps import RIGHT, WRONG, Derivation, Step
from answers.steps.evaluation import evaluate
from answers.steps.judging import Judged, judge_text
from answers.steps.quantities import (
    compute_share,
    find_match,
    get_key,
    read_changes,
    read_goals,
    read_plain_numbers,
)
from answers.steps.refutation import refute
from answers.tokens import lexicon

_WARM_UP = r"$\frac{1}{2}\sqrt{8} = \sqrt{2} \approx 1.41$ and $\sin 30^\circ + x = x + 2^{-1}$"
# Constants that a solution may use as factors: days, months, hours, minutes, units of measure.
_CONSTANT_FACTORS = frozenset({1, 2, 3, 4, 5, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000})
_CONSTANT_TERMS = frozenset({12, 24, 60})
_FACTORS = lexicon("* / fraction ^ root mixed slash percent binomial")
_SUMS = frozenset({"+", "-"})
_WHOLES = frozenset({1, 100})  # of which a share is taken, as in 1 - 0.2
_MAX_READINGS = 8
_SAME_CHANGE = 0.01  # rounding alone may make changes differ by this share
_UNGROUNDED, _UNKNOWN, _GROUNDED = range(3)
# A text derives the answer if it has more than this share of the solution's results or of the
# numbers that the solution uses: there are many ways to an answer.
_ENOUGH = 0.66
# Without a solution this share of the problem's numbers is enough: a problem may have idle ones.
_ENOUGH_WITHOUT_SOLUTION = 0.49
# A step on the way that is not grounded leaves this share.
_UNGROUNDED_SHARE = 0.25
# One right step in this number must be in the derivation, or the steps are sums of all kinds.
_MAX_STEPS_PER_USED = 4


class _Link(NamedTuple):
    """A step, the numbers it computes with and results in, and the earlier links that it needs.

    ``changes`` are the factors by which its results change with the numbers of the problem, in each
    reading; there are none if any will do.
    """

    judged: Judged
    status: int
    operands: tuple[float, ...] = ()
    results: tuple[float, ...] = ()
    needs: tuple[int, ...] = ()
    changes: tuple[float, ...] = ()


def warm_up() -> None:
    derive(_WARM_UP, _WARM_UP, _WARM_UP, "1", 10)


def derive(text: str, problem: str, solution: str, answer: str, max_steps: int) -> Derivation:
    """Return how far a text derives the answer from the problem, compared with a solution if given.

    With other numbers in the problem, other results would follow. A derivation is worth 1 if the
    answer, or enough of the solution's results, would then be as the solution's, else their share.
    It is worth less with each step that is wrong, or on its way but not grounded. Splitting steps
    gains nothing.
    """
    changes = read_changes(problem)
    numbers = set(changes)
    if not solution:
        changes = {}
    reference = _Chain(solution, numbers, changes, answer, max_steps)
    operands = {number for link in reference.links for number in link.operands}
    results = {number for link in reference.links if link.judged.sides for number in link.results}
    numbers = numbers | (operands - results)
    goals = read_goals(answer) or read_goals(last_boxed(text) or "")
    required = results - numbers - goals
    chain = _Chain(text, numbers, changes, answer, max_steps)
    if solution:
        used_numbers = operands & numbers
        solution_changes = _merge_changes(reference.links)
        changes = {number: solution_changes.get(number, []) for number in required | goals}
    else:
        used_numbers = read_plain_numbers(problem)
        changes = {}
    low, path = chain.rate(goals, required, used_numbers, changes)
    steps = [link.judged.step for link in chain.links]
    size = len(required) + 1
    num_wrong = _count(steps, WRONG)
    low *= size / (size + num_wrong)
    is_open = bool(steps) and _may_be_derivation(chain, reference, goals)
    high = 1.0 if is_open and not num_wrong else low
    used = [at in path for at in range(len(steps))]
    return Derivation(steps, used, size if results else 0, low, high)


def _count(steps: Sequence[Step], verdict: str) -> int:
    """Count the different steps with a verdict."""
    return len({step.identity for step in steps if step.verdict == verdict})


def _may_be_derivation(chain: _Chain, reference: _Chain, goals: set[float]) -> bool:
    """Return whether open steps may lead to the answer."""
    if not goals:
        return True
    is_reference_open = not reference.links or reference.is_open()
    if is_reference_open and chain.is_open():
        return True
    path = chain.find_path(goals, is_sure=False)
    return chain.is_open(path)


class _Chain:
    """The links of a text, in order, and for each number the last link of the best status."""

    def __init__(
        self,
        text: str,
        numbers: set[float],
        changes: Mapping[float, float],
        answer: str,
        max_steps: int,
    ) -> None:
        self.links = list[_Link]()
        self._numbers = numbers
        self._changes = changes
        self._makers = dict[float, int]()
        steps = judge_text(text, max_steps)
        for at, judged in enumerate(refute(steps, text, answer)):
            link = self._read_link(judged)
            self.links.append(link)
            for number in link.results:
                maker = self._makers.setdefault(number, at)
                if self.links[maker].status <= link.status:
                    self._makers[number] = at

    def is_open(self, path: Iterable[int] | None = None) -> bool:
        places = range(len(self.links)) if path is None else path
        links = [self.links[at] for at in places]
        return any(link.status == _UNKNOWN and link.results for link in links)

    def rate(
        self,
        goals: set[float],
        required: set[float],
        used_numbers: set[float],
        changes: Mapping[float, Sequence[float]],
    ) -> tuple[float, set[int]]:
        """Return the worth if open steps are worth nothing and no step is wrong, and the path."""
        goal_path = self.find_path(goals)
        path = goal_path or self.find_path(required)
        links = [self.links[at] for at in path]
        num_gaps = sum(link.status == _UNGROUNDED for link in links)
        if num_gaps == len(links):
            return 0.0, set()
        own_changes = _merge_changes(links)
        pairs = dict[float, tuple[Sequence[float], Sequence[float]]]()
        for number, expected in changes.items():
            match = find_match(own_changes, number) or number
            pairs[number] = (own_changes.get(match, (0.0,)), expected)
        derived = {number for number, pair in pairs.items() if _is_same_change(*pair)}
        worth = compute_share(required, required & derived) if required else 0.0
        if goal_path:
            operands = {number for link in links for number in link.operands}
            share = compute_share(used_numbers, operands)
            is_derived = share > (_ENOUGH if changes else _ENOUGH_WITHOUT_SOLUTION)
            compared_goals = goals & pairs.keys()
            if any(all(pairs[goal]) for goal in compared_goals):
                is_derived = bool(goals & derived)
            worth = max(worth, 1.0 if is_derived else share / 2)
        if goals and not goal_path:
            worth /= 2
        elif worth > _ENOUGH:
            worth = 1.0
        steps = [link.judged.step for link in self.links]
        num_right = max(1, _count(steps, RIGHT))
        density = min(1.0, _MAX_STEPS_PER_USED * len(path) / num_right)
        return worth * _UNGROUNDED_SHARE**num_gaps * density, path

    def find_path(self, goals: Iterable[float], *, is_sure: bool = True) -> set[int]:
        """Return the links that lead to the goals; a sure path has no open link."""
        makers = [self._find_maker(goal) for goal in goals]
        stack = [maker for maker in makers if maker is not None]
        path = set[int]()
        while stack:
            at = stack.pop()
            link = self.links[at]
            is_unsure = is_sure and link.status == _UNKNOWN
            if at not in path and not is_unsure and link.judged.step.verdict != WRONG:
                path.add(at)
                stack += link.needs
        return path

    def _find_maker(self, number: float) -> int | None:
        """Return the link that results in a number."""
        match = find_match(self._makers, number)
        if match is None:
            return None
        return self._makers[match]

    def _read_link(self, judged: Judged) -> _Link:
        computed = [side for side in judged.sides if not side.is_literal]
        if not computed:
            claims = tuple(map(get_key, judged.claims))
            return _Link(judged, _UNKNOWN, results=claims)
        results = tuple(map(get_key, judged.values))
        if judged.step.verdict == WRONG:
            return _Link(judged, _UNGROUNDED, results=results[-1:])
        links = [self._ground(judged, side, results) for side in computed]
        link = max(links, key=operator.attrgetter("status"))
        last = self.links[-1] if self.links else link
        is_chained = last.judged.relation.right_side is judged.relation.left_side
        if is_chained and last.status > link.status:
            needs = (len(self.links) - 1,)
            return _Link(judged, last.status, (), results, needs, last.changes)
        return link

    def _ground(self, judged: Judged, side: Node, results: tuple[float, ...]) -> _Link:
        """Return the step as far as the numbers of a side ground it; constants need no source."""
        operands = dict(_find_operands(side))
        sources = dict[float, tuple[int, int | None]]()
        for number, may_be_constant in operands.items():
            status, maker = self._find_source(number)
            if status != _UNGROUNDED or not may_be_constant:
                sources[number] = (status, maker)
        constants = operands.keys() - sources.keys() - _WHOLES
        is_grounded = 0 < len(sources) >= len(constants)
        status = _UNGROUNDED
        if is_grounded:
            status = min(status for status, _ in sources.values())
        makers = [maker for _, maker in sources.values()]
        needs = tuple(maker for maker in makers if maker is not None)
        is_changing = self._changes and status == _GROUNDED
        changes = self._change_side(side) if is_changing else ()
        return _Link(judged, status, tuple(sources), results, needs, changes)

    def _change_side(self, side: Node) -> tuple[float, ...]:
        """Return the factors by which a side changes, as its numbers have one source or another.

        A factor is 0 if the side has no value.
        """
        nodes = reversed([*side.walk()])
        numbers = [node.number for node in nodes if node.kind == "number"]
        options = [self._change_number(get_key(number)) for number in numbers]
        changes = list[float]()
        for factors in islice(product(*options), _MAX_READINGS):
            changed = map(operator.mul, numbers, map(Fraction, factors))
            try:
                after = evaluate(_replace_numbers(side, changed))[0]
                changes.append(float(after / evaluate(side)[0]))
            except ArithmeticError:
                changes.append(0.0)
        return tuple(changes)

    def _change_number(self, number: float) -> list[float]:
        maker = self._find_maker(number)
        changes = list[float]()
        if maker is not None:
            changes += self.links[maker].changes
        match = find_match(self._changes, number)
        if match is not None:
            changes.append(self._changes[match])
        elif maker is None or find_match(self._numbers, number) is not None:
            changes.append(1.0)
        return changes

    def _find_source(self, number: float) -> tuple[int, int | None]:
        """Return the status of a number, and the link that it comes from."""
        maker = self._find_maker(number)
        status = _UNGROUNDED if maker is None else self.links[maker].status
        if find_match(self._numbers, number) is not None:
            return _GROUNDED, maker if status == _GROUNDED else None
        if maker is None:
            return _UNGROUNDED, None
        return status or _GROUNDED, maker


def _find_operands(tree: Node, parent: str = "") -> Iterator[tuple[float, bool]]:
    """Yield the numbers in a tree, and whether each may be a constant.

    The 1 or 100 from which a share is taken, as in ``1 - 0.2``, is left out.
    """
    if tree.kind == "number":
        inverse = 1 / tree.number if tree.number else 0
        is_constant = not _CONSTANT_FACTORS.isdisjoint({tree.number, inverse})
        is_factor = is_constant and parent in _FACTORS
        yield get_key(tree.number), is_factor or tree.number in _CONSTANT_TERMS
    kind = parent if tree.kind in {"negative", "grouped"} else tree.kind
    parts = tree.parts
    if kind in _SUMS and parts[0].number in _WHOLES:
        parts = parts[1:]
    for part in parts:
        yield from _find_operands(part, kind)


def _replace_numbers(tree: Node, numbers: Iterator[Fraction]) -> Node:
    """Replace the numbers of a tree, from its last to its first."""

    def replace_number(node: Node) -> Node:
        if node.kind == "number":
            return replace(node, number=next(numbers))
        return node

    return rebuild(tree, replace_number)


def _merge_changes(links: Iterable[_Link]) -> dict[float, list[float]]:
    changes = dict[float, list[float]]()
    for link in links:
        for number in link.results:
            changes.setdefault(number, []).extend(link.changes)
    return changes


def _is_same_change(changes: Sequence[float], expected: Sequence[float]) -> bool:
    """Return whether some changes are the same; any will do if one of both has none."""
    if not changes or not expected:
        return True
    pairs = product(changes, expected)
    return any(math.isclose(change, other, rel_tol=_SAME_CHANGE) for change, other in pairs)
