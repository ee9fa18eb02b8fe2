"""Every gold answer of the task files, in other spellings and with small changes.

A spelling that keeps the value is right and a change is wrong, all of them, by the real verifier.
"""

from __future__ import annotations

import asyncio
import json
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


async def misjudged(pairs: list[tuple[str, str]], value: float, tools: Tools) -> list[str]:
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
    pairs = [(gold, answer) for gold in GOLDS for answer in (gold, *rewritten(gold))]
    assert len(pairs) > 15 * len(GOLDS)
    assert await misjudged(pairs, 1, tools) == []


@needs_data
async def test_every_gold_answer_differs_from_itself_with_a_small_change(tools: Tools) -> None:
    pairs = [(gold, answer) for gold in GOLDS for answer in perturbed(gold)]
    assert len(pairs) > 2 * len(GOLDS)
    assert await misjudged(pairs, 0, tools) == []


@needs_data
def test_nearly_all_are_settled_without_computer_algebra() -> None:
    pairs = [(gold, answer) for gold in GOLDS for answer in (*rewritten(gold), *perturbed(gold))]
    open_ends = [pair for pair in pairs if compare(*pair).equal is None]
    assert len(open_ends) < 0.06 * len(pairs)
    wrong = [(gold, answer) for gold in GOLDS for answer in perturbed(gold)]
    assert sum(pair in wrong for pair in open_ends) < 0.1 * len(wrong)
