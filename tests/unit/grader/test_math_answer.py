"""Verdicts on answers, by the real math-verify in real workers."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from protocol.messages import Graded, Ungradable
from protocol.rewards import Check

from services.grader.latex import tidy
from services.grader.pool import Value
from services.grader.tools import Tools
from services.grader.verifiers import math_answer
from tests.builders import a_task

pytestmark = pytest.mark.anyio

CHECK = Check(verifier="math_answer")

RIGHT = [
    ("42", "42"),
    ("42", "42.0"),
    ("42", "+42"),
    ("42", "042"),
    ("42", "84/2"),
    ("42", r"\boxed{42}"),
    ("42", "42."),
    ("42", "$42$"),
    ("42", r"\text{42}"),
    ("42", "x = 42"),
    ("x = 42", "42"),
    ("1000", "1,000"),
    ("1000", r"1{,}000"),
    ("1000", r"1\,000"),
    ("0.5", r"\frac{1}{2}"),
    (r"\frac{1}{2}", "0.5"),
    (r"\frac{1}{2}", r"\dfrac12"),
    (r"\frac{1}{3}", "0.333333"),
    (r"\frac{2}{3}", "0.6666667"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    ("0.42", r"42\%"),
    (r"42\%", "0.42"),
    (r"42\%", "42"),  # "what percentage": the question gives the unit
    ("90", r"90^\circ"),
    (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}"),
    ("5", r"5\text{ cm}"),
    (r"\text{East}", "east"),
    (r"\text{(C)}", "C"),
    ("C", r"\text{(C)}"),
    ("yes", "Yes"),
    (r"\sqrt{2}+1", r"1+\sqrt2"),
    (r"\frac{\sqrt{3}}{2}", r"\frac{1}{2}\sqrt{3}"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
    ("x^2-1", "(x-1)(x+1)"),
    ("p - q", "-q + p"),
    (r"\{1,2\}", "2, 1"),
    ("1<x<2", "(1,2)"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"1-\frac{1}{\mathrm{e}}", "1-e^{-1}"),
    ("1/2^{99}", "2^{-99}"),
    ("1/2004!", "1/(2004!)"),
    ("0", r"\sin(\pi)"),
    (r"1,2,\ldots,n", r"1, 2, \ldots, n"),
]

WRONG = [
    ("42", "43"),
    ("42", "-42"),
    ("42", "4 2"),
    ("42", "41.9999999999"),
    ("42", "41, 42"),
    ("42", r"41 \text{ or } 42"),
    ("yes", "no"),
    ("no", "on"),
    (r"\text{East}", r"\text{West}"),
    (r"\text{(C)}", "D"),
    ("2", "two"),
    (r"\frac{1}{3}", "0.33"),
    (r"\frac{2}{3}", "0.666666"),
    (r"\pi", "3.14"),
    ("p - q", "q - p"),
    ("(1,2)", "(2,1)"),
    ("[1,2)", "(1,2)"),
    (r"\sqrt{2}", r"\sqrt{3}"),
    ("x^2", "x^3"),
    ("5", r"\frac{1}{0}"),
]

FALSE_VERDICTS_OF_MATH_VERIFY = [
    ("1/2004!", "1/2006!"),
    ("1/2^99", "1/2^98"),
    ("1/2^{99}", "1/2^{98}"),
    (r"1,2,\ldots,n", r"1,3,5,\ldots,2n-1"),
    ("1,2,…,n", "1,3,5,…,2n−1"),
    (r"1-1/\mathrm{e}", r"1+1/\mathrm{e}"),
    ("1−1/\\mathrm{e}", "1+1/\\mathrm{e}"),
    ("42", r"42\%"),
    ("x+42", r"42\%"),
    (r"\sqrt{2}", r"\sqrt{2}\%"),
    (r"5\text{ m}", r"5\text{ cm}"),
    (r"5\text{ cm}^2", r"5\text{ cm}^3"),
    ("0", "10^{-9}"),
    ("10^{-9}", "0"),
    ("1/2^{99}", "0.000000"),
    ("1", "e^0"),  # a bare 1 that the parser made of more: true here, but not to be trusted
]


async def verdict(tools: Tools, gold: str, answer: str) -> tuple[float | None, str | None]:
    text = rf"We find $x$. First \boxed{{41}}, no: \boxed{{{answer}}}."
    score = await math_answer.verify(a_task(answer=gold), text, CHECK, tools)
    return (score.value if isinstance(score, Graded) else None), score.reason


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
async def test_an_equal_answer_is_right(tools: Tools, gold: str, answer: str) -> None:
    assert await verdict(tools, gold, answer) == (1, None)


@pytest.mark.parametrize(("gold", "answer"), WRONG)
async def test_another_answer_is_wrong(tools: Tools, gold: str, answer: str) -> None:
    assert await verdict(tools, gold, answer) == (0, "wrong")


@pytest.mark.parametrize(("gold", "answer"), FALSE_VERDICTS_OF_MATH_VERIFY)
async def test_known_false_verdicts_are_not_repeated(tools: Tools, gold: str, answer: str) -> None:
    assert await verdict(tools, gold, answer) == (0, "wrong")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("the answer is 5", "no_answer"),
        ("", "no_answer"),
        (r"\boxed{}", "no_answer"),
        (r"\boxed{ }", "no_answer"),
        (r"\boxed{5", "no_answer"),
        (r"<think>\boxed{5}</think>", "no_answer"),
        (r"\boxed{\frac{}", "no_answer"),
        (r"\boxed{\frac{1}{}}", "not_parsable"),
        (r"\boxed{+*}", "not_parsable"),
        (r"\boxed{" + "5" * 2001 + "}", "too_long"),
        (r"\boxed{5}" + " " * 1_000_000, "too_long"),
    ],
)
async def test_the_fault_of_a_response_is_wrong_with_its_reason(
    tools: Tools, text: str, reason: str
) -> None:
    score = await math_answer.verify(a_task(answer="5"), text, CHECK, tools)
    assert score == Graded(value=0, reason=reason)


@pytest.mark.parametrize("gold", [r"\frac{", "+*", r"\frac{1}{0}"])
async def test_a_gold_answer_that_cannot_be_graded_is_never_a_zero(tools: Tools, gold: str) -> None:
    score = await math_answer.verify(a_task(answer=gold), r"\boxed{5+x}", CHECK, tools)
    assert score == Ungradable(reason="gold_not_parsable")


async def test_an_expression_too_hard_to_evaluate_is_wrong_after_a_second_try(
    tools: Tools,
) -> None:
    started = time.monotonic()
    score = await math_answer.compare("5", r"5^{5^{5^{5^5}}}", tools)
    assert score == Graded(value=0, reason="too_hard")
    assert time.monotonic() - started > 2 * tools.compare_deadline_s


async def test_a_gold_answer_too_hard_to_evaluate_is_the_fault_of_no_response(
    tools: Tools,
) -> None:
    gold = r"\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}"
    assert await math_answer.compare(gold, "3", tools) == Ungradable(reason="gold_not_parsable")


async def test_a_hard_neighbour_changes_no_verdict(tools: Tools) -> None:
    hard = asyncio.create_task(math_answer.compare("5", r"9^{9^{9^9}}", tools))
    easy = [math_answer.compare(r"\sqrt{2}+1", r"1+\sqrt{2}", tools) for _ in range(20)]
    assert await asyncio.gather(*easy) == [Graded(value=1)] * 20
    assert await hard == Graded(value=0, reason="too_hard")


DATA = Path(__file__).parents[4] / "shared" / "data"
FILES = sorted(DATA.glob("*.jsonl"))


@pytest.mark.skipif(not FILES, reason="needs task files in ../shared/data")
async def test_every_gold_answer_of_the_task_files_equals_itself(tools: Tools) -> None:
    lines = [line for path in FILES for line in path.read_text().splitlines()]
    golds = [json.loads(line)["answer"] for line in lines]
    scores = await asyncio.gather(*(verdict(tools, gold, gold) for gold in golds))
    assert set(scores) == {(1, None)}
    function = "services.grader.equivalence:compare"
    compared = await asyncio.gather(
        *(tools.pool.run(function, tidy(gold), tidy(gold), deadline_s=5) for gold in golds)
    )
    assert set(compared) == {Value("right")}
