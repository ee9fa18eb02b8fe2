"""Process by program: the share of right equations in the reasoning. No model is needed.

Its weakness is known: it asks whether steps are right, not whether they lead anywhere. It is asked
about correct responses only, and a task's solution says how many steps are expected.
"""

from __future__ import annotations

from typing import cast

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import Check

from services.grader.equations import MAX_EQUATIONS, tally
from services.grader.pool import Value
from services.grader.tools import Tools

_MAX_TEXT_CHARS = 1_000_000
_LONG_TEXT_CHARS = 5_000  # longer ones are read in the pool: the service must show life meanwhile
_DEADLINE_S = 20.0


async def verify(task: Task, text: str, check: Check, tools: Tools) -> Score:
    """Right equations ÷ max(equations written, equations in ``task.solution``, 1)."""
    if len(task.solution or "") > _MAX_TEXT_CHARS:
        return Ungradable(reason="solution_too_long")
    if len(text) > _MAX_TEXT_CHARS:
        return Graded(value=0, reason="too_long")
    expected = await _tally(task.solution or "", tools)
    found = await _tally(text, tools)
    if expected is None or found is None:
        return Ungradable(reason="equations_not_read")
    return score(found["written"], found["right"], required=max(1, expected["written"]))


def score(written: int, right: int, required: int) -> Graded:
    """The share of right equations; leaving out steps costs as much as a wrong one."""
    breakdown = {"written": written, "right": right, "required": required}
    if written >= MAX_EQUATIONS:
        return Graded(value=0, reason="too_long", breakdown=breakdown)
    value = right / max(written, required)
    return Graded(value=value, reason=_reason(written, right, required), breakdown=breakdown)


def _reason(written: int, right: int, required: int) -> str | None:
    if written == 0:
        return "no_equations"
    if right < written:
        return "wrong_equations"
    return "missing_steps" if right < required else None


async def _tally(text: str, tools: Tools) -> dict[str, int] | None:
    if len(text) <= _LONG_TEXT_CHARS:
        return tally(text)
    outcome = await tools.pool.run("services.grader.equations:tally", text, deadline_s=_DEADLINE_S)
    return cast(dict[str, int], outcome.value) if isinstance(outcome, Value) else None
