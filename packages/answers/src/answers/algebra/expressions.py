r"""LaTeX as an expression of SymPy, by the strict grammar or else by math-verify. In the pool only.

A parser that guesses drops what it does not know, adds what stands side by side, and takes R for r,
and then any answer can be made to look like the gold one. What the grammar has read has been read
to its last token; math-verify is only given what it is known to read in full, such as sums,
integrals and limits, and every letter must have arrived.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping

import sympy
from math_verify import parse
from sympy import Basic, Expr, Piecewise, Product, Rational, Sum, Symbol
from sympy.core.function import AppliedUndef

from answers.nodes import Node, Unreadable
from answers.tokens import GREEK, lexicon

_MAX_BITS = 1_000_000  # of an exact number
_AMBIGUOUS = frozenset({"slash", "percent", "infinity", "plusminus"})
_NO_MARKS = str.maketrans("", "", "\\{}")
_CONSTANTS = {"e": sympy.E, "i": sympy.I}
_COMMANDS = lexicon(
    "frac sqrt pi cdot times div sin cos tan cot sec csc arcsin arccos arctan "
    "log ln exp binom dbinom tbinom lfloor rfloor lceil rceil infty sum prod int lim "
    "to gcd lcm max min"
)
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_REFUSED = re.compile(
    r"\\text|[':%&?@#\"$]|[^\x20-\x7e]"  # what math-verify drops, or takes for something else
    r"|[0-9)] [0-9]"  # it adds two numbers side by side
    r"|(?<![\\a-zA-Z])[a-zA-Z]{4}"  # it multiplies the letters of a word
)
# Of these math-verify forgets what stands before them, takes them for something else, or adds what
# stands side by side.
_IS_LOST = re.compile(
    r"(?<!\\lim_\{[a-z] )(?<!\\lim_\{[a-z])\\to(?![a-zA-Z])|!!"
    r"|\\(?:times|cdot|div)\s*[{}]|\\(?:gcd|lcm|max|min)(?! ?\()|\\lim(?! ?_)"
    r"|\\(?:sum|prod)(?! ?_ ?\{ ?[a-z] ?=)"
    r"|[_^] ?\\(?!(?:frac|sqrt|pi|infty)(?![a-zA-Z]))|\\int(?!.*d ?[a-z])"
    r"|[0-9})] ?\\binom|\\binom[^+-]*\\binom|\}\s*\(|\) ?\(|[0-9] ?\(|\) ?[0-9]"
)
_LIMIT = re.compile(r"\\lim ?_ ?\{[a-z] ?\\to [^{}]*\}")
_MAX_TERMS = 10_000
_IS_KNOWN = re.compile(
    r"\\(?:sum|prod|int|lim|gcd|lcm|max|min|infty)(?![a-zA-Z])|\^ ?\{ ?-|\|[^|]+\|"
    r"|(?<![a-zA-Z\\])[fghFGP] ?\("
)
_DANGLES = re.compile(r"(?:[-+*/^_(\[{<>=]|\\[a-zA-Z]+) ?\Z(?<!\\infty)(?<!\\pi)")
_ARRIVES_AS: dict[str, tuple[type[Basic] | Basic, ...]] = {
    "int": (sympy.Integral,),
    "lim": (sympy.Limit,),
    "prod": (Product,),
    "sum": (Sum,),
    "infty": (sympy.oo,),
    **dict.fromkeys(("ln", "log"), (sympy.log,)),
}
for _name in ("sin", "cos", "tan", "cot", "sec", "csc"):
    _inverse = getattr(sympy, f"a{_name}")
    _ARRIVES_AS[_name] = getattr(sympy, _name), _inverse  # as of \tan^{-1} 2
    _ARRIVES_AS[f"arc{_name}"] = (_inverse,)
_BARE_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]+")
_INDEX = re.compile(r"_ ?([0-9a-z])(?![0-9a-z])")
_DECIMAL = re.compile(r"([0-9]*)\.([0-9]+)")  # a float would have sixteen digits
logging.getLogger("math_verify").setLevel(logging.ERROR)


class TooLarge(Unreadable):
    """A number that nobody could write down, such as ``9^{9^9}``."""


def expression(tree: Node) -> Expr:
    """What a tree says; `Unreadable` if it has two readings, `TooLarge` if a number is."""
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
        for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")
    },
    **{name: getattr(sympy, name) for name in ("re", "im", "conjugate")},
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
    return found if found.is_number else found.rewrite(sympy.gamma)


def _double_factorial(number: Expr) -> Expr:
    """Of 2n - 1 by the gamma function, which has values between whole numbers too."""
    _limit(abs(number) * _bits(number))
    if number.is_number:
        return sympy.factorial2(number) if number.is_integer and number >= -1 else sympy.nan
    names = map(str, number.free_symbols)
    wholes = [(Symbol(name), Symbol(name, integer=True)) for name in names]
    found = sympy.factorial2(number.subs(wholes)).rewrite(sympy.gamma)
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
    **dict.fromkeys(("grouped", "numeral"), lambda a: a),
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


def guessed(latex: str) -> Expr:
    """What math-verify reads; `Unreadable` if something may have been lost on the way."""
    letters = set("".join(_BARE_LETTER.findall(latex)))
    if _is_refused(latex) or any(letter.swapcase() in letters for letter in letters):
        raise Unreadable
    spelled = _DECIMAL.sub(
        lambda d: rf"\frac{{{d[1]}{d[2]}}}{{1{'0' * len(d[2])}}}", _INDEX.sub(r"_{\1}", latex)
    )
    boxed = f"\\boxed{{{spelled}}}"
    found = parse(boxed, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    read = found[0] if found else None
    arrives_as = filter(None, map(_ARRIVES_AS.get, _COMMAND.findall(latex)))
    if not isinstance(read, Expr) or not all(read.has(*kinds) for kinds in arrives_as):
        raise Unreadable
    names = "".join(str(symbol) for symbol in read.atoms(Symbol, AppliedUndef)).casefold()
    if not all(letter.casefold() in names or letter in "eid" for letter in letters):
        raise Unreadable
    if not all(name.casefold() in names for name in GREEK.intersection(_COMMAND.findall(latex))):
        raise Unreadable
    if any(_terms(each) > _MAX_TERMS for each in read.atoms(Sum, Product)):
        raise TooLarge("very many terms")
    plain = ((each, str(each)) for each in read.free_symbols)
    names = {each: name.upper() if name.upper() in letters else name for each, name in plain}
    return read.subs({a: sympy.I if b == "i" else Symbol(b) for a, b in names.items()}).doit()


def _terms(series: Basic) -> int:
    """How many there are to add or multiply; none of an infinite series, which has a formula."""
    (_, first, last), *_ = series.limits  # pyright: ignore[reportAttributeAccessIssue]
    return int(last - first) if (last - first).is_Integer else 0


def _is_refused(latex: str) -> bool:
    return (
        _IS_LOST.search(_LIMIT.sub("+", latex)) is not None
        or _IS_KNOWN.search(latex) is None
        or _REFUSED.search(latex) is not None
        or _DANGLES.search(latex) is not None
        or not (_COMMANDS | GREEK).issuperset(_COMMAND.findall(latex))
    )
