"""The equations and inequalities of a solution, in LaTeX or plain, and whether they are right.

`segments` cuts a text where expressions end, `finding` finds the relations in it, `evaluation`
computes a side in every way to read it, `judging` gives the verdicts. In the pool only.
"""

from typing import NamedTuple

RIGHT, WRONG, OPEN, UNREAD = "right", "wrong", "open", "unread"


class Step(NamedTuple):
    """The verdict on a relation, and what all ways to write the same have in common.

    In a chain it stands from its sign to before ``end``; ``note`` has the values that differ.
    """

    verdict: str  # RIGHT, WRONG or OPEN
    identity: str
    start: int = 0
    end: int = 0
    note: str = ""


class Derivation(NamedTuple):
    """Worth ``low`` if what cannot be judged is worth nothing, and ``high`` if it is right."""

    steps: list[Step]
    used: list[bool]
    required: int
    low: float
    high: float
