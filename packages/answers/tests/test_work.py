"""No answer holds up or breaks the event loop: work is counted in calls, which are not timed."""

from __future__ import annotations

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
HOSTILE = [
    ("7", "+".join([POWER] * 40)),
    ("7", ",".join(f"(a+{k}b+c)^8" for k in range(35))),
    ("1<x<3", ",".join(f"x<(a+{k}b+c)^8" for k in range(30))),
    ("x>1,y>2", ",".join(f"x_{k % 10}<(a+{k}b)^9" for k in range(30))),
    ("x^3+y^3=(a+b)^{12}", "=".join(["+".join([POWER] * 24)] * 2)),
    ("x=1", "x=" + "=".join([POWER] * 45)),
    (",".join(f"x={k}" for k in range(30)), ",".join(f"x={k}.0" for k in range(130, 160))),
    (",".join(f"({k},{k})" for k in range(25)), ",".join(f"({k},{k + 1})" for k in range(35))),
    ("ee", "e^{64}" * 65),
    ("7", "+".join(f"\\sqrt{{99999999{k}}}" for k in range(10, 30))),
    ("1.234", "+".join(f"\\sqrt{{{k}}}" for k in range(2, 18))),
    ("1,2,3", "1\\pm 2," * 60),
    ("7", r"(\sqrt2+\sqrt3+\sqrt5+\sqrt7)^8+" * 10 + "1"),
    ("5\\text{ cm}", ",".join(f"{k}\\text{{ m}}" for k in range(45))),
    ("9" * 400, "9" * 499),
    ("B", "½" * 500),
    (r"30^\circ", "is " * 166),
    (r"12\%", r"\{" + "x=" * 240 + r"\}"),
]


# What is repeated in a row, and what is nested.
FUNCTIONS = (
    *(r"\sin ", r"\ln", r"\exp ", r"\log_2 ", r"\log_", r"\arcsin ", r"\sin^2 ", r"\tanh "),
    *(r"\frac", r"\frac1", r"\frac{", r"\sqrt", r"\sqrt2", r"\sqrt{", r"\sqrt(", r"\binom1", "√"),
    *("f(", r"\overline ", r"\overline{", r"\vec ", r"\text{", r"\begin{pmatrix}", r"\left"),
)
SIGNS = (
    *("-", "+", "^", "_", "x^", "x_", "2^", "!", "'", "²", "x²", "°", r"^\circ", "%", "=", "<"),
    *(",", ";", ":", "/", "1/", "*", ".", "|", "x|", "&", r"\\", "$", r"\$", "(", "{", "}", r"\{"),
    *("1,", "1+", "x=", "1<", "1 ", "9", "x", "0.", r"\,", ",\\! ", "or ", "A) ", "٣", "\x00"),
    *(r"\cup ", r"\in ", r"\le ", r"\pm ", r"\approx ", r"\equiv ", r"\text{a}", r"\not"),
)
PAIRS = (
    *(("(", ")"), ("[", "]"), ("{", "}"), (r"\{", r"\}"), ("|", "|"), (r"\lfloor ", r"\rfloor ")),
    *((r"\sqrt{", "}"), (r"\sqrt[", "]"), (r"\frac{", "}{1}"), (r"\binom{", "}{1}"), ("x^{", "}")),
    *((r"\text{", "}"), (r"\boxed{", "}"), ("x_{", "}"), ("-(", ")"), (r"\sin(", ")")),
    *(("(1,", ")"), ("f(", ")")),
    *((r"\{x:", r"\}"), (r"x\in\{x|", r"\}"), (r"\begin{pmatrix}", r"\end{pmatrix}")),
)


REPEATED = [(each * 500)[:500] for each in FUNCTIONS + SIGNS]


@pytest.mark.parametrize(
    ("gold", "answer"),
    HOSTILE + [(gold, text) for text in REPEATED for gold in ("(1,2)", text[1:])],
)
def test_the_work_on_an_answer_is_bounded(gold: str, answer: str, count_calls: CountCalls) -> None:
    read_unit("cm")  # pint is loaded once
    assert count_calls(lambda: compare(gold, answer[:500])) < CALLS


@pytest.mark.parametrize(("opens", "closes"), [*PAIRS, *((each, "") for each in FUNCTIONS + SIGNS)])
def test_whatever_is_repeated_or_nested_is_read_without_an_error(opens: str, closes: str) -> None:
    """Nothing is asked of the results; answers as long as some of these are never read there."""
    for times in (20, 500):
        for last in (f"x{closes * times}", "x", ""):
            answer = opens * times + last
            compare(answer, "x^2")
            compare("7", answer)
            is_restated("7", answer, "Compute 3 + 4.")
            last_boxed(rf"\boxed{{{answer}}}")


def test_a_long_list_is_decided_if_it_is_not_too_much_work() -> None:
    powers = [",".join(f"x^{{{k}}}" for k in places) for places in (range(30), range(30, 60))]
    assert compare(*powers).equal is None
    numbers = ",".join(map(str, range(30)))
    assert compare(numbers, ", ".join(map(str, reversed(range(30))))).equal
    assert compare(numbers, numbers.replace("29", "30")).equal is False


PIECES = st.sampled_from(
    [
        *"0129xyie{}()[]^_+-*/,=<!%|&:. π²\u0660\ud800",
        *(r"\frac", r"\sqrt", r"\pi", r"\cup", r"\{", r"\}", r"\pm", r"\binom", r"\in", r"\infty"),
        *(r"\text{km}", r"\mathbb{R}", r"\begin{pmatrix}", r"\end{pmatrix}", r"^\circ", r"\\"),
        *("x^{64}", "^{1/2}", "^{-1}", "0^{0}", "/0", r"\sqrt[3]{7}"),
    ]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join)


@given(TEXTS, TEXTS)
@example("[]", r"\sqrt{2}")
@example("x_\ud800", "y^2")
def test_no_text_is_too_odd_to_be_compared(gold: str, answer: str) -> None:
    assert compare(gold, answer).path
    assert compare(answer, answer).equal
