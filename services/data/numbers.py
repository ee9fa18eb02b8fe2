r"""Numbers read as sums of rational multiples of ``√r·π^p``, by SymPy, which takes long to load."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from services.data.forms import Exact, Irrational, TooHard
from services.grader.answers.grammar import read_expression
from services.grader.answers.nodes import Node, Unreadable

_KINDS = frozenset(
    {"number", "pi", "+", "-", "*", "/", "fraction", "mixed", "negative", "grouped", "repeating"}
    | {"^", "root", "absolute", "factorial", "binomial"}
)
_MAX_EXPONENT_OF_SUM = 64
_MAX_RADICAND = 10**10  # of larger ones SymPy does not find all squares
_MAX_BITS = 4096


def read_number(text: str) -> Exact:
    """The exact real number that a text is.

    Raises:
        TooHard: for whatever is not one number of a plain kind; the text says why.
    """
    import sympy  # the command begins without it

    from services.grader.answers.algebra.expressions import expression

    try:
        tree = read_expression(text, as_answer=True)
        _check(tree)
        number = sympy.expand(sympy.radsimp(expression(tree)))
    except Unreadable as error:
        raise TooHard(str(error)) from error
    terms = dict(_term(*term.as_coeff_Mul()) for term in sympy.Add.make_args(number))
    return Exact({kind: value for kind, value in terms.items() if value})


def _check(tree: Node) -> None:
    """That SymPy will not take long.

    Raises:
        TooHard: for letters, functions, and high powers of sums.
    """
    for node in tree.walk():
        if node.kind not in _KINDS:
            raise TooHard(f"a {node.kind}")
        sums = [part for part in node.parts[:1] if node.kind == "^" and part.kind in "+-"]
        if sums and node.parts[1].number > _MAX_EXPONENT_OF_SUM:
            raise TooHard("a power of a sum whose exponent is not small")


def _term(coefficient: Any, rest: Any) -> tuple[Irrational, Fraction]:
    radicand, power = 1, 0
    for base, exponent in rest.as_powers_dict().items():
        if base.is_NumberSymbol and str(base) == "pi" and exponent.is_Integer:
            power = int(exponent)
        elif base.is_Integer and 0 < base <= _MAX_RADICAND and 2 * exponent == 1:
            radicand *= int(base)
        elif base != 1:
            raise TooHard(f"{base**exponent}, which is no square root and no power of π")
    if not coefficient.is_Rational:
        raise TooHard("no real number")
    if max(int(coefficient.p).bit_length(), int(coefficient.q).bit_length()) > _MAX_BITS:
        raise TooHard("a number of more than a thousand digits")
    return (radicand, power), Fraction(int(coefficient.p), int(coefficient.q))
