r"""Plain sums that are right, such as ``47+8=55;55-6=49;\boxed{49}``, told without the pool.

Only where nothing can be read in two ways: integers that change what they are joined to, one
operator between them, and the result. All other texts are for `relations`, which finds the same.
"""

from __future__ import annotations

import re
from fractions import Fraction

_RESULT = r"[1-9][0-9]{0,20}"
_OPERAND = rf"(?!1[*/]){_RESULT}"
_EQUATION = rf"{_OPERAND}(?:(?:[-+]|[*/](?!1\b)){_OPERAND}){{1,20}}={_RESULT}"
_BETWEEN = r"(?:; ?|, |\. |\n)"
_PLAIN = re.compile(
    rf"{_EQUATION}(?:{_BETWEEN}{_EQUATION})*(?:[;.] ?|\n)?(?:\\boxed\{{[0-9]{{1,20}}\}})?\n?"
)
_FOUND = re.compile(_EQUATION)
_TERM = re.compile(r"([-+*/]?)([0-9]+)")


def right_sums(text: str) -> list[re.Match[str]] | None:
    """The equations of a text that has nothing else, all of them right; None for another text."""
    if not _PLAIN.fullmatch(text):
        return None
    found = list(_FOUND.finditer(text))
    return found if all(_is_right(each.group()) for each in found) else None


def _is_right(equation: str) -> bool:
    left, _, right = equation.partition("=")
    return _value(left) == int(right)


def _value(side: str) -> Fraction:
    total = product = Fraction(0)
    for operator, digits in _TERM.findall(side):
        number = Fraction(int(digits))
        if operator == "*":
            product *= number
        elif operator == "/":
            product /= number
        else:
            total, product = total + product, -number if operator == "-" else number
    return total + product
