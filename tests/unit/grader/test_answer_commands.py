r"""No command of LaTeX is dropped from an answer: ``6 \gcd 5`` is not 6, 5, 11 or 30."""

from __future__ import annotations

import pytest

from services.grader.equivalence import GOLD_NOT_PARSABLE, NOT_PARSABLE, RIGHT, WRONG, compare
from services.grader.guessing import _COMMANDS, _GREEK
from services.grader.relations.tokens import FUNCTIONS

OTHERS = {
    *("bmod", "pmod", "mod", "circ", "backslash", "to", "pm", "mp", "equiv", "sim", "cong", "mid"),
    *("oplus", "otimes", "ast", "star", "prime", "dot", "bar", "overline", "wedge", "vee", "perp"),
    *(
        "mathbb",
        "Gamma",
        "Theta",
        "Lambda",
        "Phi",
        "Psi",
        "not",
        "parallel",
        "zzz",
        "sinh",
        "cosh",
        "tanh",
    ),
}
PATTERNS = (
    *(r"6 \CMD 5", r"6\CMD{5}", r"\CMD_{6} 5", r"\CMD{6} 5", r"\CMD 6 5", r"6 \CMD", r"\CMD 6"),
    *(r"\CMD{6}{5}", r"6+\CMD 5", r"6 \CMD_5", r"6^\CMD 5", r"\CMD^6 5", r"6_\CMD 5"),
)
GOLDS = ("5", "6", "11", "30")
PRODUCTS = {rf"6 \{name} 5" for name in ("cdot", "times", "ast")}
PRODUCTS |= {rf"6\{name}{{5}}" for name in ("cdot", "times", "ast")}
BINOMIALS = {
    pattern.replace("CMD", name)
    for name in ("binom", "dbinom", "tbinom")
    for pattern in (r"\CMD{6} 5", r"\CMD 6 5", r"\CMD{6}{5}")
}


@pytest.mark.parametrize("command", sorted(_COMMANDS | _GREEK | FUNCTIONS | OTHERS))
def test_a_command_between_numbers_is_neither_of_them(command: str) -> None:
    equal = {
        (gold, answer)
        for answer in (pattern.replace("CMD", command) for pattern in PATTERNS)
        for gold in GOLDS
        if compare(gold, answer) == RIGHT
    }
    assert equal <= {("30", answer) for answer in PRODUCTS} | {("6", each) for each in BINOMIALS}


GOLDS_THAT_CAN_BE_READ = (
    *("42", "3 1/2", "12 345", r"0.\overline{12}", r"0.1\overline{6}\text{ cm}", r"12\%"),
    *(r"\pi(R^2-r^2)", "(2n-1)!!", r"\sqrt[3]{2}", r"15\text{ cm}^2", r"\text{East}", r"90^\circ"),
    *("1,2,3", r"\{1,2\}", "(2,5)", "x>2", "x>2, y<5", r"x<1 \text{ or } x>3", "y=2x+1", r"x\ne3"),
    *(
        r"\begin{pmatrix}1\\2\end{pmatrix}",
        "(B)",
        r"2:30\text{ PM}",
        r"(-\infty,1)\cup(3,\infty)",
        r"1\pm\sqrt2",
    ),
    *(r"x \equiv 3 \pmod 5", r"\frac{\pi}{2}", "2^{10}", "f(x)=2x", r"\sin x = \frac12"),
)
NONSENSE = (
    *(r"\sin x", r"\ln 2", r"\frac00", r"\zzz", "((", r"\frac{", "+*", r"x \to", r"\infty", "()"),
    *(r"\{1,2", r"1 \cup 2", "<", "x<", r"\text{wrong", r"(1,2)\cup\zzz", r"y=\zzz"),
    *("x>2, y", ",".join(map(str, range(99))), r"\begin{pmatrix}1", r"5\text{ N}", "a'", "x!!!"),
)


@pytest.mark.parametrize("gold", GOLDS_THAT_CAN_BE_READ)
def test_whatever_the_answer_is_a_gold_that_can_be_read_stays_readable(gold: str) -> None:
    for answer in NONSENSE:
        assert compare(gold, answer) in {WRONG, NOT_PARSABLE}, answer


@pytest.mark.parametrize("gold", [r"\frac{", "+*", r"\zzz", "((", r"\frac{1}{0}", r"x' + 1"])
def test_a_gold_that_cannot_be_read_judges_nobody(gold: str) -> None:
    for answer in ("5", "x+1", r"\sin x", r"\zzz + 1", "(", "1,2"):
        assert compare(gold, answer) in {GOLD_NOT_PARSABLE, WRONG}, answer
    assert compare(gold, "x+1") == GOLD_NOT_PARSABLE
