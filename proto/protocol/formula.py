"""A formula over named numbers, such as ``max(a, 0.5 * b)``. Pure.

Python's parser reads a formula. Only the operators and functions of the tables below are allowed,
and no formula runs as code. All numbers are floats, so that no number grows without bound.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

_MAX_CHARS = 2_000
_MAX_DEPTH = 60
_MAX_NUMBER = 1e9
_MAX_ARGUMENTS = 100
_NUMBERLIKE = re.compile(r"(?<![\w.])\.?\d(?:[\w.]|(?<=[eE])[+-])*")
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)  # without Python's 0x10 and 1_0

_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}
# A function and the largest number of its arguments, by name.
_FUNCTIONS: Mapping[str, tuple[Callable[..., float], int]] = {
    "min": (lambda *values: min(values), _MAX_ARGUMENTS),
    "max": (lambda *values: max(values), _MAX_ARGUMENTS),
    "abs": (math.fabs, 1),
    "floor": (math.floor, 1),
    "ceil": (math.ceil, 1),
    "exp": (math.exp, 1),
    "sqrt": (math.sqrt, 1),
    "log": (math.log, 1),
}
_REMEDY = (
    "write names of graders and numbers with + - * / ^, brackets and "
    f"{', '.join(_FUNCTIONS)}, such as max(a, 0.5 * b)"
)


class FormulaError(ValueError):
    """An invalid formula, or one without a value for the numbers."""


@dataclass(frozen=True)
class Formula:
    """A parsed formula; ``tree`` has only allowed nodes."""

    tree: ast.expr

    @property
    def names(self) -> frozenset[str]:
        return frozenset(_names(self.tree))

    def value(self, numbers: Mapping[str, float]) -> float:
        """Return the value for a number per name, or raise `FormulaError` if it is not finite."""
        try:
            value = _value(self.tree, numbers)
        except (ArithmeticError, ValueError) as error:
            raise FormulaError(f"has no value: {error}") from error
        if not math.isfinite(value):
            raise FormulaError("has no finite value")
        return value


@lru_cache(maxsize=256)
def read_formula(text: str) -> Formula:
    """Parse a formula; a `FormulaError` names the problem and the syntax."""
    if len(text) > _MAX_CHARS:
        raise FormulaError(f"longer than {_MAX_CHARS} characters; {_REMEDY}")
    for number in _NUMBERLIKE.findall(text):
        if not _NUMBER.fullmatch(number):
            raise FormulaError(f"holds {number!r}, which is no decimal number; {_REMEDY}")
    try:
        tree = ast.parse(text.strip().replace("^", "**"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormulaError(f"{text[:80]!r} is no formula; {_REMEDY}") from error
    _check(tree, depth=0)
    return Formula(tree)


def _check(node: ast.expr, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise FormulaError(f"nested too deeply; {_REMEDY}")
    for part in _parts(node):
        _check(part, depth + 1)


def _parts(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            if not abs(number) <= _MAX_NUMBER:
                raise FormulaError(f"holds a number beyond {_MAX_NUMBER:g}; {_REMEDY}")
            return []
        case ast.Name():
            return []
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return [left, right]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            if not 1 <= len(args) <= _FUNCTIONS[name][1]:
                raise FormulaError(f"{name} has {len(args)} arguments; {_REMEDY}")
            return args
    raise FormulaError(f"holds something else; {_REMEDY}")


def _names(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    for part in _parts(node):
        yield from _names(part)


def _value(node: ast.expr, numbers: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return numbers[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, numbers)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, numbers), _value(right, numbers))
        case ast.Call(func=ast.Name(id=name), args=args):
            values = [_value(argument, numbers) for argument in args]
            return float(_FUNCTIONS[name][0](*values))
    (operand,) = _parts(node)  # of a unary plus
    return _value(operand, numbers)
