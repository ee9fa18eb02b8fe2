r"""Is a form that a model proposes equal to the answer, and the only way to write it?

Runs in a worker of the pool only: algebra may take for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from math import gcd, isclose, isfinite

from math_verify import parse
from sympy import Expr, Integer, Rational, pi, sqrt

from services.grader.data import expressions
from services.grader.data.expressions import Node, NotAllowed

_MAX_TRIED = 20_000
_LARGEST_TRIED = 30
_LARGEST_DISTANCE = 30
_CLOSE = 1e-11
_DIGITS = 11
_NEGLIGIBLE = 1e-9


def examine(
    form: str, ask: str, values: dict[str, int], gold: str
) -> dict[str, str | int | list[str] | dict[str, int]]:
    """The parts of a `Form`, or ``{"refused": why}``; ``gold`` is tidied LaTeX."""
    try:
        shape, asked = expressions.read(form), expressions.read(ask)
        _examine_constants(shape)
        _examine_letters(shape, asked, values)
        _examine_conditions(shape, values)
        _examine_value(shape, values, gold)
        integer = _whole(_exact(asked, values))
        _examine_dependence(shape, values)
        _examine_neighbours(shape, asked, values)
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


def _examine_constants(shape: Node) -> None:
    """With a constant such as 100, other integers that give the number may lie out of reach."""
    if constants := expressions.constants(shape):
        named = ", ".join(map(str, constants))
        raise NotAllowed(f"{named} in the form; name it by a letter, or divide by 12 at most")


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


def _examine_dependence(shape: Node, values: Mapping[str, int]) -> None:
    """Each letter means something: the number changes with it."""
    number = expressions.evaluate(shape, values)
    for letter, value in values.items():
        others = [
            expressions.evaluate(shape, {**values, letter: other}) for other in _near(value, 3)
        ]
        if all(isclose(number, other, rel_tol=_CLOSE) for other in others if isfinite(other)):
            raise NotAllowed(f"the number does not depend on {letter}")


def _examine_neighbours(shape: Node, asked: Node, values: Mapping[str, int]) -> None:
    """Integers that differ from the proposed ones in one or two letters give no second result."""
    number, result = expressions.evaluate(shape, values), expressions.evaluate(asked, values)
    gold = _exact(shape, values)
    for other in _neighbours(shape, values):
        if (
            isclose(expressions.evaluate(shape, other), number, rel_tol=_CLOSE)
            and expressions.evaluate(asked, other) != result
            and _are_equal(gold, _exact(shape, other))
        ):
            raise NotAllowed(f"the form is not unique: {dict(values)} and {other} give the same")


def _neighbours(shape: Node, values: Mapping[str, int]) -> Iterator[dict[str, int]]:
    denominators, radicands = expressions.denominators(shape), expressions.radicands(shape)
    for first, second in combinations(values, 2):
        for one, two in product(_near(values[first]), _near(values[second])):
            other = {**values, first: one, second: two}
            if _is_allowed(other, denominators, radicands):
                yield other


def _near(value: int, distance: int = _LARGEST_DISTANCE) -> list[int]:
    """Integers around a value, and those that a factor could turn it into."""
    around = set(range(value - distance, value + distance + 1))
    factors = {value * k for k in (-4, -3, -2, -1, 2, 3, 4)} | {value // k for k in (2, 3, 4, 9)}
    return sorted((around | factors) - {0})


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
