r"""Sums, products, ``\gcd(4,6)`` and ``f(x)``, of which the grammar has no tree. For the pool only.

Each is taken out of the text, and the grammar reads what is left with a letter in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import reduce

import sympy
from sympy import Basic, Expr, Symbol

from services.grader.answers.algebra.expressions import expression
from services.grader.answers.grammar import read_expression
from services.grader.answers.nodes import Unreadable

_LETTER = r"\Xi"  # which no answer may have
_CALLED = re.compile(
    r"(?:\\(?P<of_all>gcd|lcm|max|min)|(?<![a-zA-Z\\])[fghFGP]) ?\((?P<inside>[^()]*)\)"
)
_IN_BRACES = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})+"
_SUM = re.compile(
    r"(?P<before>.*)\\(?P<kind>sum|prod) ?_ ?\{ ?(?P<letter>[a-z]) ?="
    rf"(?P<first>{_IN_BRACES})\}} ?\^ ?(?P<last>\{{{_IN_BRACES}\}}|[0-9a-zA-Z])(?P<rest>.+)"
)
_OPERATIONS: Mapping[str, Callable[..., Expr]] = {
    "gcd": lambda *of: reduce(sympy.gcd, of),
    "lcm": lambda *of: reduce(sympy.lcm, of),
    "max": sympy.Max,
    "min": sympy.Min,
    "sum": sympy.Sum,
    "prod": sympy.Product,
}
_Taken = list[tuple[Basic | complex, Expr | complex]]  # letters, and what they stand for


def read_with_sums(latex: str) -> Expr:
    """What is written, worked out.

    Raises:
        Unreadable: if there is anything else that the grammar does not know.
    """
    if _LETTER in latex or "box" in latex:
        raise Unreadable("a letter that stands for something else here, or a box")
    taken: _Taken = []
    while match := _CALLED.search(latex):
        letter = _letter_for(_value_of(match, taken), taken)
        latex = f"{latex[: match.start()]} {letter} {latex[match.end() :]}"
    while match := _SUM.fullmatch(latex):
        body, rest = _cut(match["rest"])
        letter = _letter_for(_sum(match, body, taken), taken)
        latex = f"{match['before']} {letter} {rest}"
    if not taken:
        raise Unreadable("not of the grammar")
    return _read(latex, taken).doit()


def _letter_for(value: Expr, taken: _Taken) -> str:
    name = f"{_LETTER}_{{{len(taken)}}}"
    taken.append((expression(read_expression(name)), value))
    return name


def _read(latex: str, taken: _Taken) -> Expr:
    return expression(read_expression(latex, as_answer=True)).subs(taken)


def _value_of(match: re.Match[str], taken: _Taken) -> Expr:
    if match["of_all"]:
        return _OPERATIONS[match["of_all"]](
            *(_read(each, taken) for each in match["inside"].split(","))
        )
    return Symbol(match[0].replace(" ", ""))


def _cut(rest: str) -> tuple[str, str]:
    """What a sum is of: all factors, up to a sign that is in no bracket."""
    depth = 0
    for at, char in enumerate(rest):
        depth += (char in "([{") - (char in ")]}")
        if depth < 0 or (depth == 0 and char in "+-"):
            return rest[:at], rest[at:]
    return rest, ""


def _sum(match: re.Match[str], body: str, taken: _Taken) -> Expr:
    letter = match["letter"]
    if letter == "i":  # which elsewhere is the imaginary unit
        letter = f"{_LETTER}_{{i}}"
        body = re.sub(r"(?<![a-zA-Z\\])i(?![a-zA-Z])", lambda _: letter, body)
    ends = (_read(match[end], taken) for end in ("first", "last"))
    return _OPERATIONS[match["kind"]](_read(body, taken), (_read(letter, []), *ends))
