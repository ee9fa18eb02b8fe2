"""Graded by a client's own function: OpenAI's ``python``, in a process of its own for each call."""

from __future__ import annotations

import math
from typing import Any

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import PythonSource

from services.grader.pool import Cause, Failed
from services.grader.pool.client_code import GRADE
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
        starved = outcome.is_machines_fault(DEADLINE_S)
        return _failed("starved" if starved else f"python_{outcome.cause}", _words(outcome))
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


def _words(failed: Failed) -> str:
    """What is known of it; nobody can tell a function that sleeps from a machine that is busy."""
    if failed.cause is not Cause.TIMEOUT or failed.cpu_s is None:
        return failed.detail
    why = f"{failed.detail}, of which it computed for {failed.cpu_s:.1f} s"
    if not failed.is_machines_fault(DEADLINE_S):
        return why
    return f"{why}: it sleeps or waits for something, or the grader's machine is too busy"


def _failed(reason: str, words: str) -> Ungradable:
    record_failure(reason, words)
    return Ungradable(reason=reason)
