"""The truth table of answers: every row is graded as somebody does who marks exams with care.

A row of ``tests/golden/answers.jsonl`` has a gold ``answer``, a ``response`` or what is ``boxed``
in one, perhaps the ``problem``, and the ``verdict``: true, false, or null where no response to that
gold answer can be graded. A text may be a list of pieces; ``["x", 100]`` is x a hundred times.
Algebra is done in this process; some rows that need it go through a real pool as well.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from protocol.messages import Graded, Score, Ungradable

from benchmarks.answer_rules import outside_rows, text_of
from services.chassis.pool import Pool
from services.grader.answers.boxes import last_boxed
from services.grader.answers.compare import compare
from services.grader.tools import Tools
from services.grader.verifiers import math_answer
from services.grader.verifiers.math_answer import Decision

pytestmark = pytest.mark.anyio

Row = dict[str, Any]
TABLE = Path(__file__).parents[3] / "golden" / "answers.jsonl"
ALL: list[Row] = [json.loads(line) for line in TABLE.read_text().splitlines()]
HANGING = [row for row in ALL if row["kind"] == "hangs"]
ROWS = [row for row in ALL if row["kind"] != "hangs"]


def response_of(row: Row) -> str:
    if "response" in row:
        return text_of(row["response"])
    return rf"We find $x$. First \boxed{{41}}, no: \boxed{{{text_of(row['boxed'])}}}."


def verdict_of(score: Score) -> bool | None:
    return bool(score.value) if isinstance(score, Graded) else None


async def decided(rows: Sequence[Row], tools: Tools) -> list[Decision]:
    asked = (
        math_answer.decide_response(
            response_of(row), text_of(row["answer"]), tools, problem=row.get("problem") or ""
        )
        for row in rows
    )
    return await asyncio.gather(*asked)


def misjudged(rows: Sequence[Row], decisions: Sequence[Decision]) -> list[str]:
    return [
        f"{row['answer']!s:.60} and {response_of(row)[-80:]} ({row.get('why')}): {decision}"
        for row, decision in zip(rows, decisions, strict=True)
        if verdict_of(decision.score) is not row["verdict"]
    ]


async def test_every_row_of_the_truth_table_is_graded_as_it_says(tools: Tools) -> None:
    decisions = await decided(ROWS, tools)
    assert misjudged(ROWS, decisions) == []
    ungradable = {d.score.reason for d in decisions if isinstance(d.score, Ungradable)}
    assert ungradable == {"gold_not_parsable"}


def needs_algebra(row: Row) -> bool:
    boxed = last_boxed(response_of(row)) or ""
    is_short = len(boxed) <= 500
    gold, problem = text_of(row["answer"]), row.get("problem") or ""
    return is_short and bool(boxed) and compare(gold, boxed, problem).equal is None


@pytest.fixture(scope="module")
async def pool(anyio_backend: str) -> AsyncIterator[Pool]:
    async with Pool(2, warm_ups=[math_answer.WARM_UP]) as pool:
        yield pool


async def test_workers_of_a_real_pool_find_the_same(pool: Pool) -> None:
    rows = list(filter(needs_algebra, ROWS))[::6]
    patient = Tools(pool, quick_deadline_s=120, compare_deadline_s=240)
    assert misjudged(rows, await decided(rows, patient)) == []


async def test_answers_that_hang_are_ended_and_never_right(pool: Pool) -> None:
    tools = Tools(pool, quick_deadline_s=0.2, compare_deadline_s=0.4)
    decisions = await decided(HANGING, tools)
    assert len(decisions) == 3
    assert {decision.score.reason for decision in decisions} == {"too_hard"}


def test_the_truth_table_says_each_thing_once() -> None:
    asked = Counter((str(row["answer"]), response_of(row), row.get("problem")) for row in ALL)
    assert [row for row, count in asked.items() if count > 1] == []


OUTSIDE = outside_rows()


@pytest.mark.skipif(not OUTSIDE, reason="needs ../shared/data/answers_external.jsonl")
async def test_nearly_all_verdicts_are_those_of_other_people_too(tools: Tools) -> None:
    rows = [{**row, "verdict": row["expected"]} for row in OUTSIDE]
    decisions = await decided(rows, tools)
    wrong = [d for r, d in zip(rows, decisions, strict=True) if misjudged([r], [d])]
    assert all(verdict_of(decision.score) is False for decision in wrong)
    assert len(wrong) <= 0.01 * len(OUTSIDE), wrong
