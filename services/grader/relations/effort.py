"""How much work the steps of one text may cost together.

It is counted and not timed, so that no verdict depends on the machine.
"""

from __future__ import annotations

from services.grader.relations.identities import MAX_TRIALS
from services.grader.relations.reading import Node
from services.grader.relations.reals import MAX_BITS
from services.grader.relations.values import num_ways

WORK = 1_000_000  # a unit takes about 2 µs
_WEIGHTS = {"function": 8, "root": 4, "^": 24, "factorial": 8, "binomial": 8, "number": 0}
_BITS, _BITS_OF_A_UNIT = 8, 60  # of a base that is no number; of a power


class Effort:
    """What is left of the work that a text may cost."""

    def __init__(self, work: int = WORK) -> None:
        self._left = work

    def suffices(self, left: Node, right: Node, *, has_letters: bool) -> bool:
        """Whether an equation of these sides can still be worked out; if so, it is counted."""
        once = sum(map(_cost, (*left.walk(), *right.walk())))
        cost = once * num_ways([left, right]) * (MAX_TRIALS if has_letters else 1)
        if cost > self._left:
            return False
        self._left -= cost
        return True


def _cost(node: Node) -> int:
    if node.kind != "^" or node.parts[1].kind != "number":
        return _WEIGHTS.get(node.kind, 1)
    base, exponent = (part.number for part in node.parts)
    bits = base.numerator.bit_length() + base.denominator.bit_length() if base else _BITS
    return 4 + min(MAX_BITS, int(abs(exponent)) * bits) // _BITS_OF_A_UNIT
