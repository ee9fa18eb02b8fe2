"""Scores the process by program: how much of a derivation the right steps are. It needs no model.

A response without equations scores 0 if the solution has some, since hiding them must not pay.
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
from services.grader.timeouts import DERIVATION_S
from services.grader.tools import Tools

MAX_STEPS = 5_000
WARM_UP = "answers.steps.derivation:warm_up"

_DERIVE = "answers.steps.derivation:derive"
_MAX_TEXT_CHARS = 1_000_000
_NOT_READ = Ungradable(reason="equations_not_read")
_MARK_VERDICTS: Mapping[str, Literal["right", "wrong", "unknown"]]
_MARK_VERDICTS = {RIGHT: "right", WRONG: "wrong", OPEN: "unknown"}


async def verify(task: Task, text: str, check: Check, tools: Tools) -> Score:
    """Compare with ``task.solution`` if there is one."""
    solution = task.solution or ""
    answer = task.answer or ""
    if max(len(task.problem), len(solution), len(answer)) > _MAX_TEXT_CHARS:
        return Ungradable(reason="solution_too_long")
    if len(text) > _MAX_TEXT_CHARS:
        return Graded(value=0, reason="too_long")
    for tag in (OPENS_THINKING, CLOSES_THINKING):  # its brackets would be relations
        text = text.replace(tag, " " * len(tag))
    arguments = (task.problem, solution, answer, MAX_STEPS + 1)
    derivation = await _derive(text, arguments, tools)
    if isinstance(derivation, Derivation):
        return score(derivation)
    # If the solution alone fails, the response is not at fault.
    if solution and not isinstance(await _derive("", arguments, tools), Derivation):
        return _NOT_READ
    return derivation


async def _derive(text: str, arguments: tuple[Any, ...], tools: Tools) -> Derivation | Score:
    call = (_DERIVE, text, *arguments)
    outcome = await tools.pool.run(*call, deadline_s=DERIVATION_S)
    if isinstance(outcome, Failed):  # perhaps because of earlier calls of its worker
        outcome = await tools.pool.run(*call, deadline_s=DERIVATION_S, suspect=True)
    if isinstance(outcome, Failed):
        if outcome.cause is Cause.ERROR or outcome.is_machine_fault:
            return _NOT_READ
        return Graded(value=0, reason="too_hard")
    derivation = Derivation(*cast(tuple[Any, ...], outcome.value))
    return derivation._replace(steps=[Step(*step) for step in derivation.steps])


def score(derivation: Derivation) -> Score:
    verdicts = {step.identity: step.verdict for step in derivation.steps}
    counts = Counter(verdicts.values())
    right = counts[RIGHT]
    wrong = counts[WRONG]
    breakdown: dict[str, float] = {
        "written": right + wrong,
        "right": right,
        "wrong": wrong,
        "open": counts[OPEN],
        "required": derivation.required,
        "used": sum(derivation.used),
    }
    if len(derivation.steps) > MAX_STEPS:
        return Graded(value=0, reason="too_long", breakdown=breakdown)
    if not derivation.steps and derivation.required:
        return Graded(value=0, reason="no_equations", breakdown=breakdown)
    if not right + wrong:
        return Ungradable(reason="no_steps_read")
    if derivation.low < derivation.high:
        return Ungradable(reason="steps_open")
    reason = "missing_steps" if derivation.low else "nothing_derived"
    if wrong:
        reason = "wrong_equations"
    marks = map(_mark, derivation.steps, derivation.used)
    return Graded(
        value=derivation.low,
        reason=None if is_right(derivation.low) else reason,
        breakdown=breakdown,
        marks=tuple(mark for mark in marks if mark),
    )


def _mark(step: Step, is_used: bool) -> Mark | None:
    place = {"start": step.start, "end": step.end}
    if step.verdict == RIGHT and not is_used:
        return Mark(verdict="unknown", note="not used", **place)
    verdict = _MARK_VERDICTS.get(step.verdict)
    if verdict is None:
        return None
    return Mark(verdict=verdict, note=step.note, **place)
