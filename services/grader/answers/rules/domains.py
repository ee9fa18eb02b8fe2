r"""What a letter stands for, said behind an answer: ``2^n, n \in \mathbb{N}``."""

from __future__ import annotations

from fractions import Fraction

from services.grader.answers.regions import INFINITY, REALS, letter_of
from services.grader.answers.values import Name, Number, Relation, Set, Tuple, Value, trees_of
from services.grader.answers.verdict import Comparison, Verdict

_COUNTS = frozenset("jklmn")  # letters that stand for whole numbers, if any do; i may be imaginary
_NUMBERS_TO_COUNT_FROM = (Number(Fraction(0)), Number(Fraction(1)))


def domains(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    r"""The answer without what is said of a letter that the gold has too, and says nothing of.

    It may be real, or a whole number if it has a name for it. Of solutions that go both ways, as in
    ``k\pi``, ``k \in \mathbb{N}`` is only a half.
    """
    if not isinstance(answer, Set) or len(answer.parts) != 2 or isinstance(gold, Set):
        return None
    rest, said = answer.parts
    letter, domain = _said(said, is_for=answer.joint == "for")
    kinds = {node.kind for tree in trees_of(rest) for node in tree.walk()}
    is_half = domain == "N" and not kinds.isdisjoint(("pi", "degree"))
    is_usual = domain == "R" or (letter in _COUNTS and domain in ("N", "Z"))
    if not is_usual or is_half or letter not in _letters(gold) & _letters(rest):
        return None
    return by.same(gold, rest)


def _said(value: Value, *, is_for: bool) -> tuple[str, str]:
    r"""The letter and its domain in ``n \in \mathbb{N}`` and ``n \ge 1``."""
    if isinstance(value, Relation) and isinstance(value.sides[-1], Name):
        return letter_of(value.sides[0]), value.sides[-1].name
    if is_for and (letter := letter_of(value)):
        return letter, "R"  # for all x
    if isinstance(value, Tuple) and value == REALS:
        return value.letter, "R"
    if isinstance(value, Tuple) and value.brackets == "[)" and value.parts[1] == INFINITY:
        return value.letter, "N" if value.parts[0] in _NUMBERS_TO_COUNT_FROM else ""
    return "", ""


def _letters(value: Value) -> set[str]:
    trees = trees_of(value)
    return {node.letter for tree in trees for node in tree.walk() if node.kind == "letter"}
