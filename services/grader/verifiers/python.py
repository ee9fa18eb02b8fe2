"""Graded by a client's own function: OpenAI's ``python``, in a process of its own for each call."""

from __future__ import annotations

import math
from typing import Any

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import PythonSource

from services.grader.pool import Cause, Failed
from services.grader.pool.sandbox import GRADE
from services.grader.templates import MAX_CHARS, NoOutput, columns_of, final_text, output_json
from services.grader.tools import Tools
from services.grader.trial_record import record_failure

DEADLINE_S = 10.0


async def verify(task: Task, text: str, check: PythonSource, tools: Tools) -> Score:
    """What ``grade(sample, item)`` returns, cut to [0, 1]; its failure is not the response's."""
    if tools.sandbox is None:
        return Ungradable(reason="no_python")
    if len(text) > MAX_CHARS:
        return Graded(value=0, reason="too_long")
    outcome = await tools.sandbox.run(
        GRADE, check.source, _sample(final_text(text)), columns_of(task), deadline_s=DEADLINE_S
    )
    if isinstance(outcome, Failed):
        why = outcome.detail
        if outcome.cause is Cause.STALL:
            why += ": it sleeps or waits for something, or the grader's machine is too busy"
        reason = "starved" if outcome.is_machines_fault else f"python_{outcome.cause}"
        return _failed(reason, why)
    found = outcome.value if isinstance(outcome.value, dict) else {}
    value = found.get("value")
    if not isinstance(value, float) or not math.isfinite(value):
        return _failed("python_error", str(found.get("error", "grade returned no number")))
    return Graded(value=min(1.0, max(0.0, value)))


def _sample(text: str) -> dict[str, Any]:
    try:
        return {"output_text": text, "output_json": output_json(text)}
    except NoOutput:
        return {"output_text": text, "output_json": None}


def _failed(reason: str, words: str) -> Ungradable:
    record_failure(reason, words)
    return Ungradable(reason=reason)
