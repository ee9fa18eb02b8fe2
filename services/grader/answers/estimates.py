r"""Real numbers to sixty digits, by which most wrong answers are told from the gold one at once.

That two expressions are equal is never concluded from them: that is for algebra to say.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, DecimalException, localcontext
from functools import lru_cache
from hashlib import blake2b

from services.grader.answers.nodes import Node

_DIGITS = Context(prec=60, Emax=10_000, Emin=-10_000)
_FAR = Decimal("1e-20")  # in relation to the larger one, or to 1
_LARGEST = Decimal("1e30")  # beyond, sums lose too many digits
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
_TINY = Decimal("1e-20")  # may be the rest of a sum that is 0
_MAX_EXPONENT = 1_000


def are_different(first: Node, second: Node) -> bool:
    """Whether two expressions surely have different values; False where that is not known.

    Letters have values that are drawn from their names, the same in both.
    """
    value, other = _estimate(first), _estimate(second)
    if value is None or other is None:
        return False
    return abs(value - other) > _FAR * max(1, abs(value), abs(other))


def _estimate(tree: Node) -> Decimal | None:
    built: dict[int, Decimal] = {}
    try:
        with localcontext(_DIGITS):
            for node in reversed(list(tree.walk())):  # parts come before what they are part of
                operation = _OPERATIONS[node.kind]
                built[id(node)] = operation(node, *(built[id(part)] for part in node.parts))
                if abs(built[id(node)]) > _LARGEST:
                    return None
    except (KeyError, DecimalException):
        return None
    return built[id(tree)]


@lru_cache(4096)
def _letter(name: str) -> Decimal:
    """Between 1 and 2; of one that may be imaginary there is no estimate."""
    if name == "i":
        raise KeyError(name)
    if name == "e":
        return _DIGITS.exp(Decimal(1))
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=6).hexdigest()
    return 1 + Decimal(int(digest, 16)) / 16**12


def _power(_: Node, base: Decimal, exponent: Decimal) -> Decimal:
    is_whole = exponent == exponent.to_integral_value()
    if abs(exponent) > _MAX_EXPONENT or (abs(base) < _TINY and not (is_whole and exponent > 0)):
        raise KeyError(exponent)
    return base**exponent


def _quotient(_: Node, above: Decimal, below: Decimal) -> Decimal:
    return above * _power(_, below, Decimal(-1))


_OPERATIONS: Mapping[str, Callable[..., Decimal]] = {
    "number": lambda node: Decimal(node.number.numerator) / node.number.denominator,
    "letter": lambda node: _letter(node.letter),
    "pi": lambda _: _PI,
    "negative": lambda _, inside: -inside,
    "^": _power,
    **dict.fromkeys(("/", "fraction"), _quotient),
    "root": lambda node, inside, index: _power(node, inside, 1 / index),
    **dict.fromkeys(("grouped", "repeating"), lambda _, inside: inside),
    **{
        kind: lambda _, a, b, apply=apply: apply(a, b)
        for kind, apply in {
            "+": operator.add,
            "mixed": operator.add,
            "-": operator.sub,
            "*": operator.mul,
        }.items()
    },
}
