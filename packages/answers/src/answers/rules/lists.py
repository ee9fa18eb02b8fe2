"""Ratios, sets, lists, unions, tuples and matrices."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeGuard

from answers.comparison import Comparison, Verdict, conjunction, disjunction
from answers.problem import Problem
from answers.rules.relations import to_tuple
from answers.values import (
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
    get_parts,
)

_MAX_MEMBERS = 64
_ONE = Number(Fraction(1))
_ZERO = Number(Fraction(0))


def compare_ratios(gold: Value, answer: Value, comparison: Comparison) -> Verdict | None:
    """``6:8`` and ``3/4`` are ``3:4``; but ``3:30`` is a time if no ratio is asked for."""
    if not _is_ratio(gold):
        return None
    if not _is_ratio(answer) and not isinstance(answer, Number | Quantity):
        return None
    if gold.brackets == CLOCK and not comparison.problem.asks("ratio"):
        is_same = _is_ratio(answer) and _drop_seconds(answer) == _drop_seconds(gold)
        return Verdict(is_same, "time")
    shape = _shape_ratio(gold)
    other = _shape_ratio(answer)
    if shape and other:
        return Verdict(shape == other, "ratio")
    return None


def _is_ratio(value: Value) -> TypeGuard[Tuple]:
    return isinstance(value, Tuple) and value.brackets in (RATIO, CLOCK)


def _drop_seconds(time: Tuple) -> tuple[Value, ...]:
    """Return hours and minutes, and seconds unless they are 0."""
    if time.parts[2:] == (_ZERO,):
        return time.parts[:2]
    return time.parts


def _shape_ratio(value: Value) -> list[Fraction]:
    """Divide the parts of a ratio by the first; return no parts if they are not plain numbers."""
    if isinstance(value, Quantity) and value.unit == "%" and isinstance(value.head, Number):
        value = Number(value.head.value / 100)
    parts = get_parts(value) or (value, _ONE)
    numbers = [part.value for part in parts if isinstance(part, Number) and part.value]
    if len(numbers) < len(parts):
        return []
    return [number / numbers[0] for number in numbers]


def compare_sets(gold: Value, answer: Value, comparison: Comparison) -> Verdict | None:
    """Each member has its like; lists also agree in numbers and, if parts differ, in order."""
    if not isinstance(gold, Set) and not isinstance(answer, Set):
        return None
    if isinstance(gold, Tuple) and _is_list(gold, comparison.problem):
        gold = Set(gold.parts, "[]")
    elif isinstance(gold, Set) and not gold.joint:
        return Verdict(_have_same_members(gold, answer, comparison), "set")
    golds = _get_members(gold)
    members = _get_members(answer)
    if len(golds) != len(members):
        return Verdict(False, "list")
    joint = gold.joint if isinstance(gold, Set) else ""
    is_list = joint == ","
    is_ordered = is_list and _is_ordered(golds, members, comparison.problem)
    if is_ordered or joint == "[]":
        named = to_tuple(answer, answer, comparison.problem)
        if isinstance(named, Tuple) and not any(map(_get_name, golds)):
            members = named.parts
        return Verdict(comparison.are_parts_equal(golds, members), "list")
    return Verdict(_can_match(golds, members, comparison), "list")


def _is_list(gold: Tuple, problem: Problem) -> bool:
    """Return whether brackets hold a list of Python, and no interval."""
    if gold.brackets != "[]":
        return False
    return len(gold.parts) != 2 or problem.has_questions(2)


def _is_ordered(golds: Sequence[Value], members: Sequence[Value], problem: Problem) -> bool:
    """Return whether each part answers its own question, and has no name that says which."""
    if problem.asks("order"):
        return True
    names = set(map(_get_name, golds))
    have_names = len(names) == len(golds) and "" not in names
    if have_names:
        return "" in map(_get_name, members)
    return problem.has_questions(len(golds))


def _get_name(value: Value) -> str:
    """Return a name without its index: roots are called x_1 and x_2, in any order."""
    if isinstance(value, Relation) and "=" in value.signs and value.texts:
        return value.texts[0].partition("_")[0]
    return ""


def _can_match(
    golds: Sequence[Value], members: Sequence[Value], comparison: Comparison
) -> bool | None:
    """Return whether each gold member can have an equal member for itself."""
    golds = list(golds)
    members = list(members)
    for gold in list(golds):
        if gold in members:
            golds.remove(gold)
            members.remove(gold)
    if len(golds) > _MAX_MEMBERS // 2:
        return None
    rows = list[list[bool | None]]()
    for gold in golds:
        rows.append([comparison.are_equal(gold, member) for member in members])
    if _has_matching(rows, {True}):
        return True
    if _has_matching(rows, {True, None}):
        return None
    return False


def _has_matching(rows: list[list[bool | None]], allowed: set[bool | None]) -> bool:
    """Return whether each row can have an allowed column for itself (Kuhn's algorithm)."""
    owners: dict[int, int] = {}  # the row of each column

    def find_column(row: int, visited: set[int]) -> bool:
        for column, verdict in enumerate(rows[row]):
            if verdict not in allowed or column in visited:
                continue
            visited.add(column)
            if column not in owners or find_column(owners[column], visited):
                owners[column] = row
                return True
        return False

    return all(find_column(row, set()) for row in range(len(rows)))


def _have_same_members(gold: Value, answer: Value, comparison: Comparison) -> bool | None:
    golds = _get_members(gold)
    members = _get_members(answer)
    if len(golds) + len(members) > _MAX_MEMBERS:
        return None
    outcomes = list[bool | None]()
    for value in golds:
        if value not in members:
            verdicts = [comparison.are_equal(value, member) for member in members]
            outcomes.append(disjunction(verdicts))
    for member in members:
        if member not in golds:
            verdicts = [comparison.are_equal(value, member) for value in golds]
            outcomes.append(disjunction(verdicts))
    return conjunction(outcomes)


def _get_members(value: Value) -> Sequence[Value]:
    if isinstance(value, Set | Union):
        return value.parts
    return (value,)


def compare_unions(gold: Value, answer: Value, comparison: Comparison) -> Verdict | None:
    """Unions of the same pieces are equal; others may be, since pieces overlap or meet."""
    if not isinstance(gold, Union) and not isinstance(answer, Union):
        return None
    if isinstance(gold, Union) and isinstance(answer, Union):
        is_alike = gold.joint == answer.joint and gold.joint in (r"\cup", r"\cap")
        if is_alike and _have_same_members(gold, answer, comparison):
            return Verdict(True, "union")
    return comparison.ask_algebra(gold, answer)


def compare_tuples(gold: Value, answer: Value, comparison: Comparison) -> Verdict | None:
    """Tuples, intervals and matrices agree part by part; a vector may have any of three forms."""
    if not isinstance(gold, Tuple | Matrix) and not isinstance(answer, Tuple | Matrix):
        return None
    if type(gold) is not type(answer):
        gold = _to_vector(gold)
        answer = _to_vector(answer)
    gold_parts = get_parts(gold)
    parts = get_parts(answer)
    has_same_frame = _get_frame(gold) == _get_frame(answer)
    if not has_same_frame or len(gold_parts) != len(parts):
        return Verdict(False, "tuple")
    return Verdict(comparison.are_parts_equal(gold_parts, parts), "tuple")


def _to_vector(value: Value) -> Value:
    """Turn a matrix of one row or one column into a tuple."""
    if isinstance(value, Matrix) and 1 in (value.num_rows, value.num_columns):
        return Tuple(value.cells)
    return value


def _get_frame(value: Value) -> object:
    if isinstance(value, Matrix):
        return value.num_rows, value.num_columns
    if isinstance(value, Tuple):
        return value.brackets
    return None
