"""No answer holds up the event loop: counted in calls of functions, which are not timed."""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.grader.answers.compare import compare as settle
from services.grader.answers.units import measure_of

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


def calls_of(gold: str, answer: str) -> int:
    """How many functions are called, those in C too, to settle what is asked for the first time."""
    count = 0
    measure_of("cm")  # pint is loaded once

    def called(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        settle(gold, answer)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("gold", "answer"), HOSTILE)
def test_the_work_on_an_answer_is_bounded(gold: str, answer: str) -> None:
    assert calls_of(gold, answer[:500]) < CALLS


def test_what_is_too_much_work_is_not_settled() -> None:
    members = [",".join(f"x^{{{k}}}" for k in places) for places in (range(30), range(30, 60))]
    assert settle(*members).equal is None


def test_a_long_list_is_settled() -> None:
    numbers = ",".join(map(str, range(30)))
    assert settle(numbers, ", ".join(map(str, reversed(range(30))))).equal
    assert settle(numbers, numbers.replace("29", "30")).equal is False


PIECES = st.sampled_from(
    [
        *"0129xyie{}()[]^_+-*/,=<!%|&:. π²\u0660\ud800",
        *(r"\frac", r"\sqrt", r"\pi", r"\cup", r"\{", r"\}", r"\pm", r"\binom", r"\in", r"\infty"),
        *(
            r"\text{km}",
            r"\mathbb{R}",
            r"\begin{pmatrix}",
            r"\end{pmatrix}",
            r"^\circ",
            r"\\",
            "x^{64}",
        ),
        *("^{1/2}", "^{-1}", "0^{0}", "/0", r"\sqrt[3]{7}"),
    ]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join)


@given(TEXTS, TEXTS)
@example("[]", r"\sqrt{2}")
@example("x_\ud800", "y^2")
def test_no_text_is_too_odd_to_be_compared(gold: str, answer: str) -> None:
    assert settle(gold, answer).path
    assert settle(answer, answer).equal
