"""Which formulas of a multi grader are weighted means, and with which weights. Pure."""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Mapping

from protocol.formula import Formula

_Linear = Mapping[str, float]  # the factor of each name; that of "" is the constant


class _NotLinear(ValueError):
    pass


def weights_of(formula: Formula, names: Collection[str]) -> dict[str, float] | None:
    """The weight of each name, all above 0 with a sum of 1; None if it is no weighted mean."""
    try:
        found = _linear(formula.tree)
    except _NotLinear:
        return None
    weights = {name: found.get(name, 0.0) for name in names}
    is_mean = (
        set(found) <= {*names, ""}
        and found.get("", 0.0) == 0
        and all(weight >= 1e-6 for weight in weights.values())
        and math.isclose(sum(weights.values()), 1, abs_tol=1e-6)
    )
    return weights if is_mean else None


def _linear(node: ast.expr) -> _Linear:
    match node:
        case ast.Constant(value=int() | float() as number):
            return {"": float(number)}
        case ast.Name(id=name):
            return {name: 1.0}
        case ast.UnaryOp(op=sign, operand=operand):
            return _scaled(_linear(operand), -1 if isinstance(sign, ast.USub) else 1)
        case ast.BinOp(left=left, op=operator, right=right):
            return _combined(_linear(left), operator, _linear(right))
    raise _NotLinear


def _combined(left: _Linear, operator: ast.operator, right: _Linear) -> _Linear:
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
    raise _NotLinear


def _sum(left: _Linear, right: _Linear) -> _Linear:
    return {name: left.get(name, 0.0) + right.get(name, 0.0) for name in {**left, **right}}


def _scaled(terms: _Linear, factor: float) -> _Linear:
    return {name: factor * value for name, value in terms.items()}
