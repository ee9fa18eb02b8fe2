"""Numbers in other spellings, and the gold answers of the task files.

Every spelling of a number meets every dress: what is right alone may be wrong together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import product
from pathlib import Path

import pytest
from protocol.messages import Graded

from services.grader.answers.algebra.pool import examine
from services.grader.tools import Tools
from services.grader.verifiers import math_answer

pytestmark = pytest.mark.anyio

NUMBERS = tuple(map(Decimal, ("7", "1000", "1234567", "-2500", "1234.56")))
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
    return [
        f"{gold} and {answer}: {score}"
        for gold, answer in pairs
        if not isinstance(score := await math_answer.compare(gold, answer, tools), Graded)
        or score.value != value
    ]


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_number_is_itself_in_every_dress_and_no_other_in_any(
    number: Decimal, tools: Tools
) -> None:
    assert await misjudged(dressed(number, number), 1, tools) == []
    reversed_digits = Decimal(str(number).strip("-")[::-1])
    for other in {number + 1, -number, number * 1000, reversed_digits} - {number}:
        assert await misjudged(dressed(number, other), 0, tools) == []


DATA = Path(__file__).parents[5] / "shared" / "data"
FILES = [path for name in ("aime2024", "math500") if (path := DATA / f"{name}.jsonl").exists()]
GOLDS = {json.loads(line)["answer"] for path in FILES for line in path.read_text().splitlines()}


@pytest.mark.skipif(not GOLDS, reason="needs task files in ../shared/data")
def test_every_gold_answer_of_the_task_files_can_be_compared() -> None:
    assert [gold for gold in GOLDS if not examine(gold)] == []
