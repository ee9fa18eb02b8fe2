r"""Scores the outcome by rules: whether the last ``\boxed{}`` is the task's answer.

The rules of the library `answers` decide nearly all answers in microseconds; its algebra decides
the others in the pool. An answer that hangs or crashes there twice is wrong, not ungradable, since
a policy could learn to write such answers. The score is ungradable if the gold answer fails, or if
the machine gives the comparison no time.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from answers import (
    MAX_ANSWER_CHARS,
    MAX_PROBLEM_CHARS,
    MAX_RULE_CHARS,
    is_restated,
    last_box,
)
from answers import compare as compare_by_rules
from protocol.messages import Graded, Mark, Score, Task, Ungradable, is_right
from protocol.rewards import MathAnswer, ModelJudge

from services.chassis.pool import Cause, Failed, Value
from services.grader.tools import Tools
from services.grader.verifiers.judges import model_judge

WARM_UP = "answers.algebra.equivalence:warm_up"
EXAMINE = "answers.algebra.equivalence:examine"

_COMPARE = "answers.algebra.equivalence:compare"
_MAX_TEXT_CHARS = 1_000_000
_MAX_CHARS_INLINE = 100_000  # a thread scans longer texts

_RIGHT = Graded(value=1)
_WRONG = Graded(value=0, reason="wrong")
_RESTATED = Graded(value=0, reason="restated")
_NOT_PARSABLE = Graded(value=0, reason="not_parsable")
_TOO_HARD = Graded(value=0, reason="too_hard")
_GOLD_NOT_PARSABLE = Ungradable(reason="gold_not_parsable")
_STARVED = Ungradable(reason="starved")
# Neither rules nor algebra decide; the check says what follows.
_UNKNOWN = Graded(value=0, reason="unknown")
_JUDGE = ModelJudge()
_SCORES: dict[object, Score] = {
    score.reason or "right": score
    for score in (_RIGHT, _WRONG, _NOT_PARSABLE, _TOO_HARD, _GOLD_NOT_PARSABLE, _UNKNOWN)
}


class Decision(NamedTuple):
    """A score, and the rule that decided, or "algebra"."""

    score: Score
    path: str


async def verify(task: Task, text: str, check: MathAnswer, tools: Tools) -> Score:
    if task.answer is None:
        return Ungradable(reason="no_reference")
    score = (await decide_response(text, task.answer, tools, problem=task.problem)).score
    if not isinstance(score, Graded) or score.reason != _UNKNOWN.reason:
        return score
    if check.unknown == "wrong":
        return score
    if check.unknown == "ungradable":
        return Ungradable(reason="unknown")
    judged = await model_judge(task, text, _JUDGE, tools)
    if isinstance(judged, Ungradable):
        return judged
    verdict = _RIGHT if is_right(judged.value) else _WRONG
    fields = {"value": verdict.value, "reason": verdict.reason}
    [box] = score.marks
    return _mark(judged.model_copy(update=fields), box.start, box.end)


async def decide_response(
    text: str,
    gold_answer: str,
    tools: Tools,
    *,
    problem: str = "",
) -> Decision:
    if len(text) > _MAX_TEXT_CHARS:
        return Decision(_fault("too_long"), "box")
    if len(text) <= _MAX_CHARS_INLINE:
        place = last_box(text)
    else:
        place = await asyncio.to_thread(last_box, text)
    boxed = text[slice(*place)] if place else ""
    if place is None or not boxed.strip():
        return Decision(_fault("no_answer"), "box")
    if len(boxed) > MAX_ANSWER_CHARS:
        return Decision(_mark(_fault("too_long"), *place), "box")
    score, path = await decide(gold_answer, boxed, tools, problem=problem)
    may_be_right = score in (_RIGHT, _UNKNOWN)
    if may_be_right and is_restated(gold_answer, boxed, problem[-MAX_PROBLEM_CHARS:]):
        score = _RESTATED
    return Decision(_mark(score, *place), path)


def _mark(score: Score, start: int, end: int) -> Score:
    if isinstance(score, Ungradable):
        return score
    verdict = "right" if score.value else "wrong"
    mark = Mark(start=start, end=end, verdict=verdict, note=score.reason or "")
    return score.model_copy(update={"marks": (mark,)})


async def compare(gold: str, answer: str, tools: Tools) -> Score:
    return (await decide(gold, answer, tools)).score


async def decide(
    gold: str,
    answer: str,
    tools: Tools,
    *,
    problem: str = "",
) -> Decision:
    r"""Compare two answers; the problem tells whether it asks for a percentage: 12% for a gold 12.

    It also has the names of quantities, as in ``\text{Area} = 12``, and of counted things.
    """
    problem = problem[-MAX_PROBLEM_CHARS:]
    if len(answer) <= MAX_RULE_CHARS and len(gold) <= MAX_ANSWER_CHARS:
        verdict = compare_by_rules(gold, answer, problem)
        if verdict.equal is not None:
            score = _RIGHT if verdict.equal else _WRONG
            return Decision(score, verdict.path)
    key = (gold, answer, problem)
    score = await tools.comparisons.run_once(key, lambda: _compare_by_algebra(*key, tools))
    return Decision(score, "algebra")


async def _compare_by_algebra(gold: str, answer: str, problem: str, tools: Tools) -> Score:
    outcome = await _run_twice(_COMPARE, gold, answer, problem, tools=tools)
    if isinstance(outcome, Value):
        return _SCORES[outcome.value]
    if outcome.is_machine_fault:
        return _STARVED
    problem_of_gold = await _examine_once(gold, tools)
    if problem_of_gold:
        return problem_of_gold
    return _NOT_PARSABLE if outcome.cause is Cause.ERROR else _TOO_HARD


async def examine(gold: str, tools: Tools) -> Score:
    """Return an ungradable score if a gold answer cannot be read, else a right one."""
    return await _examine_once(gold, tools) or _RIGHT


async def _examine_once(gold: str, tools: Tools) -> Ungradable | None:
    return await tools.examinations.run_once(gold, lambda: _examine(gold, tools))


async def _examine(gold: str, tools: Tools) -> Ungradable | None:
    outcome = await _run_twice(EXAMINE, gold, tools=tools)
    if isinstance(outcome, Failed):
        return _STARVED if outcome.is_machine_fault else _GOLD_NOT_PARSABLE
    return None if outcome.value else _GOLD_NOT_PARSABLE


async def _run_twice(function: str, *args: str, tools: Tools) -> Value | Failed:
    """Run quickly; then in a new worker if it hung or crashed; then again if it was starved."""
    outcome = await tools.pool.run(function, *args, deadline_s=tools.quick_deadline_s)
    for _ in range(2):
        if isinstance(outcome, Value) or outcome.cause is Cause.ERROR:
            return outcome
        outcome = await tools.pool.run(
            function, *args, deadline_s=tools.compare_deadline_s, suspect=True
        )
        if isinstance(outcome, Value) or not outcome.is_machine_fault:
            return outcome
    return outcome


def _fault(reason: str) -> Graded:
    return Graded(value=0, reason=reason)
