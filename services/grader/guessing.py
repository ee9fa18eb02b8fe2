r"""What is outside the strict grammar, read by math-verify: sets, sums, integrals, limits.

A parser that guesses drops what it does not know, adds what stands side by side, and takes R for r.
So it is only given what it is known to read in full, and every letter must have arrived.
"""

from __future__ import annotations

import logging
import re

from math_verify import parse
from sympy import Basic, Set, Symbol
from sympy.core.function import AppliedUndef

from services.grader.answers.shapes import OF_SETS

_COMMANDS = frozenset(
    re.findall(
        r"\w+",
        "frac sqrt pi cdot times div sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh "
        "log ln exp binom dbinom tbinom lfloor rfloor lceil rceil infty sum prod int lim "
        "to gcd lcm max min cup cap setminus mathbb emptyset le ge ne in "
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu "
        "xi rho sigma tau phi varphi chi psi omega Delta Sigma Omega",
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
    r"|[0-9})] ?\\binom|\\binom[^+-]*\\binom|\}\s*\(|\) ?\(|[0-9] ?\(|\) ?[0-9]"
)
_IS_KNOWN = re.compile(
    r"\\(?:sum|prod|int|lim|gcd|lcm|max|min|cup|cap|setminus|infty|begin|in|emptyset|mathbb"
    r"|sinh|cosh|tanh|le|ge|ne)(?![a-zA-Z])|[<>=]|\\\{|\^ ?\{ ?-|[\[(].*,.*[\])]|\|[^|]+\|"
    r"|(?<![a-zA-Z\\])[fghFGP] ?\("
)
_BARE_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]+")
_INDEX = re.compile(r"_ ?([0-9a-z])(?![0-9a-z])")
_DECIMAL = re.compile(r"([0-9]*)\.([0-9]+)")

logging.getLogger("math_verify").setLevel(logging.ERROR)


class Unreadable(ValueError):
    """LaTeX that math-verify does not read, or of which it may lose the meaning."""


def guessed(latex: str) -> Basic:
    """What math-verify reads, if nothing was lost on the way.

    Raises:
        Unreadable: if something may have been.
    """
    latex = latex.replace(r"\mathbb{R}", r"(-\infty,\infty)")
    letters = set("".join(_BARE_LETTER.findall(latex)))
    if _is_refused(latex) or any(letter.swapcase() in letters for letter in letters):
        raise Unreadable
    spelled = _DECIMAL.sub(_as_fraction, _INDEX.sub(r"_{\1}", latex))
    boxed = f"\\boxed{{{spelled}}}"
    found = parse(boxed, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    if not found or not isinstance(found[0], Basic):
        raise Unreadable
    if OF_SETS.search(latex) and not isinstance(found[0], Set):
        raise Unreadable
    names = "".join(str(symbol) for symbol in found[0].atoms(Symbol, AppliedUndef)).casefold()
    if not all(letter.casefold() in names or letter in "eid" for letter in letters):
        raise Unreadable
    capitals = [(Symbol(name.lower()), Symbol(name)) for name in letters if name.isupper()]
    return found[0].subs(capitals)


def _is_refused(latex: str) -> bool:
    """Whether it is of a kind that math-verify is not known to read in full."""
    return (
        _IS_LOST.search(latex) is not None
        or _IS_KNOWN.search(latex) is None
        or _REFUSED.search(latex) is not None
        or not _COMMANDS.issuperset(_COMMAND.findall(latex))
    )


def _as_fraction(decimal: re.Match[str]) -> str:
    """Exact, where a float would have sixteen digits."""
    return rf"\frac{{{decimal[1]}{decimal[2]}}}{{1{'0' * len(decimal[2])}}}"
