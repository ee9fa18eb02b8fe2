"""Process by program: the share of right steps in the reasoning. No model is needed.

Its weakness is known: it asks whether steps are right, not whether they lead anywhere. A task's
solution says how many steps are expected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, cast

from protocol.messages import Graded, Mark, Score, Task, Ungradable
from protocol.rewards import Check

from services.grader.pool import Cause, Failed
from services.grader.steps import OPEN, RIGHT, WRONG, Step
from services.grader.tools import Tools

MAX_STEPS = 5_000
WARM_UP = "services.grader.steps.judging:warm_up"

_JUDGE = "services.grader.steps.judging:judge"
_DEADLINE_S = 20.0
_MAX_TEXT_CHARS = 1_000_000
_MARKED: Mapping[str, Literal["right", "wrong", "unknown"]]
_MARKED = {RIGHT: "right", WRONG: "wrong", OPEN: "unknown"}


async def verify(task: Task, text: str, check: Check, tools: Tools) -> Score:
    """The share of right steps among those written, or those that ``task.solution`` has."""
    solution = task.solution or ""
    if len(solution) > _MAX_TEXT_CHARS:
        return Ungradable(reason="solution_too_long")
    if len(text) > _MAX_TEXT_CHARS:
        return Graded(value=0, reason="too_long")
    expected = await _steps(solution, tools)
    if not isinstance(expected, list):
        return Ungradable(reason="equations_not_read")
    found = await _steps(text, tools)
    if not isinstance(found, list):
        return found
    required = sum(step.verdict != OPEN for step in distinct(expected))
    graded = score(distinct(found), required)
    return graded.model_copy(update={"marks": tuple(map(_mark, found))})


async def _steps(text: str, tools: Tools) -> list[Step] | Score:
    """The steps of a text, in order, or what it is worth if a worker hangs or crashes at it."""
    if not text.strip():
        return []
    call = (_JUDGE, text, MAX_STEPS + 1)
    outcome = await tools.pool.run(*call, deadline_s=_DEADLINE_S)
    if isinstance(outcome, Failed):  # perhaps through others in its worker
        outcome = await tools.pool.run(*call, deadline_s=_DEADLINE_S, suspect=True)
    if isinstance(outcome, Failed):
        if outcome.cause is Cause.ERROR or outcome.is_machines_fault(_DEADLINE_S):
            return Ungradable(reason="equations_not_read")
        return Graded(value=0, reason="too_hard")
    return [Step(*judged) for judged in cast(list[tuple[str, str, int, int, str]], outcome.value)]


def _mark(step: Step) -> Mark:
    return Mark(start=step.start, end=step.end, verdict=_MARKED[step.verdict], note=step.note)


def distinct(found: Iterable[Step]) -> list[Step]:
    """The first of all that are the same."""
    by_identity: dict[str, Step] = {}
    for step in found:
        by_identity.setdefault(step.identity, step)
    return list(by_identity.values())


def score(found: Sequence[Step], required: int) -> Graded:
    """Right steps, at most those required, over these plus the wrong ones, at least those required.

    So neither more right steps than the solution has nor repeated ones make up for a wrong one, and
    leaving out a step costs as much as a wrong one. Without required steps it is right ÷ written.
    """
    number = Counter(step.verdict for step in found)
    right, wrong = number[RIGHT], number[WRONG]
    counts = {"written": right + wrong, "right": right, "wrong": wrong, "open": number[OPEN]}
    breakdown: dict[str, float] = {**counts, "required": required}
    if len(found) > MAX_STEPS:
        return Graded(value=0, reason="too_long", breakdown=breakdown)
    enough = min(right, required) if required else right
    value = enough / max(required, enough + wrong, 1)
    missing = "missing_steps" if right + wrong < required else None
    reason = "wrong_equations" if wrong else missing if right else "no_equations"
    return Graded(value=value, reason=reason, breakdown=breakdown)
