"""Whether two answers are the same mathematics, by math-verify. Runs in a worker of the pool only.

It may take for ever, take all memory, or crash: no timeout in here could prevent that.
"""

from __future__ import annotations

import logging

from math_verify import parse, verify
from sympy import Expr, Integer, Rational

from services.grader.latex import has_ellipsis, parse_number, squeezed, tidy, trailing_unit

RIGHT = "right"
WRONG = "wrong"
NOT_PARSABLE = "not_parsable"
GOLD_NOT_PARSABLE = "gold_not_parsable"

_TINY = 1e-6  # below this math-verify rounds a difference away
_TYPICAL = (
    (r"\frac{1}{2}\sqrt{3}", r"\frac{\sqrt{3}}{2}"),
    (r"(1,2]", r"1 < x \le 2"),
    (r"\{1,2\}", "2, 1"),
    (r"(x+1)(x-1)", "x^2 - 1"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    (r"y = 2x + 1", "2x - y + 1 = 0"),
    (r"\sin\frac{\pi}{6} + \log_2 8", r"\cos 0 + e^{2i\pi} + 3!"),
)

logging.getLogger("math_verify").setLevel(logging.ERROR)


def compare(gold: str, answer: str) -> str:
    """One of `RIGHT`, `WRONG`, `NOT_PARSABLE` and `GOLD_NOT_PARSABLE`, for tidied LaTeX.

    Order matters: an interval as gold accepts an inequality, but not the other way round.
    """
    golds = _parsed(gold)
    if not golds:
        return GOLD_NOT_PARSABLE
    answers = _parsed(answer)
    if not answers:
        return NOT_PARSABLE
    if squeezed(gold) != squeezed(answer) and (verdict := _guarded(gold, golds, answer, answers)):
        return verdict
    same = verify(golds, answers, timeout_seconds=None, raise_on_error=True)
    return RIGHT if same else WRONG


def warm_up() -> None:
    """Fill the caches of parser and algebra, so that forked workers begin warm."""
    for gold, answer in _TYPICAL:
        compare(tidy(gold), tidy(answer))


def _parsed(latex: str) -> list:
    boxed = f"\\boxed{{{latex}}}"
    return parse(boxed, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]


def _guarded(gold: str, golds: list, answer: str, answers: list) -> str | None:
    """A verdict where math-verify is known to be too generous; None where it can be trusted."""
    if has_ellipsis(gold) or has_ellipsis(answer):
        return WRONG
    if _lost_its_meaning(gold, golds[0]) or _lost_its_meaning(answer, answers[0]):
        return WRONG
    if _is_tiny(golds[0]) or _is_tiny(answers[0]):
        return RIGHT if _exactly_equal(golds[0], answers[0]) else WRONG
    return None


def _lost_its_meaning(latex: str, parsed: object) -> bool:
    """A longer expression of which the parser kept a bare 0 or 1."""
    bare = isinstance(parsed, Integer) and int(parsed) in {0, 1}
    return bare and parse_number(latex) is None and trailing_unit(latex) is None


def _is_tiny(parsed: object) -> bool:
    if not isinstance(parsed, Expr) or not parsed.is_number:
        return False
    size = abs(parsed).evalf()
    return bool(size.is_comparable and size < _TINY)


def _exactly_equal(gold: Expr, answer: Expr) -> bool:
    exact_gold, exact_answer = gold.doit(), answer.doit()
    both_rational = isinstance(exact_gold, Rational) and isinstance(exact_answer, Rational)
    return both_rational and exact_gold == exact_answer
