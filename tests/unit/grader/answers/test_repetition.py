"""Whatever an answer repeats, in a row or nested, it is read in the event loop without an error."""

from __future__ import annotations

import pytest

from services.grader.answers.algebra.pool import NOT_PARSABLE, RIGHT, WRONG, compare
from services.grader.answers.boxes import last_boxed
from services.grader.answers.compare import compare as compare_here
from services.grader.answers.read import read_answer

FUNCTIONS = (
    *(r"\sin ", r"\ln", r"\exp ", r"\log_2 ", r"\log_", r"\arcsin ", r"\sin^2 ", r"\tanh "),
    *(r"\frac", r"\frac1", r"\sqrt", r"\sqrt2", r"\binom1", "√", "f(", r"\overline ", r"\vec "),
)
SIGNS = (
    *("-", "+", "^", "_", "x^", "x_", "2^", "!", "'", "²", "x²", "°", r"^\circ", "%", "=", "<"),
    *(",", ";", ":", "/", "1/", "*", ".", "|", "x|", "&", r"\\", "$", r"\$"),
    *("1,", "1+", "x=", "1<"),
    *(r"\cup ", r"\in ", r"\le ", r"\pm ", r"\approx ", r"\equiv ", r"\text{a}", " or ", r"\not"),
)
PAIRS = (
    *(("(", ")"), ("[", "]"), ("{", "}"), (r"\{", r"\}"), ("|", "|"), (r"\lfloor ", r"\rfloor ")),
    *((r"\sqrt{", "}"), (r"\sqrt[", "]"), (r"\frac{", "}{1}"), (r"\binom{", "}{1}"), ("x^{", "}")),
    *((r"\text{", "}"), (r"\boxed{", "}"), ("x_{", "}"), ("-(", ")"), (r"\sin(", ")")),
    *(("(1,", ")"), ("f(", ")")),
    *((r"\{x:", r"\}"), (r"x\in\{x|", r"\}"), (r"\begin{pmatrix}", r"\end{pmatrix}")),
)
TIMES = (20, 300, 1000)


def read_in_event_loop(gold: str, answer: str) -> None:
    """What the verifier does outside the pool, and more: it reads no long answers there.

    Nothing is asked of the results: no exception may leave any of it.
    """
    compare_here(gold, answer)
    read_answer(answer)
    last_boxed(rf"\boxed{{{answer}}}")


@pytest.mark.parametrize("repeated", FUNCTIONS + SIGNS)
def test_what_stands_in_a_row_is_read_without_an_error(repeated: str) -> None:
    for times in TIMES:
        for last in ("", "x", "1"):
            read_in_event_loop("7", repeated * times + last)
            read_in_event_loop(repeated * times + last, "x^2")


@pytest.mark.parametrize(("opens", "closes"), PAIRS)
def test_what_is_nested_is_read_without_an_error(opens: str, closes: str) -> None:
    for times in TIMES:
        for nested in (f"{opens * times}x{closes * times}", f"{opens * times}x"):
            read_in_event_loop("7", nested)
            read_in_event_loop(nested, "x^2")


@pytest.mark.parametrize("repeated", ["1+", "x+", "x-", r"2\cdot ", "x ", r"\pi+", r"\sin x+"])
def test_a_sum_is_read_however_long_it_is(repeated: str) -> None:
    assert compare("7", repeated * 250 + "1") in {WRONG, NOT_PARSABLE}
    assert compare("250", "1+" * 249 + "1") == RIGHT
    assert compare(r"\sin x", r"\sin x" + "+x-x" * 200) == RIGHT
