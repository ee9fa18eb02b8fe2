"""What nobody can compute is told from what is merely large, without computing it."""

from __future__ import annotations

import pytest

from services.grader.answers.algebra.pool import (
    GOLD_NOT_PARSABLE,
    RIGHT,
    TOO_HARD,
    WRONG,
    compare,
)


@pytest.mark.parametrize(
    "latex",
    [
        r"5^{5^{5^{5^5}}}",
        r"\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}",
        r"10^{10^8}",
        r"(75^{6^{8}})!",
        r"(10^9)!!",
        r"\binom{7\cdot 10^{9}}{5\cdot 10^{8}}",
        r"3^{-10^{12}}",
        r"7 + 2(1 - 5^{99999999})",
        r"(x+1)^{10^{9}}",
        r"\sqrt{2}^{10^{10}}",
        r"-(-(-10^{10^{10}}))",
    ],
)
def test_towers_factorials_and_their_like_are_too_large(latex: str) -> None:
    assert compare("7", latex) == TOO_HARD
    assert compare(latex, "7") == GOLD_NOT_PARSABLE


@pytest.mark.parametrize(
    "latex",
    [
        "9" * 400,
        r"3^{100000}",
        r"\frac{1}{2006!}",
        r"2025!!",
        r"2^{-2^{9}}",
        r"\binom{1000}{500}",
        r"1^{10^{100}}",
        r"10^{10^{-9}}",
        r"x^{2025} + y^{2025}",
        r"\sin(10^{99})",
        r"\frac{10^{100}}{10^{99}}",
        r"\binom{10^{9}}{2}",
    ],
)
def test_what_an_answer_may_be_is_not(latex: str) -> None:
    assert compare(latex, rf"\frac{{2({latex})}}{{2}}") == RIGHT
    assert compare(latex, rf"{latex}+1") == WRONG
