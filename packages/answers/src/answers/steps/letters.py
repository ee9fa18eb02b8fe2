r"""Equations with letters that are surely wrong: they cannot hold, or follow from no other.

Wrong are ``x + 3 = x + 4``; in a chain, ``= (x - 2)(x + 2) = x^2 - 5``; ``2x = 6, so x = 4``;
``2x + 1 = 7, so 2x = 8``; and another number than the answer in the last box. In the pool only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from random import Random

from answers.nodes import Node
from answers.steps import OPEN, RIGHT, WRONG
from answers.steps.evaluation import E, NoValue, Value, compare, number, values
from answers.steps.judging import Judged, coordinate, holds

_POINTS = range(5)
_NEAR = 160  # characters between a value and the equations that it may solve
_LAST = 20  # equations, of which no more stand so near
_NEXT = 50  # between an equation and what follows from it
_FOLLOWS = re.compile(
    r"(?i)\b(?:so|thus|hence|therefore|giv(?:es?|ing)|gets?|ha(?:ve|s)|implies|means|find|yields?"
    r"|obtain|simplif\w*)\b|\\implies|\\(?:[Ll]ong)?[Rr]ightarrow|⇒|→|\\to\b|\\\\"
)
_TURNS = re.compile(
    r"(?i)\b(?:if|when|case|suppose|let|otherwise|unless|for|or|and|assume|but|setting|at)\b"
)
_CASE = re.compile(r"(?i)\b(?:if|when|case|suppose|assume)\b[^.]*\Z")
_CALLS = frozenset({"function", "floor", "ceiling"})
_PLAIN = re.compile(r"-?[0-9,]*\.?[0-9]+")
_FAR = 0.1  # the share by which an answer is another, and not rounded


class _Equation:
    def __init__(self, judged: Judged) -> None:
        self.judged = judged
        self.relation, self.trees = judged.relation, judged.trees
        self.names = [
            {node.letter for node in side.walk() if node.kind == "letter"} for side in self.trees
        ]
        self.letters = set[str]().union(*self.names)

    @property
    def is_value(self) -> bool:
        return self.trees[0].kind == "letter" and not self.names[1]

    @cached_property
    def line(self) -> tuple[Value, Value] | None:
        """``a`` and ``b`` of a linear ``ax + b = 0``; None if it is none, or may be rounded."""
        (letter,) = self.letters
        if any(node.places for side in self.trees for node in side.walk()):
            return None
        try:
            f = [_differences(self.trees, {letter: number(x), "e": E})[0] for x in (2, 3, 5)]
        except NoValue:
            return None
        slope = f[1] - f[0]
        is_line = compare(slope, 0) != 0 and compare(f[2] - f[1], 2 * slope) == 0
        return (slope, f[0] - 2 * slope) if is_line else None


def refuted(found: Sequence[Judged], text: str, answer: str) -> Iterator[Judged]:
    """The steps, with those as wrong that are so by the other steps or the answer."""
    earlier, box = list[_Equation](), text.rfind(r"\boxed")
    for last, each, behind in zip([None, *found], found, [*found[1:], None], strict=False):
        is_next = last is not None and last.relation.right is each.relation.left
        is_alone = not is_next and (not behind or behind.relation.left is not each.relation.right)
        note = _other_answer(each, text, answer, box)
        if not note and _is_equation(each, text):
            one = _Equation(each)
            near = [other for other in earlier[-_LAST:] if other.letters == one.letters]
            is_directly = bool(near) and near[-1].judged is last
            note = _contradiction(one, text, is_chained=is_next)
            note = note or (_not_a_consequence(one, near, text) if is_directly else "")
            if is_alone and len(one.letters) == 1 and not one.is_value and not _calls(one):
                earlier.append(one)
        yield each._replace(step=each.step._replace(verdict=WRONG, note=note)) if note else each


def _is_equation(each: Judged, text: str) -> bool:
    if not each.trees or each.step.verdict not in {OPEN, RIGHT}:
        return False
    relation = each.relation
    says_it = relation.sign == "=" and relation.modulus is None and not relation.is_doubtful(text)
    return says_it and any(node.kind == "letter" for side in each.trees for node in side.walk())


def _calls(each: _Equation) -> bool:
    """Whether a letter stands before brackets alone, as the name of a function does."""
    sides = each.relation.left, each.relation.right
    followed = [pair for side in sides for pair in zip(side, [*side[1:], None], strict=True)]
    behind = {token.text: set[bool]() for token, _ in followed if token.kind == "letters"}
    for token, after in followed:
        if token.text in behind:
            behind[token.text].add(after is not None and after.text == "(")
    return {True} in behind.values() or any(
        node.kind in _CALLS for side in each.trees for node in side.walk()
    )


def _contradiction(each: _Equation, text: str, *, is_chained: bool) -> str:
    """Why its sides are equal for no values of the letters, or not for all where they should be."""
    relation = each.relation
    names, kinds = each.names, {side.kind for side in each.trees}
    is_case = _CASE.search(text[max(0, relation.start - _NEXT) : relation.start])
    if each.judged.step.verdict != OPEN or names[0] != names[1] or is_case or _calls(each):
        return ""
    if "letter" in kinds:  # n = n + 1 may count
        return ""
    chance = Random(1)
    try:
        apart = [_differences(each.trees, _point(names[0], chance)) for _ in _POINTS]
    except NoValue:
        return ""
    if any(compare(difference, 0) == 0 for differences in apart for difference in differences):
        return ""
    if all(compare(differences[0], apart[0][0]) == 0 for differences in apart):
        return f"the sides differ by {abs(float(apart[0][0])):.10g}"
    is_rewritten = any(token.text == "(" for token in (*relation.left, *relation.right))
    is_identity = is_chained and is_rewritten and "number" not in kinds and len(names[0]) == 1
    return "the sides differ" if is_identity else ""


def _point(names: set[str], chance: Random) -> dict[str, Value]:
    return {name: coordinate(chance, whole=False) for name in sorted(names)} | {"e": E}


def _differences(sides: Sequence[Node], point: dict[str, Value]) -> list[Value]:
    return [a - b for a, b in product(*(values(side, point) for side in sides))]


def _not_a_consequence(each: _Equation, before: Sequence[_Equation], text: str) -> str:
    """Why it does not follow from the equations in its one letter that stand closely before it."""
    start = each.relation.start
    near = [one for one in before if start - one.relation.end < _NEAR]
    gap = text[near[-1].relation.end : start] if near else ""
    follows = len(gap) < _NEXT and _FOLLOWS.search(gap) and not _TURNS.search(gap)
    if not near or not follows or "\n\n" in text[near[0].relation.end : start]:
        return ""
    if each.is_value:
        solves = any(_may_solve(each.trees[1], one) for one in near)
        return "" if solves else "it solves no equation before it"
    line, lines = each.line, [one.line for one in near]
    if not line or not lines[-1] or any(other and _is_same(line, other) for other in lines):
        return ""
    return "its solution is another than before"


def _may_solve(solution: Node, equation: _Equation) -> bool:
    (letter,) = equation.letters
    try:
        points = [{letter: value, "e": E} for value in values(solution, {"e": E})]
        sides = [[values(side, point) for side in equation.trees] for point in points]
    except NoValue:
        return True
    pairs = [pair for both in sides for pair in product(*both)]
    return any(holds("=", equation.trees, pair) is not False for pair in pairs)


def _is_same(one: tuple[Value, Value], other: tuple[Value, Value]) -> bool:
    return compare(one[0] * other[1], one[1] * other[0]) == 0


def _other_answer(each: Judged, text: str, answer: str, box: int) -> str:
    """Why it does not end in the answer, where the text ends with it; plain numbers alone."""
    if not each.relation.left[-1].end < box < each.relation.end or each.step.verdict == WRONG:
        return ""
    boxed = text[each.relation.right[0].start : each.relation.end]
    texts = [part.strip(" ${}").replace(r"\!", "") for part in (boxed, answer)]
    if not all(map(_PLAIN.fullmatch, texts)):
        return ""
    got, wanted = (float(part.replace(",", "")) for part in texts)
    is_other = abs(got - wanted) > _FAR * max(abs(got), abs(wanted))
    return f"the answer is {texts[1]}" if is_other else ""
