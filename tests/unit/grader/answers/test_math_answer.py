"""What becomes of a response: its own faults, the system's faults, and how it was decided.

Verdicts on hundreds of answers are in the truth table; the pool and its algebra are real.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import pytest
from protocol.messages import Graded, Mark, Score, Ungradable
from protocol.rewards import MathAnswer

from services.grader.answers.compare import compare as compare_here
from services.grader.judge.judge import Judge
from services.grader.pool import Cause, Failed, Value
from services.grader.tools import Tools
from services.grader.verifiers import math_answer
from services.grader.verifiers.math_answer import decide, decide_response
from tests.builders import a_task
from tests.unit.grader.judge_server import ScriptedServer, says, settings_for

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CHECK = MathAnswer()
HANGS = r"\sum_{k=1}^{10^{12}}\sin(k^2)"
WRONG = Graded(value=0, reason="wrong")
TOO_HARD = Graded(value=0, reason="too_hard")


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
        (r"\boxed{5 \cup 6}", "wrong"),
        (r"\boxed{" + "5" * 2001 + "}", "too_long"),
        (r"\boxed{5}" + " " * 1_000_000, "too_long"),
    ],
)
async def test_the_fault_of_a_response_is_wrong_with_its_reason(
    tools: Tools, text: str, reason: str
) -> None:
    score = await math_answer.verify(a_task(answer="5"), text, CHECK, tools)
    assert isinstance(score, Graded)
    assert (score.value, score.reason) == (0, reason)


async def test_a_task_without_an_answer_is_never_a_zero(tools: Tools) -> None:
    score = await math_answer.verify(a_task(answer=None), r"\boxed{5}", CHECK, tools)
    assert score == Ungradable(reason="no_reference")


@pytest.mark.parametrize("gold", [r"\frac{", "+*", r"\frac{1}{0}"])
async def test_a_gold_answer_that_cannot_be_graded_is_never_a_zero(tools: Tools, gold: str) -> None:
    score = await math_answer.verify(a_task(answer=gold), r"\boxed{5+x}", CHECK, tools)
    assert score == Ungradable(reason="gold_not_parsable")


async def test_an_expression_too_hard_to_evaluate_is_wrong_after_a_second_longer_try(
    tools: Tools,
) -> None:
    while True:
        started = time.monotonic()
        decision = await decide("5", rf"{HANGS}-1", tools)
        if decision.score != Ungradable(reason="starved"):  # as it is on a busy machine
            break
    assert (decision.score, decision.path) == (TOO_HARD, "algebra")
    assert time.monotonic() - started > tools.quick_deadline_s + tools.compare_deadline_s


async def test_an_expression_that_is_far_too_large_is_not_even_tried(tools: Tools) -> None:
    tower = "5^{5^{5^{5^5}}}"
    started = time.monotonic()
    assert await math_answer.compare("5", tower, tools) == TOO_HARD
    unreadable = Ungradable(reason="gold_not_parsable")
    assert await math_answer.compare(f"1+{tower}", tower, tools) == unreadable
    assert time.monotonic() - started < tools.quick_deadline_s


async def test_a_long_answer_is_not_read_in_the_event_loop() -> None:
    pool: Any = StarvedPool(0.1)
    calls = 0

    def called(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        score = await math_answer.compare("5", "+".join(["(a+b+c)^8"] * 190), Tools(pool))
    finally:
        sys.setprofile(None)
    assert score == Ungradable(reason="starved")
    assert calls < 1000


async def test_a_gold_answer_too_hard_to_evaluate_is_the_fault_of_no_response(
    tools: Tools,
) -> None:
    gold = r"\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}"
    assert await math_answer.compare(gold, "3", tools) == Ungradable(reason="gold_not_parsable")


async def test_a_hard_neighbour_changes_no_verdict(tools: Tools) -> None:
    hard = asyncio.create_task(math_answer.compare("5", HANGS, tools))
    easy = [math_answer.compare(r"\cot x", rf"\frac{{{n}}}{{\tan x}}", tools) for n in range(20)]
    scores = await asyncio.gather(*easy)
    assert [score.value for score in scores if isinstance(score, Graded)] == [0, 1] + [0] * 18
    assert await hard == TOO_HARD


async def test_identical_answers_that_hang_cost_no_more_than_one(tools: Tools) -> None:
    answer = f"{HANGS}+1"
    started = time.monotonic()
    scores = await asyncio.gather(*(math_answer.compare("5", answer, tools) for _ in range(64)))
    once = time.monotonic() - started
    assert scores == [TOO_HARD] * 64
    assert once < 16 * (tools.quick_deadline_s + tools.compare_deadline_s)
    started = time.monotonic()
    assert await math_answer.compare("5", answer, tools) == TOO_HARD
    assert time.monotonic() - started < tools.quick_deadline_s / 2


async def test_a_caller_that_is_cancelled_takes_nothing_from_another(tools: Tools) -> None:
    first, second = (
        asyncio.create_task(decide(r"\sin 2y", r"2\sin y\cos y", tools)) for _ in range(2)
    )
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).score == Graded(value=1)


class StarvedPool:
    """A pool on a machine so busy that its workers hardly run; a real one cannot be made so."""

    def __init__(self, cpu_s: float | None, cause: Cause = Cause.TIMEOUT) -> None:
        self.failed = Failed(cause, cpu_s=cpu_s)
        self.calls: list[bool] = []

    async def run(self, function: str, *args: Any, deadline_s: float, suspect: bool = False) -> Any:
        self.calls.append(suspect)
        return Value(True) if function.endswith(":examine") else self.failed


@pytest.mark.parametrize(
    ("cpu_s", "cause", "score", "calls"),
    [
        (0.1, Cause.TIMEOUT, Ungradable(reason="starved"), [False, True, True]),
        (None, Cause.KILLED, Ungradable(reason="starved"), [False, True, True]),
        (4.9, Cause.TIMEOUT, TOO_HARD, [False, True, False]),
        (None, Cause.TIMEOUT, Ungradable(reason="starved"), [False, True, True]),
        (0.1, Cause.CRASH, TOO_HARD, [False, True, False]),
        (0.1, Cause.MEMORY, TOO_HARD, [False, True, False]),
        (0.1, Cause.ERROR, Graded(value=0, reason="not_parsable"), [False, False]),
    ],
)
async def test_a_worker_that_got_no_time_is_the_fault_of_the_machine(
    cpu_s: float | None, cause: Cause, score: Score, calls: list[bool]
) -> None:
    pool: Any = StarvedPool(cpu_s, cause)
    assert await math_answer.compare("5", HANGS, Tools(pool)) == score
    assert pool.calls == calls


async def test_what_could_not_be_graded_is_asked_again() -> None:
    pool: Any = StarvedPool(0.1)
    for _ in range(2):
        await math_answer.compare("5", HANGS, Tools(pool))
    assert len(pool.calls) == 6


@pytest.mark.parametrize(
    ("gold", "boxed", "path"),
    [
        ("42", "42", "exact"),
        ("42", "43", "number"),
        (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt{2}}{2}", "expression"),
        ("2k+2", "2(k+1)", "algebra"),
        ("yes", "no", "words"),
        (r"\text{(B)}", "A", "choice"),
        ("1,2", "2,1", "set"),
        ("(1,2)", "(1,3)", "tuple"),
        ("204_5", "204", "numeral"),
        ("x=5", "5", "equation"),
        (r"\cot x", r"\tan x", "algebra"),
    ],
)
async def test_a_decision_says_how_it_was_made(
    gold: str, boxed: str, path: str, tools: Tools
) -> None:
    assert (await decide(gold, boxed, tools)).path == path


@pytest.mark.parametrize(
    ("problem", "value"),
    [("By what percent does it grow?", 1), ("How many dollars does 10% of it make?", 0), ("", 0)],
)
async def test_a_percentage_is_its_number_where_the_problem_asks_for_one(
    problem: str, value: float, tools: Tools
) -> None:
    decision = await decide_response(r"\boxed{10\%}", "10", tools, problem=problem)
    assert isinstance(decision.score, Graded)
    assert decision.score.value == value
    if problem:
        task = a_task(prompt=problem, answer="10")
        assert await math_answer.verify(task, r"\boxed{10\%}", CHECK, tools) == decision.score


CANDIES = a_task(prompt="How many candies are left?", answer="12", solution="12 are left.")
TIGERS = r"\boxed{12\text{ tigers}}"


@pytest.mark.parametrize(
    ("unknown", "score"),
    [("wrong", Graded(value=0, reason="unknown")), ("ungradable", Ungradable(reason="unknown"))],
)
async def test_what_nothing_settles_is_what_the_recipe_says(
    unknown: Literal["wrong", "ungradable"], score: Score, tools: Tools
) -> None:
    found = await math_answer.verify(CANDIES, TIGERS, MathAnswer(unknown=unknown), tools)
    assert (found.kind, found.reason) == (score.kind, score.reason)


@pytest.mark.parametrize(("level", "value"), [("complete", 1), ("partial", 0), ("wrong", 0)])
async def test_what_nothing_settles_may_be_left_to_the_judge(
    level: str, value: float, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [says(f'{{"analysis": "seen", "solution": "{level}"}}')]
    check = MathAnswer(unknown="judge")
    async with Judge(settings_for(server)) as judge:
        asked = replace(tools, judge=judge)
        score = await math_answer.verify(CANDIES, TIGERS, check, asked)
        settled = await math_answer.verify(CANDIES, r"\boxed{13}", check, asked)
    assert isinstance(score, Graded)
    assert isinstance(settled, Graded)
    reason = None if value else "wrong"
    assert (score.value, score.reason, settled.reason) == (value, reason, "wrong")
    verdict = "right" if value else "wrong"
    box = Mark(start=7, end=len(TIGERS) - 1, verdict=verdict, note=reason or "")
    assert score.marks == (box,)


async def test_long_texts_are_scanned_without_stopping_the_loop(tools: Tools) -> None:
    text = r"\boxed{" * 140_000 + r"\boxed{5}"
    scan = asyncio.create_task(decide_response(text, "5", tools))
    worst = 0.0
    while not scan.done():
        before = time.monotonic()
        await asyncio.sleep(0.001)
        worst = max(worst, time.monotonic() - before)
    marks = (Mark(start=len(text) - 2, end=len(text) - 1, verdict="right"),)
    assert (await scan).score == Graded(value=1, marks=marks)
    assert worst < 0.2


@pytest.mark.parametrize(
    "piece",
    [
        *(r"\frac{", "(", "{", "}", r"\{", "1,", "=", "<", r"\pm", r"\cup", "^", "_", "-", "1 "),
        *(r"\text{", r"\sqrt{", r"\sqrt(", "9", "x", "$", r"\begin{pmatrix}", "&", r"\\", ":", "√"),
        *(r"\left", "0.", "1/", r"\,", ",\\! ", "or ", "A) ", "°", r"\overline{", "²", "٣", "\x00"),
    ],
)
def test_whatever_is_repeated_is_compared_in_a_moment(piece: str) -> None:
    hostile = (piece * 500)[:500]
    compare_here(hostile, hostile[:-1])
    started = time.process_time()
    for gold in ("5", r"\sqrt{2}", "(1,2)", "x+1", "yes", hostile[1:]):
        compare_here(gold, hostile)
    assert time.process_time() - started < 0.3


DATA = Path(__file__).parents[5] / "shared" / "data"
FILES = [path for name in ("aime2024", "math500") if (path := DATA / f"{name}.jsonl").exists()]


@pytest.mark.skipif(not FILES, reason="needs task files in ../shared/data")
async def test_every_gold_answer_of_the_task_files_can_be_compared(tools: Tools) -> None:
    lines = [line for path in FILES for line in path.read_text().splitlines()]
    golds = sorted({json.loads(line)["answer"] for line in lines})
    examined = await asyncio.gather(
        *(tools.pool.run(math_answer.EXAMINE, gold, deadline_s=5) for gold in golds)
    )
    assert [gold for gold, found in zip(golds, examined, strict=True) if found != Value(True)] == []
