"""Numbers, and every gold answer of the task files, in other spellings and with small changes.

A spelling that keeps the value is right and a change is wrong, all of them, by the real verifier.
Every spelling of a number meets every dress: what is right alone may be wrong together.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import product
from pathlib import Path

import pytest
from protocol.messages import Graded

from services.grader.answers.algebra.pool import examine
from services.grader.answers.compare import compare
from services.grader.tools import Tools
from services.grader.verifiers import math_answer
from tests.unit.grader.answers.rewriting import perturbed, rewritten

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parents[5] / "shared" / "data"
FILES = [path for name in ("aime2024", "math500") if (path := DATA / f"{name}.jsonl").exists()]
LINES = [line for path in FILES for line in path.read_text().splitlines()]
GOLDS = sorted({json.loads(line)["answer"] for line in LINES})

needs_data = pytest.mark.skipif(not GOLDS, reason="needs task files in ../shared/data")
RIGHT = [(gold, answer) for gold in GOLDS for answer in (gold, *rewritten(gold))]
WRONG = [(gold, answer) for gold in GOLDS for answer in perturbed(gold)]

NUMBERS = tuple(map(Decimal, ("7", "100", "1000", "70000", "1234567", "-2500", "1234.56")))
COMMAS = (",", "{,}", r",\!", r"\,")
DRESSES = (
    *("{}", " {} ", "{}.", "${}$", r"\({}\)", r"\boxed{{{}}}", r"\text{{{}}}", r"\mathbf{{{}}}"),
    *(r"x = {}", "x={}", r"{} = x", r"n = {} \text{{ students}}", r"\text{{The answer is }} {}"),
    *(r"{}\text{{ students}}", r"{} \text{{ miles}}"),
    *(r"{}\ \mathrm{{miles}}", r"{}~\text{{miles}}"),
)
MONEY = (r"\${}", r"\$ {}", r"\${}\text{{ dollars}}", r"{}\text{{ dollars}}", r"{} dollars")
PLAIN = ("{}", "{:,}")
OF_MONEY = (r"\${}", r"\${:,}", r"{}\text{{ dollars}}", r"{:,}\text{{ dollars}}")


def spelled(number: Decimal) -> Iterator[str]:
    zeros = ("", ".0", ".00") if number == number.to_integral() else ("",)
    for comma, decimals in product(("", *COMMAS), zeros):
        yield f"{number:,}".replace(",", comma) + decimals


def dressed(number: Decimal, written: Decimal) -> Iterator[tuple[str, str]]:
    for gold in (*PLAIN, *OF_MONEY):
        fitting = ("{}", "x = {}", *MONEY) if gold in OF_MONEY else DRESSES + MONEY
        for dress, digits in product(fitting, spelled(written)):
            yield gold.format(number), dress.format(digits)


async def misjudged(pairs: Iterable[tuple[str, str]], value: float, tools: Tools) -> list[str]:
    pairs = list(pairs)
    decisions = await asyncio.gather(
        *(math_answer.decide(gold, answer, tools) for gold, answer in pairs)
    )
    return [
        f"{gold} and {answer}: {decision}"
        for (gold, answer), decision in zip(pairs, decisions, strict=True)
        if not isinstance(decision.score, Graded) or decision.score.value != value
    ]


@needs_data
def test_every_gold_answer_can_be_compared() -> None:
    assert [gold for gold in GOLDS if not examine(gold)] == []


@needs_data
async def test_every_gold_answer_equals_itself_in_other_spellings(tools: Tools) -> None:
    assert len(RIGHT) > 15 * len(GOLDS)
    assert await misjudged(RIGHT, 1, tools) == []


@needs_data
async def test_every_gold_answer_differs_from_itself_with_a_small_change(tools: Tools) -> None:
    assert len(WRONG) > 2 * len(GOLDS)
    assert await misjudged(WRONG, 0, tools) == []


@needs_data
def test_nearly_all_are_settled_without_computer_algebra() -> None:
    right, wrong = (
        [pair for pair in some if compare(*pair).equal is None] for some in (RIGHT, WRONG)
    )
    assert len(right + wrong) < 0.06 * len(RIGHT + WRONG)
    assert len(wrong) < 0.1 * len(WRONG)


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_number_is_itself_in_every_dress(number: Decimal, tools: Tools) -> None:
    assert await misjudged(dressed(number, number), 1, tools) == []


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_number_is_no_other_in_any_dress(number: Decimal, tools: Tools) -> None:
    reversed_digits = Decimal(str(number).strip("-")[::-1])
    for other in {number + 1, -number, number // 1000, number * 1000, reversed_digits} - {number}:
        assert await misjudged(dressed(number, other), 0, tools) == []
