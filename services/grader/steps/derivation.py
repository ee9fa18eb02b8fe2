"""Which steps belong to the derivation of the answer, and how much of one they are.

A step is *grounded* if each number that it computes with is of the problem, of an earlier step, or
a constant such as 60. Those that lead to the answer, found backwards from it, are its derivation.
Numbers are compared by nine digits, without signs, and as hundredths. In the pool only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from services.grader.answers.boxes import last_boxed
from services.grader.answers.grammar import read_expression
from services.grader.answers.nodes import Node, Unreadable
from services.grader.steps import RIGHT, WRONG, Derivation
from services.grader.steps.judging import Judged, judged
from services.grader.steps.values import NoValue, Value, values

_NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?|\.\d+)(\s?\\?%|\s?percent)?(?:\s?/\s?(\d+))?")
_FREE = frozenset({1, 2, 3, 4, 5, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000})  # as factors
_FACTORS = frozenset({"*", "/", "fraction", "^", "root", "mixed", "slash", "percent", "binomial"})
_IRRATIONAL = frozenset({"pi", "root"})
_NAMES = """1 one once single another first;2 two twice half halves double doubled doubles pair couple
both second;3 three third thirds thrice triple tripled triples;4 four quarter quarters fourth fourths
quadruple;5 five fifth fifths nickel nickels;6 six sixth sixths;7 seven seventh;8 eight eighth eighths;9 nine ninth
10 ten tenth tenths decade dime dimes;12 twelve dozen dozens;11 eleven;13 thirteen;14 fourteen;15 fifteen
16 sixteen;17 seventeen;18 eighteen;19 nineteen;20 twenty;30 thirty;40 forty;50 fifty;60 sixty
70 seventy;80 eighty;90 ninety;100 hundred century penny pennies;1000 thousand"""
_NAMED = {
    name: float(number)
    for number, names in re.findall(r"(\d+)([^\d;]+)", _NAMES)
    for name in names.split()
}
_UNGROUNDED, _UNKNOWN, _GROUNDED = range(3)
_GAP, _LEAST = 0.25, 4
_ENOUGH = 2 / 3  # of the solution's results, or of its given numbers: there are many ways


class _Link(NamedTuple):
    """A step: the numbers it computes with and results in, and the earlier links that it needs."""

    judged: Judged
    status: int
    operands: tuple[float, ...] = ()
    results: tuple[float, ...] = ()
    needs: tuple[int, ...] = ()


def derive(text: str, problem: str, solution: str, answer: str, most: int) -> Derivation:
    """How far a text derives the answer from the problem, held against a solution if there is one.

    The value of a derivation is 1, or the share of the solution that it has, and less with each
    step that is wrong, or on its way but not grounded; never more with more steps.
    """
    known = _numbers_of(problem)
    reference = _Links(solution, known, most)
    results = {n for link in reference.links if link.judged.sides for n in link.results}
    operands = {n for link in reference.links for n in link.operands}
    known |= operands - results
    goals = _values_of(answer) or _values_of(last_boxed(text) or "")
    asked, given = results - known - goals, operands & known
    found = _Links(text, known, most)
    steps = [link.judged.step for link in found.links]
    wrong = len({step.identity for step in steps if step.verdict == WRONG})
    low, path = found.worth(goals, asked, given, wrong, sure=True)
    high, _ = found.worth(goals, asked, given, wrong, sure=False)
    used = [at in path for at in range(len(steps))]
    required = len(asked) + 1 if results else 0
    return Derivation(steps, used, required, low, low if wrong else max(low, high))


class _Links:
    """The steps of a text, each with the earlier ones that made its numbers."""

    def __init__(self, text: str, known: Collection[float], most: int) -> None:
        self.links = list[_Link]()
        self._known = known
        self._makers = dict[float, int]()  # of each number, the first link of the best status
        for each in judged(text, most):
            link = self._linked(each)
            self.links.append(link)
            for number in link.results:
                before = self._makers.get(number)
                if before is None or self.links[before].status < link.status:
                    self._makers[number] = len(self.links) - 1

    def worth(
        self, goals: set[float], asked: set[float], given: set[float], wrong: int, *, sure: bool
    ) -> tuple[float, set[int]]:
        """The value, if what cannot be judged is worth nothing (``sure``) or all, and the path."""
        path = self._path(goals, sure=sure)
        is_reached = bool(path)
        if not (sure or is_reached or not goals):
            return 0.0, path
        path = path or self._path(asked, sure=sure)
        on_way = [self.links[at] for at in path]
        gaps = sum(link.status == _UNGROUNDED for link in on_way)
        if gaps == len(on_way):
            unknown = not (goals or sure) and bool(self.links)
            return float(unknown), set()
        results = {n for link in on_way for n in link.results}
        used = {n for link in on_way for n in link.operands}
        part, whole = (_share(asked, results) if asked else 0.0), _share(given, used)
        if is_reached and (whole > _ENOUGH - 0.01 or any(link.status == _UNKNOWN for link in on_way)):
            part = 1.0
        elif is_reached:
            part = max(part, whole / 2) if asked else whole
        elif goals:
            part *= len(asked) / (len(asked) + 1) / 2
        if (is_reached or not goals) and part > _ENOUGH - 0.01: part = 1.0
        right = {link.judged.step.identity for link in self.links if link.judged.step.verdict == RIGHT}
        part *= min(1.0, _LEAST * len(path) / max(1, len(right)))
        size = len(asked) + 1
        return part * _GAP**gaps * size / (size + wrong), path

    def _path(self, goals: Iterable[float], *, sure: bool) -> set[int]:
        """The links that lead to the goals: of each the last of the best status, and its needs."""
        makers = dict[float, int]()
        for at, link in enumerate(self.links):
            if self._counts(at, sure=sure):
                for number in link.results:
                    before = makers.get(number)
                    if before is None or self.links[before].status <= link.status:
                        makers[number] = at
        waiting = [makers[n] for goal in goals if (n := _match(makers, goal)) is not None]
        path = set[int]()
        while waiting:
            at = waiting.pop()
            if at not in path and self._counts(at, sure=sure):
                path.add(at)
                waiting += self.links[at].needs
        return path

    def _counts(self, at: int, *, sure: bool) -> bool:
        link = self.links[at]
        return link.judged.step.verdict != WRONG and not (sure and link.status == _UNKNOWN)

    def _linked(self, each: Judged) -> _Link:
        last = self.links[-1] if self.links else None
        computed = [side for side in each.sides if not side.is_literal]
        if not computed:
            return _Link(each, _UNKNOWN, results=tuple(map(_key, each.claims)))
        status, operands = max(map(self._grounds, computed), key=lambda grounds: grounds[0])
        results = tuple(map(_key, each.values))
        if each.step.verdict == WRONG:
            results = results[-1:]
        if not each.is_close:
            status = min(status, _UNKNOWN)
        if last and each.continues(last.judged) and last.status > status:
            return _Link(each, last.status, (), results, (len(self.links) - 1,))
        is_split = len(each.sides) > len(computed) and results[0] not in operands
        if status == _UNGROUNDED and is_split and self._status(results[0]):  # 25 = 20 + 5
            return _Link(each, _UNKNOWN, results[:1], operands, self._needs(results[:1]))
        return _Link(each, status, operands, results, self._needs(operands))

    def _grounds(self, side: Node) -> tuple[int, tuple[float, ...]]:
        """How far the numbers of a side are known, and which of them are no mere constants."""
        found = dict(self._operands(side))
        operands = tuple(n for n, is_free in found.items() if not is_free or self._status(n))
        constants = found.keys() - {*operands, 1, 100}
        is_grounded = 0 < len(operands) >= len(constants)
        return min(map(self._status, operands)) if is_grounded else _UNGROUNDED, operands

    def _operands(self, tree: Node, parent: str = "") -> Iterator[tuple[float, bool]]:
        """The numbers in a tree, and whether each may be a constant: a factor, or ``1 - 0.2``."""
        if tree.kind == "number":
            is_constant = tree.number in _FREE or (tree.number and 1 / tree.number in _FREE)
            is_free = (parent in _FACTORS and bool(is_constant)) or tree.number in {12, 24, 60}
            yield _key(float(tree.number)), is_free
            return
        if tree.kind in {"/", "fraction"} and all(part.kind == "number" for part in tree.parts):
            top, bottom = (part.number for part in tree.parts)
            if not (self._status(_key(top)) and self._status(_key(bottom))) and bottom:
                if self._status(_key(top / bottom)):  # a fraction that was made before
                    yield _key(top / bottom), False
                    return
        kind = parent if tree.kind in {"negative", "grouped"} else tree.kind
        for at, part in enumerate(tree.parts):
            is_all = kind in {"+", "-"} and at == 0 and part.kind == "number" and part.number in {1, 100}
            if not is_all:
                yield from self._operands(part, kind)

    def _status(self, number: float) -> int:
        if _match(self._known, number) is not None:
            return _GROUNDED
        maker = _match(self._makers, number)
        if maker is None:
            return _UNGROUNDED
        return _UNKNOWN if self.links[self._makers[maker]].status == _UNKNOWN else _GROUNDED

    def _needs(self, operands: Iterable[float]) -> tuple[int, ...]:
        """The links that made the operands; of what is known, only those that are grounded."""
        made = [(n, self._makers[maker]) for n in operands if (maker := _match(self._makers, n)) is not None]
        return tuple(at for n, at in made if self.links[at].status == _GROUNDED or _match(self._known, n) is None)


def _numbers_of(problem: str) -> set[float]:
    """The numbers of a problem, in digits or words; of percentages and fractions the rest, too."""
    found = set[float]()
    for digits, percent, bottom in _NUMBER.findall(problem):
        number = float(digits.replace(",", ""))
        found |= {number, 100 - number, 100 + number} if percent else {number}
        found |= {float(bottom), float(bottom) - number} if bottom else set()
    words = re.findall("[a-z]+", problem.lower())
    numbers = [_NAMED.get(word, 0.0) for word in words]
    found |= {n for n in numbers if n} | {a + b for a, b in pairwise(numbers) if a >= 20 > b > 0}
    return set(map(_key, found))


def _values_of(answer: str) -> set[float]:
    """The numbers that an answer names."""
    found = set[float]()
    for part in answer.replace(r"\$", "").split(", "):
        try:
            tree = read_expression(part)
            found.add(_key(values(tree, {})[0]))
            if any(node.kind in _IRRATIONAL for node in tree.walk()):
                found |= {_key(float(node.number)) for node in tree.walk() if node.kind == "number"}
        except (Unreadable, NoValue, KeyError):
            numbers = [digits for digits, _, _ in _NUMBER.findall(part)]
            found |= {_key(float(numbers[0].replace(",", "")))} if len(numbers) == 1 else set()
    return found


def _key(number: Value) -> float:
    return float(f"{abs(float(number)):.9g}")


def _match(found: Collection[float], number: float) -> float | None:
    """The number as it is found, or a hundredth or a hundred of it if either is no integer."""
    if number in found:
        return number
    for other in (_key(number * 100), _key(number / 100)):
        if other in found and not (number.is_integer() and other.is_integer()):
            return other
    return None


def _share(asked: Collection[float], found: Collection[float]) -> float:
    return sum(_match(found, n) is not None for n in asked) / len(asked) if asked else 1.0
