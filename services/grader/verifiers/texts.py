"""Two texts compared: OpenAI's ``string_check`` and ``text_similarity``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import StringCheck, TextSimilarity

from services.grader.pool import Failed
from services.grader.templates import MAX_CHARS, FilledTexts, filled_texts, useless
from services.grader.tools import Tools

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
