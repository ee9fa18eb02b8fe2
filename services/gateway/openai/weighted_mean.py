"""``calculate_output`` of a multi grader: a formula that must be a weighted mean. Pure.

The formula is read as Python's grammar reads it and never run.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Mapping

_MAX_CHARS = 2_000
_MAX_DEPTH = 60
_MAX_NUMBER = 1e9
_REMEDY = "write a weighted mean, such as 0.7 * a + 0.3 * b or (a + b) / 2"

Linear = Mapping[str, float]  # the factor of each name; that of "" is the constant


class NoWeightedMean(ValueError):
    """A formula that is not one; the text says why, and what to write."""


def weights_of(formula: str, names: Collection[str]) -> dict[str, float]:
    """The weight of each name, all above 0, with a sum of 1.

    Raises:
        NoWeightedMean: if the formula is anything else, or leaves out a name.
    """
    found = _linear(_parsed(formula), depth=0)
    if unknown := sorted(set(found) - {*names, ""}):
        raise NoWeightedMean(f"{unknown[0]!r} is none of the graders: {', '.join(names)}")
    if unused := [name for name in names if name not in found]:
        raise NoWeightedMean(f"the grader {unused[0]!r} is not used; use it, or leave it out")
    if found.get("", 0.0) != 0:
        raise NoWeightedMean(f"adds the number {found['']:g} to the grades; {_REMEDY}")
    weights = {name: found[name] for name in names}
    for name, weight in weights.items():
        if not weight > 0:
            raise NoWeightedMean(f"the weight of {name!r} is {weight:g}, not above 0; {_REMEDY}")
    total = math.fsum(weights.values())
    if not math.isclose(total, 1, abs_tol=1e-6):
        raise NoWeightedMean(f"the weights add up to {total:g}, not to 1; {_REMEDY}")
    return weights


def _parsed(formula: str) -> ast.expr:
    if len(formula) > _MAX_CHARS:
        raise NoWeightedMean(f"longer than {_MAX_CHARS} characters; {_REMEDY}")
    try:
        return ast.parse(formula.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoWeightedMean(f"{formula[:80]!r} is no formula; {_REMEDY}") from error


def _linear(node: ast.expr, depth: int) -> Linear:
    if depth > _MAX_DEPTH:
        raise NoWeightedMean(f"nested too deeply; {_REMEDY}")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return {"": _checked(number)}
        case ast.Name(id=name):
            return {name: 1.0}
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            return _scaled(_linear(operand, depth + 1), -1 if isinstance(sign, ast.USub) else 1)
        case ast.BinOp(left=left, op=operator, right=right):
            return _combined(_linear(left, depth + 1), operator, _linear(right, depth + 1))
    raise NoWeightedMean(f"may hold names of graders, numbers, + - * / and brackets; {_REMEDY}")


def _combined(left: Linear, operator: ast.operator, right: Linear) -> Linear:
    match operator:
        case ast.Add():
            return _sum(left, right)
        case ast.Sub():
            return _sum(left, _scaled(right, -1))
        case ast.Mult() if set(left) == {""}:
            return _scaled(right, left[""])
        case ast.Mult() if set(right) == {""}:
            return _scaled(left, right[""])
        case ast.Div() if set(right) == {""} and right[""] != 0:
            return _scaled(left, 1 / right[""])
    raise NoWeightedMean(f"grades may be added, and multiplied or divided by a number; {_REMEDY}")


def _checked(number: int | float) -> float:
    if not abs(number) <= _MAX_NUMBER:
        raise NoWeightedMean(f"holds a number beyond {_MAX_NUMBER:g}; {_REMEDY}")
    return float(number)


def _sum(left: Linear, right: Linear) -> Linear:
    return {name: left.get(name, 0.0) + right.get(name, 0.0) for name in {**left, **right}}


def _scaled(terms: Linear, factor: float) -> Linear:
    return {name: factor * value for name, value in terms.items()}
