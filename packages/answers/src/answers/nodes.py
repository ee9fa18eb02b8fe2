"""The nodes of an expression's tree, how factors become nodes, and what these come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Context, Decimal, DecimalException, localcontext
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b

_DIGITS = Context(prec=60, Emax=10_000, Emin=-10_000)
_SMALL = Decimal("1e-20")
_LARGEST = Decimal("1e30")  # beyond, sums lose too many digits
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
_MAX_EXPONENT = 1_000


class Unreadable(ValueError):
    """Not in the grammar; the text says why."""


@dataclass(frozen=True)
class Node:
    """An operation and its operands; a number, with its decimal places; or a letter.

    Kinds: number letter pi infinity + - * / ^ plusminus negative fraction root absolute factorial
    double_factorial binomial floor ceiling degree function numeral grouped; and
    where mathematicians would disagree, mixed (``2\\frac12``), slash (``a/bc``) and percent.
    """

    kind: str
    parts: tuple[Node, ...] = ()
    number: Fraction = Fraction(0)
    places: int = 0
    letter: str = ""

    def walk(self) -> Iterator[Node]:
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.parts

    @property
    def is_literal(self) -> bool:
        if self.kind in {"negative", "percent", "degree"}:
            return self.parts[0].is_literal
        return self.kind == "number"


def rebuilt(tree: Node, change: Callable[[Node], Node]) -> Node:
    built: dict[int, Node] = {}
    for node in reversed(list(tree.walk())):
        parts = tuple(built[id(part)] for part in node.parts)
        built[id(node)] = change(replace(node, parts=parts) if parts else node)
    return built[id(tree)]


def written(tree: Node) -> str:
    """A tree as text: equal texts, equal trees."""
    pieces, waiting = list[str](), list[Node | str]([tree])
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            pieces.append(node)
            continue
        pieces.append(f"({node.kind} {node.letter} {node.number}")
        waiting += [")", *reversed(node.parts)]
    return "".join(pieces)


def integer(value: int) -> Node:
    return Node("number", number=Fraction(value))


def repeating(text: str) -> Node:
    before, _, again = text.partition("\\")
    again = "".join(char for char in again if char.isdigit())
    start = Fraction(before if before.strip(".") else "0")
    places = len(before.partition(".")[2])
    period = Fraction(int(again), (10 ** len(again) - 1) * 10**places)
    return Node("number", number=start + period)


def times(factors: list[Node]) -> Node:
    """Factors side by side; an integer before a fraction of integers may be a mixed number."""
    total, *rest = factors
    for factor in rest:
        total = Node("mixed" if _is_mixed(total, factor) else "*", (total, factor))
    return total


def _is_mixed(whole: Node, factor: Node) -> bool:
    numbers = [node.number for node in (whole, *factor.parts) if node.kind == "number"]
    if factor.kind != "fraction" or len(numbers) != 3 or any(n.denominator != 1 for n in numbers):
        return False
    return numbers[0] > 0 and 0 < numbers[1] < numbers[2]


def are_different(first: Node, second: Node) -> bool:
    """Whether they surely differ; that they are equal is for algebra to say."""
    value, other = estimate(first), estimate(second)
    if value is None or other is None:
        return False
    return abs(value - other) > _SMALL * max(1, abs(value), abs(other))


def estimate(tree: Node) -> Decimal | None:
    """A real number of sixty digits, with letters drawn from their names; None if there is none."""
    built: dict[int, Decimal] = {}
    try:
        with localcontext(_DIGITS):
            for node in reversed(list(tree.walk())):  # parts come before what they are part of
                value = _value(node, *(built[id(part)] for part in node.parts))
                if abs(value) > _LARGEST:
                    return None
                built[id(node)] = value
    except (KeyError, DecimalException):
        return None
    return built[id(tree)]


def _value(node: Node, *parts: Decimal) -> Decimal:
    if node.kind == "number":
        return Decimal(node.number.numerator) / node.number.denominator
    if node.kind == "letter":
        return _letter(node.letter)
    return _OPERATIONS[node.kind](*parts)


@lru_cache(4096)
def _letter(name: str) -> Decimal:
    """Between 1 and 2; of one that may be imaginary there is no estimate."""
    if name == "i":
        raise KeyError(name)
    if name == "e":
        return _DIGITS.exp(Decimal(1))
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=6).hexdigest()
    return 1 + Decimal(int(digest, 16)) / 16**12


def _power(base: Decimal, exponent: Decimal) -> Decimal:
    is_whole = exponent == exponent.to_integral_value()
    if abs(exponent) > _MAX_EXPONENT or (abs(base) < _SMALL and not (is_whole and exponent > 0)):
        raise KeyError(exponent)  # what is small may be the rest of a sum that is 0
    return base**exponent


_OPERATIONS: Mapping[str, Callable[..., Decimal]] = {
    "pi": lambda: _PI,
    "+": Decimal.__add__,
    "mixed": Decimal.__add__,
    "-": Decimal.__sub__,
    "*": Decimal.__mul__,
    **dict.fromkeys(("/", "fraction"), lambda above, below: above * _power(below, Decimal(-1))),
    "negative": Decimal.__neg__,
    "grouped": Decimal.__pos__,
    "^": _power,
    "root": lambda inside, index: _power(inside, 1 / index),
}
