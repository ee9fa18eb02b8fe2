r"""Equations with letters that are surely wrong: they cannot hold, or follow from no other.

Wrong are ``x + 3 = x + 4``; in a chain, ``= (x - 2)(x + 2) = x^2 - 5``; ``2x = 6, so x = 4``;
``2x + 1 = 7, so 2x = 8``; and a number other than the answer in the last box.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from random import Random

from answers.nodes import Node
from answers.steps import OPEN, RIGHT, WRONG
from answers.steps.evaluation import E, NoValue, Value, compare, evaluate, number
from answers.steps.judging import Judged, draw_coordinate, holds, walk_sides

_NUM_POINTS = 5
# Characters between a value and the equations that it may solve; no more equations are that near.
_NEAR_CHARS = 160
_MAX_NEAR = 20
# Characters between an equation and its consequence.
_NEXT_CHARS = 50
_FOLLOWS = re.compile(
    r"""
    \b (?:
      so|thus|hence|therefore|giv(?:es?|ing)|gets?|ha(?:ve|s)|implies|means|find|yields?
      |obtain|simplif\w*
    ) \b
    | \\implies | \\(?:[Ll]ong)?[Rr]ightarrow | ⇒ | → | \\to\b | \\\\
    """,
    re.IGNORECASE | re.VERBOSE,
)
_TURNS = re.compile(
    r"(?i)\b(?:if|when|case|suppose|let|otherwise|unless|for|or|and|assume|but|setting|at)\b"
)
_CASE = re.compile(r"(?i)\b(?:if|when|case|suppose|assume)\b[^.]*\Z")
_FUNCTIONS = frozenset({"function", "floor", "ceiling"})
_PLAIN = re.compile(r"-?[0-9,]*\.?[0-9]+")
# By this share an answer is another one, and not rounded.
_FAR = 0.1


class _Equation:
    def __init__(self, judged: Judged) -> None:
        self.judged = judged
        self.relation = judged.relation
        self.trees = judged.trees
        self.names = [tree.letters for tree in judged.trees]
        self.letters = set[str]().union(*self.names)

    @property
    def is_value(self) -> bool:
        return self.trees[0].kind == "letter" and not self.names[1]

    @property
    def has_calls(self) -> bool:
        """Whether a letter only stands before brackets, as the name of a function does."""
        if any(node.kind in _FUNCTIONS for node in walk_sides(self.trees)):
            return True
        sides = (self.relation.left_side, self.relation.right_side)
        letters = {token.text for side in sides for token in side if token.kind == "letters"}
        is_before_bracket = dict.fromkeys(letters, True)
        for side in sides:
            for token, after in zip(side, [*side[1:], None], strict=True):
                if token.text in letters and (after is None or after.text != "("):
                    is_before_bracket[token.text] = False
        return any(is_before_bracket.values())

    @cached_property
    def line(self) -> tuple[Value, Value] | None:
        """The ``a`` and ``b`` of a linear ``ax + b = 0``; None if it is none, or is rounded."""
        (letter,) = self.letters
        if any(node.places for node in walk_sides(self.trees)):
            return None
        try:
            points = [{letter: number(x)} for x in (2, 3, 5)]
            at_2, at_3, at_5 = (self.subtract(point)[0] for point in points)
        except NoValue:
            return None
        slope = at_3 - at_2
        is_curved = compare(at_5 - at_3, 2 * slope) != 0
        if is_curved or compare(slope, 0) == 0:
            return None
        return slope, at_2 - 2 * slope

    def subtract(self, point: Mapping[str, Value]) -> list[Value]:
        """Return the differences of the sides at a point, one for each pair of readings."""
        values = [evaluate(tree, {**point, "e": E}) for tree in self.trees]
        return [value - other for value, other in product(*values)]


def refute(steps: Sequence[Judged], text: str, answer: str) -> Iterator[Judged]:
    """Yield the steps, of which some are wrong by other steps or by the answer."""
    earlier = list[_Equation]()
    box = text.rfind(r"\boxed")
    for last, judged, following in zip([None, *steps], steps, [*steps[1:], None], strict=False):
        relation = judged.relation
        is_chained = last is not None and last.relation.right_side is relation.left_side
        is_continued = following is not None and following.relation.left_side is relation.right_side
        note = _note_other_answer(judged, text, answer, box)
        if not note and _is_equation(judged, text):
            equation = _Equation(judged)
            near = [other for other in earlier[-_MAX_NEAR:] if other.letters == equation.letters]
            note = _note_contradiction(equation, text, is_chained=is_chained)
            if not note and near and near[-1].judged is last:
                note = _note_wrong_consequence(equation, near, text)
            is_condition = len(equation.letters) == 1 and not equation.is_value
            if is_condition and not is_chained and not is_continued and not equation.has_calls:
                earlier.append(equation)
        if note:
            step = judged.step._replace(verdict=WRONG, note=note)
            judged = judged._replace(step=step)
        yield judged


def _is_equation(judged: Judged, text: str) -> bool:
    if not judged.trees or judged.step.verdict not in {OPEN, RIGHT}:
        return False
    relation = judged.relation
    if relation.sign != "=" or relation.modulus is not None:
        return False
    if relation.is_doubtful(text):
        return False
    return any(tree.letters for tree in judged.trees)


def _note_contradiction(equation: _Equation, text: str, *, is_chained: bool) -> str:
    """Return why the sides never agree, or do not always agree although they should."""
    start = equation.relation.start
    names, other_names = equation.names
    if equation.judged.step.verdict != OPEN or names != other_names:
        return ""
    before = text[max(0, start - _NEXT_CHARS) : start]
    if _CASE.search(before):
        return ""
    kinds = {tree.kind for tree in equation.trees}
    if "letter" in kinds or equation.has_calls:  # n = n + 1 may count
        return ""
    chance = Random(1)
    try:
        differences = [equation.subtract(_draw_point(names, chance)) for _ in range(_NUM_POINTS)]
    except NoValue:
        return ""
    values = [value for readings in differences for value in readings]
    if any(compare(value, 0) == 0 for value in values):
        return ""
    first = differences[0][0]
    if all(compare(readings[0], first) == 0 for readings in differences):
        return f"the sides differ by {abs(float(first)):.10g}"
    tokens = (*equation.relation.left_side, *equation.relation.right_side)
    is_rewritten = any(token.text == "(" for token in tokens)
    is_identity = is_chained and is_rewritten and "number" not in kinds and len(names) == 1
    return "the sides differ" if is_identity else ""


def _draw_point(names: set[str], chance: Random) -> dict[str, Value]:
    return {name: draw_coordinate(chance, is_whole=False) for name in sorted(names)}


def _note_wrong_consequence(equation: _Equation, earlier: Sequence[_Equation], text: str) -> str:
    """Return why an equation does not follow from those in its letter that stand just before it."""
    start = equation.relation.start
    near = [other for other in earlier if start - other.relation.end < _NEAR_CHARS]
    if not near or "\n\n" in text[near[0].relation.end : start]:
        return ""
    gap = text[near[-1].relation.end : start]
    if len(gap) >= _NEXT_CHARS or not _FOLLOWS.search(gap) or _TURNS.search(gap):
        return ""
    if equation.is_value:
        solution = equation.trees[1]
        is_solution = any(_may_solve(solution, other) for other in near)
        return "" if is_solution else "it solves no equation before it"
    line = equation.line
    lines = [other.line for other in near]
    if line is None or lines[-1] is None:
        return ""
    for other in lines:
        if other and _is_same_line(line, other):
            return ""
    return "its solution is another than before"


def _may_solve(solution: Node, equation: _Equation) -> bool:
    (letter,) = equation.letters
    pairs = list[tuple[Value, Value]]()
    try:
        for value in evaluate(solution, {"e": E}):
            point = {letter: value, "e": E}
            pairs += product(*(evaluate(tree, point) for tree in equation.trees))
    except NoValue:
        return True
    return any(holds("=", equation.trees, pair) is not False for pair in pairs)


def _is_same_line(line: tuple[Value, Value], other: tuple[Value, Value]) -> bool:
    slope, constant = line
    other_slope, other_constant = other
    return compare(slope * other_constant, constant * other_slope) == 0


def _note_other_answer(judged: Judged, text: str, answer: str, box: int) -> str:
    """Return why a relation that ends in the last box does not end in the answer."""
    relation = judged.relation
    if judged.step.verdict == WRONG:
        return ""
    if not relation.left_side[-1].end < box < relation.end:
        return ""
    start = relation.right_side[0].start
    boxed = _clean_number(text[start : relation.end])
    answer = _clean_number(answer)
    if not _PLAIN.fullmatch(boxed) or not _PLAIN.fullmatch(answer):
        return ""
    value = float(boxed.replace(",", ""))
    expected = float(answer.replace(",", ""))
    size = max(abs(value), abs(expected))
    is_other = abs(value - expected) > _FAR * size
    return f"the answer is {answer}" if is_other else ""


def _clean_number(text: str) -> str:
    return text.strip(" ${}").replace(r"\!", "")
