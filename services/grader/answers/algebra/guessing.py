r"""What is outside the strict grammar, read by math-verify: sums, products, integrals, limits.

A parser that guesses drops what it does not know, adds what stands side by side, and takes R for r.
So it is only given what it is known to read in full, and every letter must have arrived.
"""

from __future__ import annotations

import logging
import re

import sympy
from math_verify import parse
from sympy import Basic, Expr, Integral, Limit, Product, Sum, Symbol, oo
from sympy.core.function import AppliedUndef

from services.grader.answers.algebra.expressions import TooLarge
from services.grader.answers.nodes import Unreadable
from services.grader.answers.tokens import GREEK

_COMMANDS = frozenset(
    re.findall(
        r"\w+",
        "frac sqrt pi cdot times div sin cos tan cot sec csc arcsin arccos arctan "
        "log ln exp binom dbinom tbinom lfloor rfloor lceil rceil infty sum prod int lim "
        "to gcd lcm max min",
    )
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
    "int": (Integral,),
    "lim": (Limit,),
    "prod": (Product,),
    "sum": (Sum,),
    "infty": (oo,),
    "ln": (sympy.log,),
    "log": (sympy.log,),
}
for _name in ("sin", "cos", "tan", "cot", "sec", "csc"):
    _inverse = getattr(sympy, f"a{_name}")
    _ARRIVES_AS[_name] = getattr(sympy, _name), _inverse  # as of \tan^{-1} 2
    _ARRIVES_AS[f"arc{_name}"] = (_inverse,)
_BARE_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]+")
_INDEX = re.compile(r"_ ?([0-9a-z])(?![0-9a-z])")
_DECIMAL = re.compile(r"([0-9]*)\.([0-9]+)")

logging.getLogger("math_verify").setLevel(logging.ERROR)


def guessed(latex: str) -> Expr:
    """What math-verify reads, if nothing was lost on the way.

    Raises:
        Unreadable: if something may have been.
    """
    letters = set("".join(_BARE_LETTER.findall(latex)))
    if _is_refused(latex) or any(letter.swapcase() in letters for letter in letters):
        raise Unreadable
    spelled = _DECIMAL.sub(_as_fraction, _INDEX.sub(r"_{\1}", latex))
    boxed = f"\\boxed{{{spelled}}}"
    found = parse(boxed, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    read = found[0] if found else None
    if not isinstance(read, Expr) or not _has_arrived(latex, read):
        raise Unreadable
    names = "".join(str(symbol) for symbol in read.atoms(Symbol, AppliedUndef)).casefold()
    if not all(letter.casefold() in names or letter in "eid" for letter in letters):
        raise Unreadable
    if not all(name.casefold() in names for name in GREEK.intersection(_COMMAND.findall(latex))):
        raise Unreadable
    if any(_terms(each) > _MAX_TERMS for each in read.atoms(Sum, Product)):
        raise TooLarge("very many terms")
    return read.subs([(each, _letter(str(each), letters)) for each in read.free_symbols]).doit()


def _terms(series: Basic) -> int:
    """How many there are to add or multiply; none of an infinite series, which has a formula."""
    (_, first, last), *_ = series.limits  # pyright: ignore[reportAttributeAccessIssue]
    return int(last - first) if (last - first).is_Integer else 0


def _letter(name: str, written: set[str]) -> Expr:
    """The grammar's letter for that of math-verify, which takes R for r."""
    upper = name.upper()
    return sympy.I if name == "i" else Symbol(upper if upper in written else name)


def _has_arrived(latex: str, read: Expr) -> bool:
    """Whether each kind of command has become what it stands for."""
    known = (_ARRIVES_AS.get(name) for name in _COMMAND.findall(latex))
    return all(read.has(*kinds) for kinds in known if kinds)


def _is_refused(latex: str) -> bool:
    """Whether it is of a kind that math-verify is not known to read in full."""
    return (
        _IS_LOST.search(_LIMIT.sub("+", latex)) is not None
        or _IS_KNOWN.search(latex) is None
        or _REFUSED.search(latex) is not None
        or _DANGLES.search(latex) is not None
        or not (_COMMANDS | GREEK).issuperset(_COMMAND.findall(latex))
    )


def _as_fraction(decimal: re.Match[str]) -> str:
    """Exact, where a float would have sixteen digits."""
    return rf"\frac{{{decimal[1]}{decimal[2]}}}{{1{'0' * len(decimal[2])}}}"
