"""Process by program: how much of a derivation of the answer the right steps are. No model needed.

A response without any equation is worth 0 where the solution has some, or hiding would pay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, cast

from answers.steps import OPEN, RIGHT, WRONG, Derivation, Step
from protocol.messages import (
    CLOSES_THINKING,
    OPENS_THINKING,
    Graded,
    Mark,
    Score,
    Task,
    Ungradable,
    is_right,
)
from protocol.rewards import Check

from services.chassis.pool import Cause, Failed
from services.grader.tools import Tools

MAX_STEPS = 5_000
WARM_UP = "answers.steps.derivation:warm_up"

_DERIVE = "answers.steps.derivation:derive"
_DEADLINE_S = 20.0
_MAX_TEXT_CHARS = 1_000_000
_NOT_READ = Ungradable(reason="equations_not_read")
_MARKED: Mapping[str, Literal["right", "wrong", "unknown"]]
_MARKED = {RIGHT: "right", WRONG: "wrong", OPEN: "unknown"}


async def verify(task: Task, text: str, check: Check, tools: Tools) -> Score:
    """Held against ``task.solution`` if there is one; what cannot be judged is ungradable."""
    solution = task.solution or ""
    answer = task.answer or ""
    given = (task.problem, solution, answer, MAX_STEPS + 1)
    if max(map(len, given[:3])) > _MAX_TEXT_CHARS:
        return Ungradable(reason="solution_too_long")
    if len(text) > _MAX_TEXT_CHARS:
        return Graded(value=0, reason="too_long")
    for tag in (OPENS_THINKING, CLOSES_THINKING):  # its bracket would be a sign of a relation
        text = text.replace(tag, " " * len(tag))
    found = await _derived(text, given, tools)
    if isinstance(found, Derivation):
        return score(found)
    is_blameless = solution and not isinstance(await _derived("", given, tools), Derivation)
    return _NOT_READ if is_blameless else found


async def _derived(text: str, given: tuple[Any, ...], tools: Tools) -> Derivation | Score:
    call = (_DERIVE, text, *given)
    outcome = await tools.pool.run(*call, deadline_s=_DEADLINE_S)
    if isinstance(outcome, Failed):  # perhaps through others in its worker
        outcome = await tools.pool.run(*call, deadline_s=_DEADLINE_S, suspect=True)
    if isinstance(outcome, Failed):
        if outcome.cause is Cause.ERROR or outcome.is_machine_fault:
            return _NOT_READ
        return Graded(value=0, reason="too_hard")
    found = Derivation(*cast(tuple[Any, ...], outcome.value))
    return found._replace(steps=[Step(*step) for step in found.steps])


def score(found: Derivation) -> Score:
    number = Counter({step.identity: step.verdict for step in found.steps}.values())
    right, wrong = number[RIGHT], number[WRONG]
    counts = {"written": right + wrong, "right": right, "wrong": wrong, "open": number[OPEN]}
    breakdown: dict[str, float] = {**counts, "required": found.required, "used": sum(found.used)}
    if len(found.steps) > MAX_STEPS:
        return Graded(value=0, reason="too_long", breakdown=breakdown)
    if not found.steps and found.required:
        return Graded(value=0, reason="no_equations", breakdown=breakdown)
    if not right + wrong:
        return Ungradable(reason="no_steps_read")
    if found.low < found.high:
        return Ungradable(reason="steps_open")
    reason = "wrong_equations" if wrong else "missing_steps" if found.low else "nothing_derived"
    marks = tuple(map(_mark, found.steps, found.used))
    return Graded(
        value=found.low,
        reason=None if is_right(found.low) else reason,
        breakdown=breakdown,
        marks=tuple(mark for mark in marks if mark),
    )


def _mark(step: Step, is_used: bool) -> Mark | None:
    place = {"start": step.start, "end": step.end}
    if step.verdict == RIGHT and not is_used:
        return Mark(verdict="unknown", note="not used", **place)
    verdict = _MARKED.get(step.verdict)
    return Mark(verdict=verdict, note=step.note, **place) if verdict else None
