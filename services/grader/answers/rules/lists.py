"""Answers of several parts: sets and lists, tuples and intervals, unions, matrices, ratios."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from services.grader.answers.values import (
    CLOCK,
    RATIO,
    Matrix,
    Number,
    Quantity,
    Relation,
    Set,
    Tuple,
    Union,
    Value,
    parts_of,
)
from services.grader.answers.verdict import Comparison, Verdict, all_of, any_of

_MAX_MEMBERS = 64


def ratios(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """``6:8`` and ``3/4`` are ``3:4``; but ``3:30`` is a time, if no ratio is asked for."""
    if not isinstance(gold, Tuple) or gold.brackets not in (RATIO, CLOCK):
        return None
    if isinstance(answer, Relation | Set):
        return None
    is_ratio = isinstance(answer, Tuple) and answer.brackets in (RATIO, CLOCK)
    if gold.brackets == CLOCK and not by.question.asks_ratio:
        return Verdict(is_ratio and _clock(answer) == _clock(gold), "time")
    if isinstance(answer, Quantity) and answer.unit == "%" and isinstance(answer.head, Number):
        answer = Number(answer.head.value / 100)
    if not (is_ratio or isinstance(answer, Number)):
        return None
    shape, other = _shape(gold), _shape(answer)
    return Verdict(shape == other, "ratio") if shape and other else None


def _clock(value: Value) -> tuple[Value, ...]:
    """Without the seconds, where there are none."""
    *parts, last = parts_of(value)
    return tuple(parts) if len(parts) == 2 and last == Number(Fraction(0)) else (*parts, last)


def _shape(value: Value) -> list[Fraction]:
    """The parts of a ratio, the first of which is 1; none if some are 0, or no plain numbers."""
    parts = parts_of(value) or (value, Number(Fraction(1)))
    numbers = [part.value for part in parts if isinstance(part, Number) and part.value]
    return [number / numbers[0] for number in numbers] if len(numbers) == len(parts) else []


def sets(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Each member has its like on the other side; a lone value is a list of its own.

    A list says how often and, where the problem asks for it, in which order.
    """
    if Set not in {type(gold), type(answer)}:
        return None
    if isinstance(gold, Set) and not gold.joint:
        return Verdict(_without_order(gold, answer, by), "set")
    golds, answers = _members(gold), _members(answer)
    if len(golds) != len(answers):
        return Verdict(False, "list")
    if isinstance(gold, Set) and gold.joint == "," and by.question.asks_order:
        pairs = zip(golds, answers, strict=True)
        return Verdict(all_of(by.same(g, a).equal for g, a in pairs), "list")
    return Verdict(_one_to_one(golds, answers, by), "list")


def _one_to_one(golds: Sequence[Value], answers: Sequence[Value], by: Comparison) -> bool | None:
    """Whether each member has a like of its own."""
    alone, strange = list(golds), list(answers)
    for each in golds:
        if each in strange:
            alone.remove(each)
            strange.remove(each)
    if len(alone) > _MAX_MEMBERS // 2:
        return None
    rows = [[by.same(gold, answer).equal for answer in strange] for gold in alone]
    if _can_pair(rows, {True}):
        return True
    return None if _can_pair(rows, {True, None}) else False


def _can_pair(rows: list[list[bool | None]], liked: set[bool | None]) -> bool:
    """Whether each row can have a column of its own that it likes (Kuhn's algorithm)."""
    taken: dict[int, int] = {}

    def finds(row: int, seen: set[int]) -> bool:
        for column, verdict in enumerate(rows[row]):
            if verdict in liked and column not in seen:
                seen.add(column)
                if column not in taken or finds(taken[column], seen):
                    taken[column] = row
                    return True
        return False

    return all(finds(row, set()) for row in range(len(rows)))


def _without_order(gold: Value, answer: Value, by: Comparison) -> bool | None:
    golds, answers = (_members(each) for each in (gold, answer))
    if len(golds) + len(answers) > _MAX_MEMBERS:
        return None
    alone = [each for each in golds if each not in answers]
    strange = [each for each in answers if each not in golds]
    rows = [[by.same(g, a).equal for a in answers] for g in alone]
    columns = [[by.same(g, a).equal for g in golds] for a in strange]
    return all_of(any_of(line) for line in (*rows, *columns))


def _members(value: Value) -> Sequence[Value]:
    return value.parts if isinstance(value, Set | Union) else (value,)


def unions(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """The same pieces make the same union; so may others, which overlap or meet."""
    if not (isinstance(gold, Union) or isinstance(answer, Union)):
        return None
    joints = {each.joint for each in (gold, answer) if isinstance(each, Union)}
    is_alike = type(gold) is type(answer) and joints in ({r"\cup"}, {r"\cap"})
    if is_alike and _without_order(gold, answer, by):
        return Verdict(True, "union")
    return Verdict(by.by_algebra(gold, answer), "algebra")


def in_order(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
    """Tuples, intervals and matrices, part by part; a vector may be a row, a column or a tuple."""
    if not (isinstance(gold, Tuple | Matrix) or isinstance(answer, Tuple | Matrix)):
        return None
    if type(gold) is not type(answer):
        gold, answer = _vector(gold), _vector(answer)
    parts, others = parts_of(gold), parts_of(answer)
    if _frame(gold) != _frame(answer) or len(parts) != len(others):
        return Verdict(False, "tuple")
    pairs = zip(parts, others, strict=True)
    return Verdict(all_of(by.same(g, a).equal for g, a in pairs), "tuple")


def _vector(value: Value) -> Value:
    is_vector = isinstance(value, Matrix) and 1 in (value.num_rows, value.num_columns)
    return Tuple(value.cells) if isinstance(value, Matrix) and is_vector else value


def _frame(value: Value) -> object:
    if isinstance(value, Matrix):
        return value.num_rows, value.num_columns
    return value.brackets if isinstance(value, Tuple) else None
