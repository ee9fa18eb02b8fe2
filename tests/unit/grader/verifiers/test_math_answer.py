"""Verdicts on a response: its own faults, the system's faults, and how it was decided.

Verdicts on thousands of answers are in the truth table of `packages/answers`.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from answers import compare, decide, is_restated, last_box
from protocol.messages import Graded, Mark, Score, Task, Ungradable
from protocol.rewards import MathAnswer

from benchmarks.answer_rules import OWN, Row, outside_rows, own_rows
from services.chassis.pool import Cause, Failed, Pool, Value
from services.grader.judge.judge import Judge
from services.grader.tools import Tools
from services.grader.verifiers import math_answer
from services.grader.verifiers.math_answer import decide_response
from tests.builders import a_task
from tests.tables import table
from tests.unit.grader.judge_server import ScriptedServer, judge_settings, says
from tests.unit.grader.pools import failing_tools
from tests.unit.grader.scores import describe

pytestmark = pytest.mark.anyio

CHECK = MathAnswer()
HELD_OUT = Path(__file__).parents[4] / "examples" / "arithmetic" / "held_out.jsonl"
LEFT_TO_THE_POOL = r"\sum_{k=1}^{10^{12}}\sin(k^2)"
STARVED = Ungradable(reason="starved")


async def grade(task: Task, text: str, tools: Tools) -> Graded:
    score = await math_answer.verify(task, text, CHECK, tools)
    assert isinstance(score, Graded)
    return score


@table(
    r"""
    text                     | reason
    the answer is 5          | no_answer
    \boxed{ }                | no_answer
    <think>\boxed{5}</think> | no_answer
    \boxed{\frac{}           | no_answer
    \boxed{\frac{1}{}}       | not_parsable
    \boxed{5 \cup 6}         | wrong
""",
    (r"\boxed{" + "5" * 2001 + "}", "too_long"),
    (r"\boxed{5}" + " " * 1_000_000, "too_long"),
)
async def test_the_fault_of_a_response_is_wrong_with_its_reason(
    tools: Tools, text: str, reason: str
) -> None:
    score = await grade(a_task(answer="5"), text, tools)
    assert (score.value, score.reason) == (0, reason)


@pytest.mark.parametrize("line", HELD_OUT.read_text().splitlines()[::16])
async def test_the_problem_said_again_is_no_answer(tools: Tools, line: str) -> None:
    task = Task.model_validate_json(line)
    restated = rf"\boxed{{{task.problem.removesuffix('=?')}}}"
    score = await grade(task, restated, tools)
    assert (score.value, score.reason, score.marks[0].note) == (0, "restated", "restated")
    assert (await grade(task, task.solution or "", tools)).value == 1


@pytest.mark.parametrize("begin", ["(", "-", "1-", "1/", "x*", r"\sqrt{", "a=", "1,", "|"])
@pytest.mark.parametrize("end", ["", ")", "}", "|"])
def test_a_long_answer_is_searched_without_recursion(begin: str, end: str) -> None:
    is_restated("5", f"{begin * 900}2+x{end * 900}", r"Compute $\sqrt{25}$.")


@pytest.mark.parametrize(("gold", "reason"), [(None, "no_reference"), ("+*", "gold_not_parsable")])
async def test_a_task_without_a_readable_answer_is_never_a_zero(
    tools: Tools, gold: str | None, reason: str
) -> None:
    score = await math_answer.verify(a_task(answer=gold), r"\boxed{5+x}", CHECK, tools)
    assert score == Ungradable(reason=reason)


@table("""
    cause   | score              | calls
    timeout | 0 too_hard         | [False, True, False]
    stall   | ungradable starved | [False, True, True]
    killed  | ungradable starved | [False, True, True]
    crash   | 0 too_hard         | [False, True, False]
    memory  | 0 too_hard         | [False, True, False]
    error   | 0 not_parsable     | [False, False]
""")
async def test_what_fails_twice_is_wrong_unless_the_machine_gave_it_no_time(
    cause: str, score: str, calls: list[bool]
) -> None:
    """The last call that is no suspect examines the gold answer."""
    tools, actual_calls = failing_tools(Failed(Cause(cause)))
    assert describe(await math_answer.compare("5", LEFT_TO_THE_POOL, tools)) == score
    assert actual_calls == calls


@pytest.mark.parametrize(
    ("examined", "score"),
    [
        (Value(False), Ungradable(reason="gold_not_parsable")),
        (Failed(Cause.CRASH), Ungradable(reason="gold_not_parsable")),
        (Failed(Cause.KILLED), STARVED),
    ],
)
async def test_what_fails_beside_a_gold_that_fails_alone_is_no_fault_of_the_response(
    examined: Value | Failed, score: Score
) -> None:
    tools, _ = failing_tools(Failed(Cause.CRASH), examined)
    assert await math_answer.compare("5", LEFT_TO_THE_POOL, tools) == score


async def test_equal_answers_at_one_time_are_compared_once() -> None:
    tools, calls = failing_tools(Failed(Cause.TIMEOUT))
    await asyncio.gather(*(math_answer.compare("5", LEFT_TO_THE_POOL, tools) for _ in range(8)))
    assert len(calls) == 3


CANDIES = a_task(prompt="How many candies are left?", answer="12", solution="12 are left.")
TIGERS = r"\boxed{12\text{ tigers}}"


@pytest.mark.parametrize(("unknown", "value"), [("wrong", "0"), ("ungradable", "ungradable")])
async def test_what_nothing_settles_is_what_the_recipe_says(
    unknown: Literal["wrong", "ungradable"], value: str, tools: Tools
) -> None:
    score = await math_answer.verify(CANDIES, TIGERS, MathAnswer(unknown=unknown), tools)
    assert describe(score) == f"{value} unknown"


@table("""
    level    | expected
    complete | 1
    partial  | 0 wrong
    wrong    | 0 wrong
""")
async def test_what_nothing_settles_may_be_left_to_the_judge(
    level: str, expected: str, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [says(f'{{"analysis": "seen", "solution": "{level}"}}')]
    check = MathAnswer(unknown="judge")
    async with Judge(judge_settings(server)) as judge:
        judge_tools = replace(tools, judge=judge)
        score = await math_answer.verify(CANDIES, TIGERS, check, judge_tools)
        settled = await math_answer.verify(CANDIES, r"\boxed{13}", check, judge_tools)
    assert (describe(score), describe(settled)) == (expected, "0 wrong")
    assert len(server.requests) == 1
    assert isinstance(score, Graded)
    (mark,) = score.marks
    assert (mark.start, mark.end, mark.note) == (7, len(TIGERS) - 1, score.reason or "")


async def test_long_texts_are_scanned_beside_the_event_loop(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = r"\boxed{" * 140_000 + r"\boxed{5}"
    in_loop: list[bool] = []

    def scan(text: str) -> tuple[int, int] | None:
        in_loop.append(asyncio._get_running_loop() is not None)
        return last_box(text)

    monkeypatch.setattr(math_answer, "last_box", scan)
    decision = await decide_response(text, "5", tools)
    marks = (Mark(start=len(text) - 2, end=len(text) - 1, verdict="right"),)
    assert decision.score == Graded(value=1, marks=marks)
    await decide_response(r"\boxed{5}", "5", tools)
    assert in_loop == [False, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"First \boxed{4}, no: $\boxed{5}$.", "right 5"),
        ("\u200b So \\boxed{ 5.0 } at last", "right  5.0 "),
        (r"\boxed{\boxed{5}}", r"right \boxed{5}"),
        (r"So \boxed 6.", "wrong 6"),
        (r"\boxed{５}", "right ５"),
        ("It is 5.", None),
        (r"\boxed{}", None),
        ("So " * 40_000 + r"\boxed{5}", "right 5"),  # scanned in the pool
    ],
)
async def test_the_answer_that_was_taken_is_marked(
    text: str, expected: str | None, tools: Tools
) -> None:
    score = await grade(a_task(answer="5"), text, tools)
    marked = [f"{mark.verdict} {text[mark.start : mark.end]}" for mark in score.marks]
    assert marked == ([] if expected is None else [expected])
    assert [mark.note for mark in score.marks] == [score.reason or ""] * len(marked)


async def test_a_long_answer_is_left_to_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(math_answer, "compare_by_rules")  # which nobody may ask
    tools, calls = failing_tools(Failed(Cause.STALL))
    assert await math_answer.compare("5", "+".join(["(a+b+c)^8"] * 190), tools) == STARVED
    assert len(calls) == 3


@pytest.fixture(scope="module")
async def pool(anyio_backend: str) -> AsyncIterator[Pool]:
    async with Pool(2, warm_ups=[math_answer.WARM_UP]) as pool:
        yield pool


async def test_workers_of_a_real_pool_find_what_the_truth_table_says(pool: Pool) -> None:
    hard = [row for row in own_rows() if compare(row.gold, row.boxed, row.problem).equal is None]
    patient = Tools(pool, quick_deadline_s=120, compare_deadline_s=240)

    async def check(row: Row) -> None:
        text = rf"\boxed{{{row.boxed}}}"
        decision = await decide_response(text, row.gold, patient, problem=row.problem)
        assert isinstance(decision.score, Graded)
        assert bool(decision.score.value) is row.is_right, row

    await asyncio.gather(*map(check, hard[::6]))


async def test_answers_that_hang_are_ended_and_never_right(pool: Pool) -> None:
    tools = Tools(pool, quick_deadline_s=0.2, compare_deadline_s=0.4)
    rows = [row for row in map(json.loads, OWN.read_text().splitlines()) if row["kind"] == "hangs"]
    pending = (decide_response(rf"\boxed{{{row['boxed']}}}", row["answer"], tools) for row in rows)
    decisions = await asyncio.gather(*pending)
    assert [decision.score.reason for decision in decisions] == ["too_hard"] * 3


OUTSIDE = outside_rows()


@pytest.mark.skipif(not OUTSIDE, reason="needs ../shared/data/answers_external.jsonl")
def test_nearly_all_verdicts_are_those_of_other_people_too() -> None:
    wrong = [
        row
        for row in OUTSIDE
        if row.is_right is not (decide(row.gold, row.boxed, row.problem) == "right")
    ]
    assert all(row.is_right for row in wrong)
    assert len(wrong) <= 0.01 * len(OUTSIDE), wrong
