"""Sum, then check: the policy writes a running total, a tool verifies it, the policy continues.

The first turn is to be a chain of equations such as `47+8=55;55-6=39;`. The tool adds up the same
terms and says `right.` or `wrong: 49.`; the second turn continues from there and boxes the answer.
A turn that boxes a number ends the episode, so the policy may also answer without the tool.
"""

import re

NO_EQUATION = "no equation."
RIGHT = "right."

_EQUATION = re.compile(r"(\d{1,4})((?:[+-]\d{1,4}){1,9})=(-?\d{1,5})")
_SIGNED_NUMBER = re.compile(r"[+-]\d+")
_BOXED = re.compile(r"\\boxed\{(-?\d+)\}")


def check(text: str) -> str:
    """Return the tool's reply to a chain of equations."""
    equations = _EQUATION.findall(text)
    if not equations:
        return NO_EQUATION
    terms = "".join(steps for _, steps, _ in equations)
    total = int(equations[0][0]) + sum(map(int, _SIGNED_NUMBER.findall(terms)))
    return RIGHT if total == int(equations[-1][2]) else f"wrong: {total}."


def is_answer(text: str) -> bool:
    """Whether a turn boxes a number, which ends the episode."""
    return _BOXED.search(text) is not None


def reward(text: str, answer: str) -> float:
    """Return 1 if the last boxed number is the answer, else 0."""
    return float(_BOXED.findall(text)[-1:] == [answer])
