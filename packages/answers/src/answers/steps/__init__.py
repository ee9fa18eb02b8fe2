"""The equations and inequalities of a solution, in LaTeX or plain, and whether they are right.

`segments` cuts a text where expressions end, `relations` finds the relations in it, `evaluation`
computes a side in each of its readings, `judging` gives the verdicts, and `refutation` finds
equations that contradict others. They may take long, and belong in a worker process.
"""

from typing import NamedTuple

RIGHT = "right"
WRONG = "wrong"
OPEN = "open"
UNREAD = "unread"


class Step(NamedTuple):
    """The verdict on a relation, and a text that is the same for all its spellings.

    In a chain a step reaches from its sign to before ``end``. The note has the values that differ.
    """

    verdict: str
    identity: str
    start: int = 0
    end: int = 0
    note: str = ""


class Derivation(NamedTuple):
    """The steps of a text, which of them are used, and their worth.

    ``low`` is the worth if the open steps are worth nothing, ``high`` if they are right.
    """

    steps: list[Step]
    used: list[bool]
    required: int
    low: float
    high: float
