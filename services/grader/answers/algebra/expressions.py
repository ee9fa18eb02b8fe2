"""LaTeX of the strict grammar as an expression of SymPy. For the pool only.

A parser that guesses drops what it does not know and goes on with the rest, and then any answer can
be made to look like the gold one. What is read here has been read to its last token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sympy
from sympy import Expr, Piecewise, Rational, Symbol, factorial2, gamma, nan

from services.grader.answers.nodes import Node, Unreadable

_MAX_BITS = 1_000_000  # of an exact number
_AMBIGUOUS = frozenset({"slash", "percent", "infinity", "plusminus"})
_NO_MARKS = str.maketrans("", "", "\\{}")
_CONSTANTS = {"e": sympy.E, "i": sympy.I}


class TooLarge(Unreadable):
    """A number that nobody could write down, such as ``9^{9^9}``."""


def expression(tree: Node) -> Expr:
    """What a tree says.

    Raises:
        Unreadable: if it can be read in two ways, or has something else than numbers in it;
            `TooLarge`, if it has a number that is far too large.
    """
    if any(node.kind in _AMBIGUOUS for node in tree.walk()):
        raise Unreadable("an expression with two readings")
    return _built(tree)


def _built(tree: Node) -> Expr:
    """Without recursion: a sum is as deep as it is long."""
    built: dict[int, Expr] = {}
    for node in reversed(list(tree.walk())):  # parts come before what they are part of
        built[id(node)] = _joined(node, [built[id(part)] for part in node.parts])
    return built[id(tree)]


def _joined(node: Node, parts: list[Expr]) -> Expr:
    if node.kind == "number":
        return Rational(node.number.numerator, node.number.denominator)
    if node.kind == "letter":
        return _letter(node.letter)
    if node.kind == "function":
        return _FUNCTIONS[node.letter](*parts)
    return _OPERATIONS[node.kind](*parts)


def _letter(name: str) -> Expr:
    """Its index with or without braces, as in ``x_{1}`` and ``x_1``."""
    return _CONSTANTS.get(name) or Symbol(name.translate(_NO_MARKS))


def _log(inside: Expr, base: Expr | None = None) -> Expr:
    return sympy.log(inside, 10 if base is None else base)


_FUNCTIONS: Mapping[str, Callable[..., Expr]] = {
    **{name: getattr(sympy, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "exp")},
    **{name: getattr(sympy, name) for name in ("sinh", "cosh", "tanh", "coth", "sech", "csch")},
    **{
        f"arc{name}": getattr(sympy, f"a{name}")
        for name in ("sin", "cos", "tan", "cot", "sinh", "cosh", "tanh")
    },
    "ln": sympy.log,
    "lg": _log,
    "log": _log,
}


def _root(inside: Expr, index: Expr) -> Expr:
    is_real = index.is_odd and inside.is_number
    return sympy.real_root(inside, index) if is_real else inside ** (1 / index)


def _limit(bits: Expr) -> None:
    if bits.is_Rational and bits > _MAX_BITS:
        raise TooLarge("a very large number")


def _bits(number: Expr) -> int:
    return sum(
        int(part.p).bit_length() + int(part.q).bit_length() for part in number.atoms(Rational)
    )


def _factorial(number: Expr) -> Expr:
    _limit(abs(number) * _bits(number))
    return sympy.factorial(number)


def _binomial(number: Expr, chosen: Expr) -> Expr:
    _limit(abs(chosen) * _bits(number))
    found = sympy.binomial(number, chosen)
    return found if found.is_number else found.rewrite(gamma)


def _double_factorial(number: Expr) -> Expr:
    """Of 2n - 1 by the gamma function, which has values between whole numbers too."""
    _limit(abs(number) * _bits(number))
    if number.is_number:
        return factorial2(number) if number.is_integer and number >= -1 else nan
    names = map(str, number.free_symbols)
    wholes = [(Symbol(name), Symbol(name, integer=True)) for name in names]
    found = factorial2(number.subs(wholes)).rewrite(gamma)
    if found.has(Piecewise):  # for odd numbers and for even ones
        return Symbol(f"({number})!!")
    return found.subs([(whole, letter) for letter, whole in wholes])


def _power(base: Expr, exponent: Expr) -> Expr:
    if base == 0 and not exponent.is_number:
        raise Unreadable("a power of 0 that has no value for some letters")
    if base not in (0, 1, -1):
        _limit(abs(exponent) * _bits(base))
    return base**exponent


_OPERATIONS: Mapping[str, Callable[..., Expr]] = {
    "pi": lambda: sympy.pi,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "fraction": lambda a, b: a / b,
    "mixed": lambda a, b: a + b,
    "negative": lambda a: -a,
    "grouped": lambda a: a,
    "degree": lambda a: a * sympy.pi / 180,
    "absolute": sympy.Abs,
    "^": _power,
    "root": _root,
    "factorial": _factorial,
    "double_factorial": _double_factorial,
    "binomial": _binomial,
    "floor": sympy.floor,
    "ceiling": sympy.ceiling,
}
