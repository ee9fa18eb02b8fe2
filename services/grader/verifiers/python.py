"""Graded by a client's own function: OpenAI's ``python``, in a process of its own for each call."""

from __future__ import annotations

import math
from typing import Any

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import PythonSource

from services.grader.compared_texts import MAX_TEXT_CHARS, said
from services.grader.notes import note_failure
from services.grader.pool_outcome import Failed
from services.grader.python_source import GRADE
from services.grader.templates import NoOutput, columns_of, output_json
from services.grader.tools import Tools

DEADLINE_S = 10.0


async def verify(task: Task, text: str, check: PythonSource, tools: Tools) -> Score:
    """What ``grade(sample, item)`` returns, cut to [0, 1]; its failure is not the response's."""
    if tools.sandbox is None:
        return Ungradable(reason="no_python")
    if len(text) > MAX_TEXT_CHARS:
        return Graded(value=0, reason="too_long")
    outcome = await tools.sandbox.run(
        GRADE, check.source, _sample(said(text)), columns_of(task), deadline_s=DEADLINE_S
    )
    if isinstance(outcome, Failed):
        starved = outcome.is_machines_fault(DEADLINE_S)
        return _failed("starved" if starved else f"python_{outcome.cause}", outcome.detail)
    found = outcome.value if isinstance(outcome.value, dict) else {}
    value = found.get("value")
    if not isinstance(value, float) or not math.isfinite(value):
        return _failed("python_error", str(found.get("error", "grade returned no finite number")))
    return Graded(value=min(1.0, max(0.0, value)))


def _sample(text: str) -> dict[str, Any]:
    try:
        return {"output_text": text, "output_json": output_json(text)}
    except NoOutput:
        return {"output_text": text, "output_json": None}


def _failed(reason: str, words: str) -> Ungradable:
    note_failure(reason, words)
    return Ungradable(reason=reason)
