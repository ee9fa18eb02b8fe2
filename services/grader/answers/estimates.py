r"""Real numbers to sixty digits, by which most wrong answers are told from the gold one at once.

That two expressions are equal is never concluded from them: that is for algebra to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Context, Decimal, DecimalException, localcontext
from functools import lru_cache
from hashlib import blake2b

from services.grader.answers.nodes import Node

_DIGITS = Context(prec=60, Emax=10_000, Emin=-10_000)
_SMALL = Decimal("1e-20")
_LARGEST = Decimal("1e30")  # beyond, sums lose too many digits
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
_MAX_EXPONENT = 1_000


def are_different(first: Node, second: Node) -> bool:
    """Whether two expressions surely have different values; False where that is not known."""
    value, other = estimate(first), estimate(second)
    if value is None or other is None:
        return False
    return abs(value - other) > _SMALL * max(1, abs(value), abs(other))


def estimate(tree: Node) -> Decimal | None:
    """A real number, where letters have values drawn from their names; None if there is none."""
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


def _quotient(above: Decimal, below: Decimal) -> Decimal:
    return above * _power(below, Decimal(-1))


def _root(inside: Decimal, index: Decimal) -> Decimal:
    return _power(inside, 1 / index)


_OPERATIONS: Mapping[str, Callable[..., Decimal]] = {
    "pi": lambda: _PI,
    "+": Decimal.__add__,
    "mixed": Decimal.__add__,
    "-": Decimal.__sub__,
    "*": Decimal.__mul__,
    "/": _quotient,
    "fraction": _quotient,
    "negative": Decimal.__neg__,
    "grouped": Decimal.__pos__,
    "^": _power,
    "root": _root,
}
