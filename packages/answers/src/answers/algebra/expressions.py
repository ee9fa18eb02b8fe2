r"""LaTeX as an expression of SymPy, by the strict grammar or else by math-verify.

A parser that guesses drops unknown commands, adds adjacent terms, and takes R for r; then any
answer can be made to look like the gold answer. The grammar reads a text to its last token.
math-verify gets only the kinds that it reads in full, such as sums, integrals and limits, and every
letter must have arrived.
"""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import sympy
from math_verify import parse
from sympy import Basic, Expr, Piecewise, Product, Rational, Sum, Symbol
from sympy.core.function import AppliedUndef

from answers.nodes import Node, Unreadable, fold
from answers.tokens import GREEK, lexicon, vocabulary

_MAX_BITS = 1_000_000  # of an exact number
_MAX_TERMS = 10_000  # of a sum or a product
_AMBIGUOUS = lexicon("slash percent infinity plusminus")
_NO_MARKS = str.maketrans("", "", "\\{}")
_CONSTANTS = {"e": sympy.E, "i": sympy.I}
_COMMANDS = lexicon(
    """
    frac sqrt pi cdot times div sin cos tan cot sec csc arcsin arccos arctan log ln exp binom dbinom
    tbinom lfloor rfloor lceil rceil infty sum prod int lim to gcd lcm max min
    """
)
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_REFUSED = re.compile(
    r"""
    \\text | [':%&?@\#"$] | [^\x20-\x7e]  # math-verify drops these, or misreads them
    | [0-9)]\ [0-9]                       # it adds two adjacent numbers
    | (?<![\\a-zA-Z])[a-zA-Z]{4}          # it multiplies the letters of a word
    """,
    re.VERBOSE,
)
# math-verify forgets what stands before these, misreads them, or adds adjacent terms.
_LOST = re.compile(
    r"""
    (?<!\\lim_\{[a-z]\ )(?<!\\lim_\{[a-z]) \\to(?![a-zA-Z]) | !!
    | \\(?:times|cdot|div)\s*[{}] | \\(?:gcd|lcm|max|min)(?!\ ?\() | \\lim(?!\ ?_)
    | \\(?:sum|prod)(?!\ ?_\ ?\{\ ?[a-z]\ ?=)
    | [_^]\ ?\\(?!(?:frac|sqrt|pi|infty)(?![a-zA-Z])) | \\int(?!.*d\ ?[a-z])
    | [0-9})]\ ?\\binom | \\binom[^+-]*\\binom | \}\s*\( | \)\ ?\( | [0-9]\ ?\( | \)\ ?[0-9]
    """,
    re.VERBOSE,
)
_LIMIT = re.compile(r"\\lim ?_ ?\{[a-z] ?\\to [^{}]*\}")
# Only these need math-verify.
_KNOWN = re.compile(
    r"""
    \\(?:sum|prod|int|lim|gcd|lcm|max|min|infty)(?![a-zA-Z]) | \^\ ?\{\ ?- | \|[^|]+\|
    | (?<![a-zA-Z\\])[fghFGP]\ ?\(
    """,
    re.VERBOSE,
)
_DANGLING = re.compile(r"(?:[-+*/^_(\[{<>=]|\\[a-zA-Z]+) ?\Z(?<!\\infty)(?<!\\pi)")
_BARE_LETTERS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]+")
_INDEX = re.compile(r"_ ?([0-9a-z])(?![0-9a-z])")
_DECIMAL = re.compile(r"([0-9]*)\.([0-9]+)")  # a float would have sixteen digits
_TRIGONOMETRIC = vocabulary("sin cos tan cot sec csc")
_HYPERBOLIC = vocabulary("sinh cosh tanh coth sech csch")
_WITH_HYPERBOLIC_INVERSE = vocabulary("sinh cosh tanh")
# What each command must have become.
_BECOMES: dict[str, tuple[type[Basic] | Basic, ...]] = {
    "int": (sympy.Integral,),
    "lim": (sympy.Limit,),
    "prod": (Product,),
    "sum": (Sum,),
    "infty": (sympy.oo,),
    "ln": (sympy.log,),
    "log": (sympy.log,),
}
for _name in _TRIGONOMETRIC:
    _inverse = getattr(sympy, f"a{_name}")
    _BECOMES[_name] = (getattr(sympy, _name), _inverse)  # \tan^{-1} is an inverse
    _BECOMES[f"arc{_name}"] = (_inverse,)
logging.getLogger("math_verify").setLevel(logging.ERROR)


class TooLarge(Unreadable):
    """A number is too large to be written down, such as ``9^{9^9}``."""


def to_sympy(tree: Node) -> Expr:
    """Return the expression of a tree.

    Raises:
        Unreadable: if it has two readings.
        TooLarge: if a number is too large.
    """
    if any(node.kind in _AMBIGUOUS for node in tree.walk()):
        raise Unreadable("an expression with two readings")
    return fold(tree, _build_node)


def _build_node(node: Node, parts: list[Expr]) -> Expr:
    if node.kind == "number":
        return Rational(node.number.numerator, node.number.denominator)
    if node.kind == "letter":
        # An index may have braces, as in x_{1}.
        return _CONSTANTS.get(node.letter) or Symbol(node.letter.translate(_NO_MARKS))
    if node.kind == "function":
        return _FUNCTIONS[node.letter](*parts)
    return _OPERATIONS[node.kind](*parts)


def _log(inside: Expr, base: Expr | None = None) -> Expr:
    return sympy.log(inside, 10 if base is None else base)


_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    name: getattr(sympy, name)
    for name in (*_TRIGONOMETRIC, *_HYPERBOLIC, *vocabulary("exp re im conjugate"))
}
for _name in (*_TRIGONOMETRIC, *_WITH_HYPERBOLIC_INVERSE):
    _FUNCTIONS[f"arc{_name}"] = getattr(sympy, f"a{_name}")
_FUNCTIONS["ln"] = sympy.log
_FUNCTIONS["lg"] = _log
_FUNCTIONS["log"] = _log


def _root(inside: Expr, index: Expr) -> Expr:
    is_real = index.is_odd and inside.is_number
    if is_real:
        return sympy.real_root(inside, index)
    return inside ** (1 / index)


def _check_bits(factor: Expr, number: Expr) -> None:
    """Raise an error if a number of this many times the bits of another is too large."""
    bits = abs(factor) * _count_bits(number)
    if bits.is_Rational and bits > _MAX_BITS:
        raise TooLarge("a very large number")


def _count_bits(number: Expr) -> int:
    rationals = number.atoms(Rational)
    return sum(int(part.p).bit_length() + int(part.q).bit_length() for part in rationals)


def _factorial(number: Expr) -> Expr:
    _check_bits(number, number)
    return sympy.factorial(number)


def _binomial(number: Expr, chosen: Expr) -> Expr:
    _check_bits(chosen, number)
    binomial = sympy.binomial(number, chosen)
    if binomial.is_number:
        return binomial
    return binomial.rewrite(sympy.gamma)


def _double_factorial(number: Expr) -> Expr:
    """Write (2n - 1)!! by the gamma function, which has values between whole numbers too."""
    _check_bits(number, number)
    if number.is_number:
        is_defined = number.is_integer and number >= -1
        if is_defined:
            return sympy.factorial2(number)
        return sympy.nan
    letters = [(Symbol(name), Symbol(name, integer=True)) for name in map(str, number.free_symbols)]
    factorial = sympy.factorial2(number.subs(letters)).rewrite(sympy.gamma)
    if factorial.has(Piecewise):  # odd and even numbers have different formulas
        return Symbol(f"({number})!!")
    return factorial.subs([(whole, letter) for letter, whole in letters])


def _power(base: Expr, exponent: Expr) -> Expr:
    if base == 0 and not exponent.is_number:
        raise Unreadable("a power of 0 that has no value for some letters")
    if base not in (0, 1, -1):
        _check_bits(exponent, base)
    return base**exponent


_OPERATIONS: Mapping[str, Callable[..., Expr]] = {
    "pi": lambda: sympy.pi,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "fraction": operator.truediv,
    "mixed": operator.add,
    "negative": lambda number: -number,
    "grouped": lambda inside: inside,
    "numeral": lambda number: number,
    "degree": lambda angle: angle * sympy.pi / 180,
    "absolute": sympy.Abs,
    "^": _power,
    "root": _root,
    "factorial": _factorial,
    "double_factorial": _double_factorial,
    "binomial": _binomial,
    "floor": sympy.floor,
    "ceiling": sympy.ceiling,
}


def parse_latex(latex: str) -> Expr:
    """Return the expression that math-verify reads.

    Raises:
        Unreadable: if math-verify may have lost or misread something.
        TooLarge: if a sum or product has too many terms.
    """
    letters = set("".join(_BARE_LETTERS.findall(latex)))
    if _is_refused(latex) or any(letter.swapcase() in letters for letter in letters):
        raise Unreadable
    spelled = _DECIMAL.sub(_to_fraction, _INDEX.sub(r"_{\1}", latex))
    boxed = f"\\boxed{{{spelled}}}"
    readings = parse(boxed, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    expression = readings[0] if readings else None
    if not isinstance(expression, Expr) or not _has_arrived(expression, latex, letters):
        raise Unreadable
    if any(_count_terms(series) > _MAX_TERMS for series in expression.atoms(Sum, Product)):
        raise TooLarge("very many terms")
    symbols: dict[Any, Any] = {}
    for symbol in expression.free_symbols:
        name = str(symbol)
        name = name.upper() if name.upper() in letters else name
        symbols[symbol] = sympy.I if name == "i" else Symbol(name)
    return expression.subs(symbols).doit()


def _to_fraction(decimal: re.Match[str]) -> str:
    digits, places = decimal.groups()
    return rf"\frac{{{digits}{places}}}{{1{'0' * len(places)}}}"


def _has_arrived(expression: Expr, latex: str, letters: set[str]) -> bool:
    """Return whether an expression has each letter and each command of a text."""
    commands = _COMMAND.findall(latex)
    if not all(expression.has(*_BECOMES[name]) for name in commands if name in _BECOMES):
        return False
    symbols = expression.atoms(Symbol, AppliedUndef)
    arrived = "".join(map(str, symbols)).casefold()
    names = [letter for letter in letters if letter not in "eid"]
    names += GREEK.intersection(commands)
    return all(name.casefold() in arrived for name in names)


def _count_terms(series: Basic) -> int:
    """Count the terms to add or multiply; an infinite series has a formula, and counts as 0."""
    (_, first, last), *_ = series.limits  # pyright: ignore[reportAttributeAccessIssue]
    if (last - first).is_Integer:
        return int(last - first)
    return 0


def _is_refused(latex: str) -> bool:
    is_lost = _LOST.search(_LIMIT.sub("+", latex))
    is_known = _KNOWN.search(latex)
    if is_lost or not is_known or _REFUSED.search(latex) or _DANGLING.search(latex):
        return True
    return not (_COMMANDS | GREEK).issuperset(_COMMAND.findall(latex))
