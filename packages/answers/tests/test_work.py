"""No answer holds up or breaks the event loop: work is counted in calls, which are not timed."""

import re
from collections.abc import Callable

import pytest
from answers import compare
from answers.boxes import last_boxed
from answers.restating import is_restated
from answers.units import read_unit
from hypothesis import example, given
from hypothesis import strategies as st

CountCalls = Callable[[Callable[[], object]], int]
CALLS = 120_000  # some 20 ms
POWER = "(a+b+c)^8"


def join(template: str, *numbers: int, joint: str = ",") -> str:
    """Join a template with each number of a range in the place of #."""
    return joint.join(template.replace("#", str(number)) for number in range(*numbers))


HOSTILE = [
    ("7", join(POWER, 40, joint="+")),
    ("7", join("(a+#b+c)^8", 35)),
    ("1<x<3", join("x<(a+#b+c)^8", 30)),
    ("x>1,y>2", ",".join([join("x_#<(a+#b)^9", 10)] * 3)),
    ("x^3+y^3=(a+b)^{12}", "=".join([join(POWER, 24, joint="+")] * 2)),
    ("x=1", "x=" + join(POWER, 45, joint="=")),
    (join("x=#", 30), join("x=#.0", 130, 160)),
    (join("(#,#)", 25), join("(#,#1)", 35)),
    ("ee", "e^{64}" * 65),
    ("7", join(r"\sqrt{99999999#}", 10, 30, joint="+")),
    ("1.234", join(r"\sqrt{#}", 2, 18, joint="+")),
    ("1,2,3", r"1\pm 2," * 60),
    ("7", r"(\sqrt2+\sqrt3+\sqrt5+\sqrt7)^8+" * 10 + "1"),
    (r"5\text{ cm}", join(r"#\text{ m}", 45)),
    ("9" * 400, "9" * 499),
    ("B", "½" * 500),
    (r"30^\circ", "is " * 166),
    (r"12\%", r"\{" + "x=" * 240 + r"\}"),
]
# These texts are repeated in a row, and nested.
TEXTS_TO_REPEAT = r"""
\sin ~\ln~\exp ~\log_2 ~\log_~\arcsin ~\sin^2 ~\tanh ~\frac~\frac1~\frac{~\sqrt~\sqrt2~\sqrt{~\sqrt(
\binom1~√~f(~\overline ~\overline{~\vec ~\text{~\begin{pmatrix}~\left
-~+~^~_~x^~x_~2^~!~'~²~x²~°~^\circ~%~=~<~,~;~:~/~1/~*~.~|~x|~&~\\~$~\$~(~{~}~\{~1,~1+~x=~1<~1 ~9~x
0.~\,~,\! ~or ~A) ~٣~\cup ~\in ~\le ~\pm ~\approx ~\equiv ~\text{a}~\not
"""
SINGLE = [*re.split("[~\n]", TEXTS_TO_REPEAT.strip("\n")), "\x00"]
# Openers with their closers.
PAIRS = [
    pair.split("~")
    for pair in r"""
(~)
[~]
{~}
\{~\}
|~|
\lfloor ~\rfloor 
\sqrt{~}
\sqrt[~]
\frac{~}{1}
\binom{~}{1}
x^{~}
\text{~}
\boxed{~}
x_{~}
-(~)
\sin(~)
(1,~)
f(~)
\{x:~\}
x\in\{x|~\}
\begin{pmatrix}~\end{pmatrix}
""".strip("\n").splitlines()
]


REPEATED = [(text * 500)[:500] for text in SINGLE]


@pytest.mark.parametrize(
    ("gold", "answer"),
    [*HOSTILE, *((gold, text) for text in REPEATED for gold in ("(1,2)", text[1:]))],
)
def test_the_work_on_an_answer_is_bounded(gold: str, answer: str, count_calls: CountCalls) -> None:
    read_unit("cm")  # pint is loaded once
    assert count_calls(lambda: compare(gold, answer[:500])) < CALLS


@pytest.mark.parametrize(("opens", "closes"), [*PAIRS, *((text, "") for text in SINGLE)])
def test_whatever_is_repeated_or_nested_is_read_without_an_error(opens: str, closes: str) -> None:
    """Nothing is asserted about the verdicts."""
    for times in (20, 500):
        for last in (f"x{closes * times}", "x", ""):
            answer = opens * times + last
            compare(answer, "x^2")
            compare("7", answer)
            is_restated("7", answer, "Compute 3 + 4.")
            last_boxed(rf"\boxed{{{answer}}}")


def test_a_long_list_is_decided_if_it_is_not_too_much_work() -> None:
    powers = compare(join("x^{#}", 30), join("x^{#}", 30, 60))
    assert powers.equal is None
    numbers = join("#", 30)
    assert compare(numbers, join("#", 29, -1, -1)).equal
    assert compare(numbers, numbers.replace("29", "30")).equal is False


CHARS = "0129xyie{}()[]^_+-*/,=<!%|&:. π²\u0660\ud800"
COMMANDS = r"""
\frac \sqrt \pi \cup \{ \} \pm \binom \in \infty \text{km} \mathbb{R} \begin{pmatrix} \end{pmatrix}
^\circ \\ x^{64} ^{1/2} ^{-1} 0^{0} /0 \sqrt[3]{7}
"""
PIECES = st.sampled_from([*CHARS, *COMMANDS.split()])
TEXTS = st.lists(PIECES, max_size=30).map("".join)


@given(TEXTS, TEXTS)
@example("[]", r"\sqrt{2}")
@example("x_\ud800", "y^2")
def test_no_text_is_too_odd_to_be_compared(gold: str, answer: str) -> None:
    assert compare(gold, answer).path
    assert compare(answer, answer).equal
