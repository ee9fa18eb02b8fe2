r"""Whether two answers are the same mathematics. Runs in a worker of the pool only.

It may take for ever, take all memory, or crash: no timeout in here could prevent that.

What an answer is made of is read as in the service. Its expressions are read by the strict grammar,
and by math-verify only where that cannot. It is not trusted to say that two expressions are equal,
because it rounds: they must agree to fifty digits, at points of their own if they have letters.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache

from math_verify import verify
from sympy import Basic, Expr, Rational, Set, Symbol, numer, together
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from services.grader.answers.asking import Question
from services.grader.answers.comparing import MAX_MEMBERS, compare_answers, read_text
from services.grader.answers.formulas import formula_or_none
from services.grader.answers.numerals import is_rounding, parse_number
from services.grader.answers.shapes import Kind, Shape, shape_of
from services.grader.expressions import expression, expression_of
from services.grader.guessing import Unreadable, guessed
from services.grader.latex import has_ellipsis
from services.grader.sampling import agreement, sign_of_factor, value_of, worked_out

RIGHT = "right"
WRONG = "wrong"
NOT_PARSABLE = "not_parsable"
GOLD_NOT_PARSABLE = "gold_not_parsable"

_SIMPLE_ANSWER = "7"
_MAX_DEPTH = 4
_DIGITS = 50  # of a fraction as a decimal number
_NAMED = (Symbol, AppliedUndef)
_TYPICAL = (
    (r"\frac{1}{2}\sqrt[3]{3}", r"\frac{\sqrt[3]{3}}{2}"),
    (r"(-\infty,1) \cup (1,\infty)", r"(-\infty,\infty) \setminus \{1\}"),
    (r"\sqrt{x+1} \sin 2x", r"2 \sqrt{1+x} \sin x \cos x"),
    (r"\begin{pmatrix}\ln 2\\2\end{pmatrix}", r"\begin{pmatrix}\log_2 8\\2\end{pmatrix}"),
    (r"y = 2^x + 1", r"2^x - y + 1 = 0"),
    (r"\sin\frac{\pi}{6} + \log_2 8", r"\cos 0 + e^{2i\pi} + 3! + \binom{5}{2} + |-3|"),
)


class GoldUnreadable(Unreadable):
    """A gold answer that cannot be read surely."""


def compare(gold: str, answer: str, problem: str = "") -> str:
    """One of `RIGHT`, `WRONG`, `NOT_PARSABLE` and `GOLD_NOT_PARSABLE`, for answers as written.

    What becomes of a gold beside one answer is that answer's fault if it can be compared at all.
    """
    try:
        verdict = compare_answers(gold, answer, _same, Question(problem))
    except GoldUnreadable:
        return NOT_PARSABLE if examine(gold) else GOLD_NOT_PARSABLE
    except Unreadable:
        return NOT_PARSABLE
    return RIGHT if verdict.equal else WRONG


@lru_cache(maxsize=256)
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
        return _is_readable(gold)
    return all(_is_comparable(part, depth + 1) for part in shape.parts)


def _is_readable(gold: str) -> bool:
    try:
        compare_answers(gold, _SIMPLE_ANSWER, _same)
    except Unreadable:
        return False
    return True


def _same(gold: str, answer: str) -> bool:
    """The leaf of a comparison: two tidied expressions, relations or sets."""
    shape, other = shape_of(gold), shape_of(answer)
    if shape is None or len(shape.parts) > MAX_MEMBERS:
        raise GoldUnreadable
    if shape.kind is Kind.SCALAR:
        _parsed_gold(gold)
    if other is None or len(other.parts) > MAX_MEMBERS:
        raise Unreadable
    if shape.kind is other.kind is Kind.RELATION:
        return _same_relations(shape, other)
    return _same_values((gold, _as_set(_parsed_gold(gold))), (answer, _as_set(_parsed(answer))))


def _same_values(gold: tuple[str, Basic], answer: tuple[str, Basic]) -> bool:
    """Of two answers as they are written and as they are read."""
    (written, expected), (other, found) = gold, answer
    if isinstance(expected, Set) or isinstance(found, Set):
        return _same_sets(expected, found)
    if not (isinstance(expected, Expr) and isinstance(found, Expr)):
        return _verified(expected, found)
    if _is_rounded(expected, other) or _is_rounded(found, written):
        return True
    agreed = agreement(expected, found, f"{written}\n{other}")
    if agreed is None and (expected.atoms(*_NAMED) or found.atoms(*_NAMED)):
        return _verified(expected, found)
    return bool(agreed)


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
    found, seed = _difference(answer), "\n".join((*gold.parts, *answer.parts))
    if gold.marks in ("=", r"\ne"):
        return bool(sign_of_factor(_numerator(expected), _numerator(found), seed))
    return sign_of_factor(expected, found, seed) == 1


def _numerator(difference: Expr) -> Expr:
    """It is 0 where the difference is, as of ``y - 1/x`` is ``xy - 1``."""
    return numer(together(difference))


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
    if value is None or not value.is_real:
        return False
    digits = value.evalf(_DIGITS) if isinstance(value, Rational) else value
    return is_rounding(decimal, Decimal(str(digits)))


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
    """A plain number or the strict grammar; what neither reads is left to math-verify.

    Raises:
        Unreadable: if something may have been lost on the way.
    """
    number = parse_number(latex)
    if number is not None and not number.is_percentage:
        return Rational(number.value.numerator, number.value.denominator)
    if (strictly := expression(latex)) is not None:
        return strictly
    formula = formula_or_none(latex)
    return guessed(latex) if formula is None else expression_of(formula)
