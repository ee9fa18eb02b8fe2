r"""Expressions that a model wrote, such as ``(k*sqrt(m))/n``: read, printed, and worked out.

Only letters, digits, ``+ - * / ^ ( )``, ``sqrt`` and ``pi`` are let in, and Python's parser, which
runs nothing, makes the tree. Exponents are constants, so that no value explodes.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 200
_MAX_EXPONENT = 10
_MAX_DENOMINATOR = 12
_TOKENS = re.compile(
    r"(?:sqrt(?=\s*\()|pi(?![a-z0-9])|[a-z](?![a-z0-9])|[0-9]{1,12}(?![0-9a-z.])|[-+*/^() ])+"
)
_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "^"}


class NotAllowed(ValueError):
    """The expression uses more than it may; the text says what."""


@dataclass(frozen=True)
class Node:
    """``kind`` is ``number``, ``pi``, ``letter``, ``negative``, ``sqrt``, ``^`` or an operator."""

    kind: str
    parts: tuple[Node, ...] = ()
    letter: str = ""
    number: Fraction = Fraction(0)

    def walk(self) -> Iterator[Node]:
        """This node and all below."""
        yield self
        for part in self.parts:
            yield from part.walk()


def read(text: str) -> Node:
    """The tree of an expression.

    Raises:
        NotAllowed: for anything outside the few tokens above.
    """
    if len(text) > MAX_CHARS or "**" in text or "//" in text or not _TOKENS.fullmatch(text):
        raise NotAllowed(
            f"{text[:MAX_CHARS]!r} uses more than letters, integers, + - * / ^, sqrt, pi"
        )
    try:
        tree = ast.parse(text.strip().replace("^", "**"), mode="eval")
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise NotAllowed(f"{text!r} is no expression") from error
    return _node(tree.body)


def _node(tree: ast.expr) -> Node:
    match tree:
        case ast.Constant(value=int() as value):
            return Node("number", number=Fraction(value))
        case ast.Name(id="pi"):
            return Node("pi")
        case ast.Name(id=letter):
            return Node("letter", letter=letter)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Node("negative", (_node(operand),))
        case ast.Call(func=ast.Name(id="sqrt"), args=[inside], keywords=[]):
            return Node("sqrt", (_node(inside),))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return Node("^", (_node(left),), number=_exponent(_node(right)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return Node(_OPERATORS[type(op)], (_node(left), _node(right)))
    raise NotAllowed("write products with *, and nothing but + - * / ^ sqrt( )")


def _exponent(node: Node) -> Fraction:
    if any(below.kind in {"letter", "pi", "sqrt"} for below in node.walk()):
        raise NotAllowed("an exponent must be a number")
    value = _constant(node)
    if value == 0 or max(abs(value.numerator), value.denominator) > _MAX_EXPONENT:
        raise NotAllowed(f"an exponent must be from 1/{_MAX_EXPONENT} to {_MAX_EXPONENT}")
    return value


def _constant(node: Node) -> Fraction:
    if node.kind == "number":
        return node.number
    values = [_constant(part) for part in node.parts]
    if node.kind == "/" and values[1]:
        return values[0] / values[1]
    if node.kind == "negative":
        return -values[0]
    raise NotAllowed("an exponent must be an integer or a fraction")


def latex(node: Node) -> str:
    """LaTeX with letters as ``<k>``."""
    if node.kind == "number":
        return str(node.number)
    if node.kind in {"pi", "letter"}:
        return r"\pi" if node.kind == "pi" else f"<{node.letter}>"
    template, in_brackets = _LATEX[node.kind]
    parts = [_part(part, kinds) for part, kinds in zip(node.parts, in_brackets, strict=True)]
    exponent = f"^{{{_exponent_latex(node.number)}}}" if node.kind == "^" else ""
    return template % tuple(parts) + exponent


def _exponent_latex(value: Fraction) -> str:
    sign, size = "-" if value < 0 else "", abs(value)
    if size.denominator == 1:
        return f"{sign}{size}"
    return rf"{sign}\frac{{{size.numerator}}}{{{size.denominator}}}"


def _part(node: Node, in_brackets: set[str]) -> str:
    return rf"\left({latex(node)}\right)" if node.kind in in_brackets else latex(node)


_SUMS = {"+", "-", "negative"}
_LATEX: Mapping[str, tuple[str, tuple[set[str], ...]]] = {  # and what goes in brackets, by part
    "+": ("%s+%s", (set(), {"negative"})),
    "-": ("%s-%s", (set(), _SUMS)),
    "*": (r"%s \cdot %s", (_SUMS, _SUMS)),
    "/": (r"\frac{%s}{%s}", (set(), set())),
    "^": ("%s", (_SUMS | {"*", "/", "^", "sqrt"},)),
    "sqrt": (r"\sqrt{%s}", (set(),)),
    "negative": ("-%s", (_SUMS,)),
}


def evaluate(node: Node, values: Mapping[str, int]) -> float:
    """The value as a float; NaN where it has none."""
    try:
        return _float(node, values)
    except (ZeroDivisionError, OverflowError, ValueError):
        return math.nan


def _float(node: Node, values: Mapping[str, int]) -> float:
    if node.kind == "number":
        return float(node.number)
    if node.kind == "pi":
        return math.pi
    if node.kind == "letter":
        return float(values[node.letter])
    parts = [_float(part, values) for part in node.parts]
    if node.kind == "^":
        return math.pow(parts[0], float(node.number))
    return _FLOATS[node.kind](*parts)


_FLOATS: Mapping[str, Callable[..., float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "negative": lambda a: -a,
    "sqrt": math.sqrt,
}


def letters(node: Node) -> list[str]:
    """The letters, in the order of their first place."""
    return list(dict.fromkeys(below.letter for below in node.walk() if below.kind == "letter"))


def radicands(node: Node) -> dict[str, int]:
    """The letters that stand alone under a root, each with the root's index."""
    found: dict[str, int] = {}
    for below in node.walk():
        index = 2 if below.kind == "sqrt" else below.number.denominator if below.kind == "^" else 1
        if index > 1 and below.parts[0].kind == "letter":
            found[below.parts[0].letter] = index
    return found


def denominators(node: Node) -> list[str]:
    """The letters below a fraction bar, radicands left out."""
    under = [below.parts[1] for below in node.walk() if below.kind == "/"]
    roots = radicands(node)
    below = [letter for part in under for letter in letters(part) if letter not in roots]
    return list(dict.fromkeys(below))


def constants(node: Node) -> list[int]:
    """The integers that are no exponents, but for denominators up to 12."""
    found = [int(node.number)] if node.kind == "number" else []
    for place, part in enumerate(node.parts):
        is_denominator = node.kind == "/" and place == 1 and part.kind == "number"
        if not (is_denominator and 1 < part.number <= _MAX_DENOMINATOR):
            found += constants(part)
    return found
