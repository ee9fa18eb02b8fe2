r"""Whether two answers are the same mathematics. Runs in a worker of the pool only.

It may take for ever, take all memory, or crash: no timeout in here could prevent that.

What an answer is made of is read as in the service; math-verify is given single expressions, for
sets, text, percentages, equations and units are where it errs. And it is not trusted to say that
two expressions are equal, because it rounds: they must agree to fifty digits, at points of their
own if they have letters.
"""

from __future__ import annotations

import logging
import re
from decimal import Decimal
from functools import lru_cache

from math_verify import parse, verify
from sympy import Basic, Expr, Set, Symbol
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from services.grader.answers.asking import Question
from services.grader.answers.comparing import compare_answers, read_text
from services.grader.answers.numerals import is_rounding, parse_number
from services.grader.answers.shapes import Kind, Shape, shape_of
from services.grader.expressions import expression
from services.grader.latex import has_ellipsis
from services.grader.sampling import agreement, sign_of_factor, value_of, worked_out

RIGHT = "right"
WRONG = "wrong"
NOT_PARSABLE = "not_parsable"
GOLD_NOT_PARSABLE = "gold_not_parsable"

_SIMPLE_ANSWER = "7"
_MAX_DEPTH = 4
_TYPICAL = (
    (r"\frac{1}{2}\sqrt[3]{3}", r"\frac{\sqrt[3]{3}}{2}"),
    (r"(-\infty,1) \cup (1,\infty)", r"(-\infty,\infty) \setminus \{1\}"),
    (r"\sqrt{x+1} \sin 2x", r"2 \sqrt{1+x} \sin x \cos x"),
    (r"\begin{pmatrix}\ln 2\\2\end{pmatrix}", r"\begin{pmatrix}\log_2 8\\2\end{pmatrix}"),
    (r"y = 2^x + 1", r"2^x - y + 1 = 0"),
    (r"\sin\frac{\pi}{6} + \log_2 8", r"\cos 0 + e^{2i\pi} + 3! + \binom{5}{2} + |-3|"),
)
_COMMANDS = frozenset(
    re.findall(
        r"\w+",
        "frac sqrt pi cdot times div sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh "
        "log ln lg exp binom dbinom tbinom lfloor rfloor lceil rceil infty circ sum prod int lim "
        "to gcd lcm max min cup cap setminus backslash mathbb emptyset le ge ne in "
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu "
        "xi rho sigma tau phi varphi chi psi omega Delta Sigma Omega bmod pmod mod",
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
    r"(?<!\\lim_\{[a-z] )(?<!\\lim_\{[a-z])\\to(?![a-zA-Z])"
    r"|\\(?:lg|backslash|bmod|pmod|mod|circ)(?![a-zA-Z])|!!"
    r"|\\(?:times|cdot|div)\s*[{}]|\\(?:gcd|lcm|max|min)(?! ?\()|\\lim(?! ?_)"
    r"|\\(?:sum|prod)(?! ?_ ?\{ ?[a-z] ?=)"
    r"|[0-9})] ?\\binom|\\binom[^+-]*\\binom|\}\s*\(|\) ?\(|[0-9] ?\(|\) ?[0-9]"
)
_IS_KNOWN = re.compile(
    r"\\(?:sum|prod|int|lim|gcd|lcm|max|min|cup|cap|setminus|infty|begin|in|emptyset|mathbb"
    r"|sinh|cosh|tanh|le|ge|ne)(?![a-zA-Z])|[<>=]|\\\{|\^ ?\{ ?-|[\[(].*,.*[\])]|\|[^|]+\|"
    r"|(?<![a-zA-Z\\])[fghFGP] ?\("
)
_OF_SETS = re.compile(r"\\(?:cup|cap|setminus|backslash)(?![a-zA-Z])")
_BARE_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]+")
_INDEX = re.compile(r"_ ?([0-9a-z])(?![0-9a-z])")
_DECIMAL = re.compile(r"([0-9]*)\.([0-9]+)")
_DEGREES = re.compile(r"(\\frac\{[0-9]+\}\{[0-9]+\}|[0-9]+|[a-z]|\([^()]*\)) ?\^\\circ")

logging.getLogger("math_verify").setLevel(logging.ERROR)


class Unreadable(ValueError):
    """LaTeX that math-verify does not read, or of which it may lose the meaning."""


class GoldUnreadable(Unreadable):
    """The same, of a gold answer."""


def compare(gold: str, answer: str, problem: str = "") -> str:
    """One of `RIGHT`, `WRONG`, `NOT_PARSABLE` and `GOLD_NOT_PARSABLE`, for answers as written."""
    try:
        verdict = compare_answers(gold, answer, _same, Question(problem))
    except GoldUnreadable:
        return GOLD_NOT_PARSABLE
    except Unreadable:
        return NOT_PARSABLE
    return RIGHT if verdict.equal else WRONG


def examine(gold: str) -> bool:
    """Whether this gold answer, down to each of its members, can be compared with another."""
    return _is_comparable(read_text(gold), depth=0)


def warm_up() -> None:
    """Fill the caches of parser and algebra, so that forked workers begin warm."""
    for gold, answer in _TYPICAL:
        compare(gold, answer)


def _is_comparable(gold: str, depth: int) -> bool:
    shape = shape_of(gold)
    if shape is None or has_ellipsis(gold):
        return False
    if shape.kind is Kind.SCALAR or depth > _MAX_DEPTH:
        return compare(gold, _SIMPLE_ANSWER) != GOLD_NOT_PARSABLE
    return all(_is_comparable(part, depth + 1) for part in shape.parts)


def _same(gold: str, answer: str) -> bool:
    """The leaf of a comparison: two tidied expressions, relations or sets."""
    _check_letters(gold, answer)
    shape, other = shape_of(gold), shape_of(answer)
    if shape and other and shape.kind is other.kind is Kind.RELATION:
        return _same_relations(shape, other)
    if shape is None:
        raise GoldUnreadable
    if other is None:
        raise Unreadable
    expected, found = _as_set(_parsed_gold(gold)), _as_set(_parsed(answer))
    if isinstance(expected, Set) or isinstance(found, Set):
        return _same_sets(expected, found)
    if not (isinstance(expected, Expr) and isinstance(found, Expr)):
        return _verified(expected, found)
    if _is_rounded(expected, answer) or _is_rounded(found, gold):
        return True
    agreed = agreement(expected, found)
    return _verified(expected, found) if agreed is None else agreed


def _same_relations(gold: Shape, answer: Shape) -> bool:
    """Both sides a multiple of the other's; one with three sides must have the same sides."""
    if gold.marks != answer.marks:
        return False
    if len(gold.parts) > 2:
        return all(_same(*pair) for pair in zip(gold.parts, answer.parts, strict=True))
    try:
        expected = _difference(gold)
    except Unreadable as error:
        raise GoldUnreadable from error
    sign = sign_of_factor(expected, _difference(answer))
    return bool(sign) if gold.marks in ("=", r"\ne") else sign == 1


def _difference(shape: Shape) -> Expr:
    left, right = (_parsed(side) for side in shape.parts)
    if not (isinstance(left, Expr) and isinstance(right, Expr)):
        raise Unreadable
    return left - right


def _as_set(parsed: Basic) -> Basic:
    if isinstance(parsed, Relational):
        return parsed.as_set()
    return parsed.doit() if isinstance(parsed, Set) else parsed


def _same_sets(gold: Basic, answer: Basic) -> bool:
    if not (isinstance(gold, Set) and isinstance(answer, Set)):
        return False
    return gold == answer or gold.symmetric_difference(answer).is_empty is True


def _verified(gold: Basic, answer: Basic) -> bool:
    """What has no values to compare is left to math-verify."""
    return verify([gold], [answer], timeout_seconds=None, raise_on_error=True)


def _is_rounded(exact: Expr, written: str) -> bool:
    decimal = parse_number(written)
    if decimal is None or not decimal.places or exact.free_symbols:
        return False
    value = value_of(worked_out(exact))
    return value is not None and bool(value.is_real) and is_rounding(decimal, Decimal(str(value)))


@lru_cache(maxsize=256)
def _parsed_gold(gold: str) -> Basic:
    try:
        parsed = _parsed(gold)
    except Unreadable as error:
        raise GoldUnreadable from error
    if (
        isinstance(parsed, Expr)
        and not parsed.free_symbols
        and value_of(worked_out(parsed)) is None
    ):
        raise GoldUnreadable
    return parsed


def _parsed(latex: str) -> Basic:
    """What math-verify reads, if nothing was lost on the way.

    Raises:
        Unreadable: if something may have been.
    """
    if (strictly := expression(latex)) is not None:
        return strictly
    if not _may_be_guessed(latex):
        raise Unreadable
    latex = _INDEX.sub(r"_{\1}", latex.replace(r"\mathbb{R}", r"(-\infty,\infty)"))
    latex = _DEGREES.sub(r"(\\frac{\1 \\pi}{180})", _DECIMAL.sub(_as_fraction, latex))
    if _REFUSED.search(latex) or not _COMMANDS.issuperset(_COMMAND.findall(latex)):
        raise Unreadable
    boxed = f"\\boxed{{{latex}}}"
    found = parse(boxed, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    if not found or not isinstance(found[0], Basic):
        raise Unreadable
    if _OF_SETS.search(latex) and not isinstance(found[0], Set):
        raise Unreadable
    names = "".join(str(symbol) for symbol in found[0].atoms(Symbol, AppliedUndef))
    if not _letters(latex) <= {*names.casefold(), *"eid"}:
        raise Unreadable
    return found[0]


def _may_be_guessed(latex: str) -> bool:
    """Whether what lies outside the strict grammar is of a kind that math-verify reads in full."""
    return _IS_LOST.search(latex) is None and _IS_KNOWN.search(latex) is not None


def _as_fraction(decimal: re.Match[str]) -> str:
    """Exact, where a float would have sixteen digits."""
    return rf"\frac{{{decimal[1]}{decimal[2]}}}{{1{'0' * len(decimal[2])}}}"


def _check_letters(gold: str, answer: str) -> None:
    """math-verify takes R for r."""
    letters = "".join(_BARE_LETTER.findall(gold)), "".join(_BARE_LETTER.findall(answer))
    if _has_both_cases(letters[0]):
        raise GoldUnreadable
    if _has_both_cases("".join(letters)):
        raise Unreadable


def _has_both_cases(letters: str) -> bool:
    return any(letter.swapcase() in letters for letter in letters)


def _letters(latex: str) -> set[str]:
    return set("".join(_BARE_LETTER.findall(latex)).casefold())
