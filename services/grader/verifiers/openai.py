"""OpenAI's graders without a model: two texts compared, or a client's own function called."""

from __future__ import annotations

import math
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
    columns_of,
    filled_texts,
    final_text,
    output_json,
    useless,
)
from services.grader.tools import Tools
from services.grader.trial_record import record_failure

PYTHON_S = 10.0  # of CPU time
_SIMILARITY = "services.grader.similarity:similarity"
_DEADLINE_S = 60.0  # several times what the slowest metric of texts as long as allowed needs
_HOLDS: Mapping[str, Callable[[str, str], bool]] = {
    "eq": lambda text, reference: text == reference,
    "ne": lambda text, reference: text != reference,
    "like": lambda text, reference: reference in text,
    "ilike": lambda text, reference: reference.casefold() in text.casefold(),
}
_CONTAINS = {"like", "ilike"}


async def string_check(task: Task, text: str, check: StringCheck, tools: Tools) -> Score:
    texts = filled_texts(check, task, text)
    if not isinstance(texts, FilledTexts):
        return texts
    if not texts.reference and check.operation in _CONTAINS:  # every text contains it
        return useless(check, "empty_reference", "too_short")
    if _HOLDS[check.operation](texts.input, texts.reference):
        return Graded(value=1)
    return Graded(value=0, reason="wrong")


async def text_similarity(task: Task, text: str, check: TextSimilarity, tools: Tools) -> Score:
    """A reference that is not even like itself, as one word for ``rouge_2``, grades nothing."""
    texts = filled_texts(check, task, text)
    if not isinstance(texts, FilledTexts):
        return texts
    if len(texts.input) > MAX_CHARS:
        return Graded(value=0, reason="too_long")
    if len(texts.reference) > MAX_CHARS:
        return useless(check, "reference_too_long", "too_long")
    if not texts.reference.strip():
        return useless(check, "empty_reference", "too_short")
    metric = check.evaluation_metric
    outcome = await tools.pool.run(_SIMILARITY, metric, *texts, deadline_s=_DEADLINE_S)
    if isinstance(outcome, Failed):
        return Ungradable(reason="not_measured")
    value = cast(float | None, outcome.value)
    if value is None:
        return useless(check, "reference_too_short", "too_short")
    return Graded(value=value)


async def python(task: Task, text: str, check: PythonSource, tools: Tools) -> Score:
    """What ``grade(sample, item)`` returns, cut to [0, 1].

    A response whose code fails is worth 0. A failure of the grader's own code is ungradable.
    """
    if tools.sandbox is None:
        return Ungradable(reason="no_python")
    if len(text) > MAX_CHARS:
        return Graded(value=0, reason="too_long")
    outcome = await _outcome(tools.sandbox, check.source, task, final_text(text))
    if isinstance(outcome, Graded | Ungradable):
        return outcome
    found = outcome.value if isinstance(outcome.value, dict) else {}
    if found.get("is_of_sample"):
        return Graded(value=0, reason="crashed")
    value = found.get("value")
    if not isinstance(value, float) or not math.isfinite(value):
        return _failed("python_error", str(found.get("error", "grade returned no number")))
    return Graded(value=min(1.0, max(0.0, value)))


async def _outcome(sandbox: Pool, source: str, task: Task, text: str) -> Value | Score:
    """A process that dies or hangs is the response's fault if it does not with the answer."""
    run = partial(sandbox.run, GRADE, source, deadline_s=PYTHON_S)
    item = columns_of(task)
    outcome = await run(_sample(text), item)
    if isinstance(outcome, Failed):
        if isinstance(await run(_sample(task.answer or ""), item), Failed):
            return _grader_failure(outcome)
        if outcome.is_machine_fault:  # or the response slept, or killed its process: it will again
            outcome = await run(_sample(text), item)
    if isinstance(outcome, Value):
        return outcome
    has_ended = outcome.cause not in {Cause.TIMEOUT, Cause.STALL}
    return Graded(value=0, reason="crashed" if has_ended else "never_ended")


def _grader_failure(failed: Failed) -> Ungradable:
    why = failed.detail
    if failed.cause is Cause.STALL:
        why += ": it sleeps or waits for something, or the grader's machine is too busy"
    return _failed("starved" if failed.is_machine_fault else f"python_{failed.cause}", why)


def _sample(text: str) -> dict[str, Any]:
    try:
        return {"output_text": text, "output_json": output_json(text)}
    except NoOutput:
        return {"output_text": text, "output_json": None}


def _failed(reason: str, words: str) -> Ungradable:
    record_failure(reason, words)
    return Ungradable(reason=reason)
