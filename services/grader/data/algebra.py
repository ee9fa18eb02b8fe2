r"""Is a form that a model proposes equal to the answer, and the only way to write it?

Runs in a worker of the pool only: algebra may take for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import gcd, isfinite

from math_verify import parse
from sympy import Expr, Integer, Rational, pi, sqrt

from services.grader.data import expressions
from services.grader.data.expressions import Node, NotAllowed

_MAX_TRIED = 20_000
_LARGEST_TRIED = 30
_DIGITS = 11
_NEGLIGIBLE = 1e-9


def examine(
    form: str, ask: str, values: dict[str, int], gold: str
) -> dict[str, str | int | list[str] | dict[str, int]]:
    """The parts of a `Form`, or ``{"refused": why}``; ``gold`` is tidied LaTeX."""
    try:
        shape, asked = expressions.read(form), expressions.read(ask)
        _examine_letters(shape, asked, values)
        _examine_conditions(shape, values)
        _examine_value(shape, values, gold)
        integer = _whole(_exact(asked, values))
        _examine_uniqueness(shape, asked)
    except NotAllowed as error:
        return {"refused": str(error)}
    return {
        "shape": expressions.latex(shape),
        "asked": expressions.latex(asked),
        "integer": integer,
        "denominators": expressions.denominators(shape),
        "radicands": expressions.radicands(shape),
    }


def _examine_letters(shape: Node, asked: Node, values: Mapping[str, int]) -> None:
    in_form, in_ask = expressions.letters(shape), expressions.letters(asked)
    if not in_form or set(in_form) != set(values) or not set(in_ask) <= set(values):
        raise NotAllowed("form, values and ask do not name the same letters")
    if not in_ask:
        raise NotAllowed("ask names no letter")


def _examine_conditions(shape: Node, values: Mapping[str, int]) -> None:
    """The values keep what the added sentence says about them."""
    if not _is_allowed(values, expressions.denominators(shape), expressions.radicands(shape)):
        raise NotAllowed(f"{dict(values)} are not in lowest terms with reduced roots")


def _is_allowed(
    values: Mapping[str, int], denominators: list[str], radicands: Mapping[str, int]
) -> bool:
    reduced = [value for letter, value in values.items() if letter not in radicands]
    return (
        all(values.values())
        and all(values[letter] > 0 for letter in denominators)
        and all(_is_power_free(values[letter], index) for letter, index in radicands.items())
        and not (denominators and len(reduced) > 1 and gcd(*reduced) > 1)
    )


def _is_power_free(number: int, index: int) -> bool:
    if number < 2:
        return False
    left, prime = number, 2
    while prime**index <= left:
        if left % prime**index == 0:
            return False
        while left % prime == 0:
            left //= prime
        prime += 1
    return True


def _examine_value(shape: Node, values: Mapping[str, int], gold: str) -> None:
    """Equality is proven; agreement of many digits is not enough."""
    parsed = parse(f"\\boxed{{{gold}}}", fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    if not parsed or not isinstance(parsed[0], Expr) or not parsed[0].is_number:
        raise NotAllowed("math-verify reads no number in the answer")
    if not _are_equal(parsed[0], _exact(shape, values)):
        raise NotAllowed(f"the form with {dict(values)} is not the answer")


def _are_equal(left: Expr, right: Expr) -> bool:
    difference = left - right
    return difference == 0 or difference.equals(0) is True


def _exact(node: Node, values: Mapping[str, int]) -> Expr:
    if node.kind == "number":
        return Rational(node.number.numerator, node.number.denominator)
    if node.kind in {"pi", "letter"}:
        return pi if node.kind == "pi" else Integer(values[node.letter])
    parts = [_exact(part, values) for part in node.parts]
    if node.kind == "^":
        return parts[0] ** Rational(node.number.numerator, node.number.denominator)
    if node.kind == "/" and parts[1] == 0:
        raise NotAllowed("a division by 0")
    operations = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a / b,
        "negative": lambda a: -a,
        "sqrt": sqrt,
    }
    return operations[node.kind](*parts)


def _whole(value: Expr) -> int:
    if not isinstance(value, Integer):
        raise NotAllowed("what ask asks for is no integer")
    return int(value)


def _examine_uniqueness(shape: Node, asked: Node) -> None:
    """Among small integers that keep the conditions, no number but 0 has two different results."""
    result_of: dict[float, tuple[dict[str, int], float]] = {}
    for values in _small_values(shape):
        number, result = expressions.evaluate(shape, values), expressions.evaluate(asked, values)
        if not isfinite(number) or abs(number) < _NEGLIGIBLE:
            continue
        earlier, first = result_of.setdefault(round(number, _DIGITS), (values, result))
        if first != result and _are_equal(_exact(shape, earlier), _exact(shape, values)):
            raise NotAllowed(f"the form is not unique: {earlier} and {values} give the same number")


def _small_values(shape: Node) -> Iterator[dict[str, int]]:
    names = expressions.letters(shape)
    denominators, radicands = expressions.denominators(shape), expressions.radicands(shape)
    limit = min(_LARGEST_TRIED, max(2, round(_MAX_TRIED ** (1 / len(names)) / 2)))
    bound = {*denominators, *radicands}
    ranges = [
        range(1, limit + 1) if name in bound else [*range(-limit, 0), *range(1, limit + 1)]
        for name in names
    ]
    for numbers in product(*ranges):
        values = dict(zip(names, numbers, strict=True))
        if _is_allowed(values, denominators, radicands):
            yield values
