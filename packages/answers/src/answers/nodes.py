"""The nodes of an expression's tree, the product of factors, and estimates of a tree's value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Context, Decimal, DecimalException, localcontext
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar

_CONTEXT = Context(prec=60, Emax=10_000, Emin=-10_000)
_SMALL = Decimal("1e-20")
# Sums of larger numbers lose too many digits.
_MAX_VALUE = Decimal("1e30")
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
_MAX_EXPONENT = 1_000

T = TypeVar("T")


class Unreadable(ValueError):
    """The text is not in the grammar; the message says why."""


@dataclass(frozen=True)
class Node:
    """An operation and its operands; a number, with its decimal places; or a letter.

    Kinds: number letter pi infinity + - * / ^ plusminus negative fraction root absolute factorial
    double_factorial binomial floor ceiling degree function numeral grouped; and for expressions
    with two readings, mixed (``2\\frac12``), slash (``a/bc``) and percent.
    """

    kind: str
    parts: tuple[Node, ...] = ()
    number: Fraction = Fraction(0)
    places: int = 0
    letter: str = ""

    def walk(self) -> Iterator[Node]:
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += node.parts

    @property
    def letters(self) -> set[str]:
        """The names of all letters in the tree, also e and i."""
        return {node.letter for node in self.walk() if node.kind == "letter"}

    @property
    def is_literal(self) -> bool:
        if self.kind in {"negative", "percent", "degree"}:
            return self.parts[0].is_literal
        return self.kind == "number"


def fold(tree: Node, combine: Callable[[Node, list[T]], T]) -> T:
    """Compute a value of each node from those of its parts; return the root's.

    There is no recursion, since a sum is as deep as it is long.
    """
    values: dict[int, T] = {}
    for node in reversed(list(tree.walk())):  # parts come before the node that they are part of
        parts = [values[id(part)] for part in node.parts]
        values[id(node)] = combine(node, parts)
    return values[id(tree)]


def rebuild(tree: Node, change: Callable[[Node], Node]) -> Node:
    def change_node(node: Node, parts: list[Node]) -> Node:
        return change(replace(node, parts=tuple(parts)) if parts else node)

    return fold(tree, change_node)


def serialize(tree: Node) -> str:
    """Return a text that is the same for equal trees only."""
    pieces = list[str]()
    stack: list[Node | str] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            pieces.append(node)
            continue
        pieces.append(f"({node.kind} {node.letter} {node.number}")
        stack += [")", *reversed(node.parts)]
    return "".join(pieces)


def integer(value: int) -> Node:
    return Node("number", number=Fraction(value))


def read_repeating(text: str) -> Node:
    r"""Read a decimal with a period, such as ``0.1\overline{6}``."""
    start, _, period = text.partition("\\")
    digits = "".join(char for char in period if char.isdigit())
    places = len(start.partition(".")[2])
    number = Fraction(start if start.strip(".") else "0")
    nines = 10 ** len(digits) - 1
    number += Fraction(int(digits), nines * 10**places)
    return Node("number", number=number)


def multiply(factors: list[Node]) -> Node:
    """Multiply adjacent factors; an integer before a fraction of integers may be a mixed number."""
    product = factors[0]
    for factor in factors[1:]:
        kind = "mixed" if _is_mixed(product, factor) else "*"
        product = Node(kind, (product, factor))
    return product


def _is_mixed(whole: Node, factor: Node) -> bool:
    numbers = [node.number for node in (whole, *factor.parts) if node.kind == "number"]
    are_integers = all(number.denominator == 1 for number in numbers)
    if factor.kind != "fraction" or len(numbers) != 3 or not are_integers:
        return False
    return numbers[0] > 0 and 0 < numbers[1] < numbers[2]


def are_different(first: Node, second: Node) -> bool:
    """Return whether two trees surely differ; only algebra can tell that they are equal."""
    value = estimate(first)
    other = estimate(second)
    if value is None or other is None:
        return False
    size = max(1, abs(value), abs(other))
    return abs(value - other) > _SMALL * size


def estimate(tree: Node) -> Decimal | None:
    """Return a real value of sixty digits, with letters drawn from their names, or None."""
    try:
        with localcontext(_CONTEXT):
            return fold(tree, _estimate_node)
    except (KeyError, DecimalException):
        return None


def _estimate_node(node: Node, parts: list[Decimal]) -> Decimal:
    if node.kind == "number":
        value = Decimal(node.number.numerator) / node.number.denominator
    elif node.kind == "letter":
        value = _draw_letter(node.letter)
    else:
        value = _OPERATIONS[node.kind](*parts)
    if abs(value) > _MAX_VALUE:
        raise KeyError(node.kind)
    return value


@lru_cache(4096)
def _draw_letter(name: str) -> Decimal:
    """Return a value between 1 and 2; a letter that may be imaginary has none."""
    if name == "i":
        raise KeyError(name)
    if name == "e":
        return _CONTEXT.exp(Decimal(1))
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=6).hexdigest()
    return 1 + Decimal(int(digest, 16)) / 16**12


def _power(base: Decimal, exponent: Decimal) -> Decimal:
    is_whole = exponent == exponent.to_integral_value()
    # A small base may be the error of a sum that is 0.
    is_near_zero = abs(base) < _SMALL and not (is_whole and exponent > 0)
    if abs(exponent) > _MAX_EXPONENT or is_near_zero:
        raise KeyError(exponent)
    return base**exponent


def _divide(above: Decimal, below: Decimal) -> Decimal:
    return above * _power(below, Decimal(-1))


_OPERATIONS: Mapping[str, Callable[..., Decimal]] = {
    "pi": lambda: _PI,
    "+": Decimal.__add__,
    "mixed": Decimal.__add__,
    "-": Decimal.__sub__,
    "*": Decimal.__mul__,
    "/": _divide,
    "fraction": _divide,
    "negative": Decimal.__neg__,
    "grouped": Decimal.__pos__,
    "^": _power,
    "root": lambda inside, index: _power(inside, 1 / index),
}
