"""OpenAI's graders without a model: they compare two texts, or call a client's function."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import PythonSource, StringCheck, TextSimilarity

from services.chassis.pool import Cause, Failed, Pool, Value
from services.grader.client_code import GRADE
from services.grader.templates import (
    MAX_CHARS,
    FilledTexts,
    NoOutput,
    fill_texts,
    final_text,
    parse_output,
    score_bad_reference,
    to_columns,
)
from services.grader.timeouts import CLIENT_CODE_S, SIMILARITY_S
from services.grader.tools import Tools
from services.grader.trial_record import record_failure

_SIMILARITY = "services.grader.similarity:similarity"
_OPERATIONS: Mapping[str, Callable[[str, str], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "like": operator.contains,
    "ilike": lambda text, reference: reference.casefold() in text.casefold(),
}
_SUBSTRING_OPERATIONS = {"like", "ilike"}


async def string_check(task: Task, text: str, check: StringCheck, tools: Tools) -> Score:
    texts = fill_texts(check, task, text)
    if not isinstance(texts, FilledTexts):
        return texts
    if not texts.reference and check.operation in _SUBSTRING_OPERATIONS:  # every text contains it
        return score_bad_reference(check, "empty_reference", "too_short")
    holds = _OPERATIONS[check.operation]
    if holds(texts.input, texts.reference):
        return Graded(value=1)
    return Graded(value=0, reason="wrong")


async def text_similarity(task: Task, text: str, check: TextSimilarity, tools: Tools) -> Score:
    texts = fill_texts(check, task, text)
    if not isinstance(texts, FilledTexts):
        return texts
    if len(texts.input) > MAX_CHARS:
        return Graded(value=0, reason="too_long")
    if len(texts.reference) > MAX_CHARS:
        return score_bad_reference(check, "reference_too_long", "too_long")
    if not texts.reference.strip():
        return score_bad_reference(check, "empty_reference", "too_short")
    metric = check.evaluation_metric
    outcome = await tools.pool.run(_SIMILARITY, metric, *texts, deadline_s=SIMILARITY_S)
    if isinstance(outcome, Failed):
        return Ungradable(reason="not_measured")
    value = cast(float | None, outcome.value)
    if value is None:
        return score_bad_reference(check, "reference_too_short", "too_short")
    return Graded(value=value)


async def python(task: Task, text: str, check: PythonSource, tools: Tools) -> Score:
    """Return the value of ``grade(sample, item)``, clipped to [0, 1].

    If code from the response fails, it scores 0. If the grader's own code fails, it is ungradable.
    """
    if tools.sandbox is None:
        return Ungradable(reason="no_python")
    if len(text) > MAX_CHARS:
        return Graded(value=0, reason="too_long")
    outcome = await _run(tools.sandbox, check.source, task, final_text(text))
    if isinstance(outcome, Graded | Ungradable):
        return outcome
    result = outcome.value if isinstance(outcome.value, dict) else {}
    if result.get("is_of_sample"):
        return Graded(value=0, reason="crashed")
    value = result.get("value")
    if not isinstance(value, float) or not math.isfinite(value):
        return _fail("python_error", str(result.get("error", "grade returned no number")))
    value = min(1.0, max(0.0, value))
    return Graded(value=value)


async def _run(sandbox: Pool, source: str, task: Task, text: str) -> Value | Score:
    """A process that dies or hangs is the response's fault, unless it does so with the answer."""
    run = partial(sandbox.run, GRADE, source, deadline_s=CLIENT_CODE_S)
    item = to_columns(task)
    outcome = await run(_sample(text), item)
    if isinstance(outcome, Failed):
        if isinstance(await run(_sample(task.answer or ""), item), Failed):
            return _to_ungradable(outcome)
        if outcome.is_machine_fault:  # if the response slept or killed its process, it will again
            outcome = await run(_sample(text), item)
    if isinstance(outcome, Value):
        return outcome
    has_ended = outcome.cause not in {Cause.TIMEOUT, Cause.STALL}
    return Graded(value=0, reason="crashed" if has_ended else "never_ended")


def _to_ungradable(failed: Failed) -> Ungradable:
    message = failed.detail
    if failed.cause is Cause.STALL:
        message += ": it sleeps or waits for something, or the grader's machine is too busy"
    return _fail("starved" if failed.is_machine_fault else f"python_{failed.cause}", message)


def _sample(text: str) -> dict[str, Any]:
    try:
        return {"output_text": text, "output_json": parse_output(text)}
    except NoOutput:
        return {"output_text": text, "output_json": None}


def _fail(reason: str, message: str) -> Ungradable:
    record_failure(reason, message)
    return Ungradable(reason=reason)
