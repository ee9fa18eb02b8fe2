"""Two texts, compared character by character: OpenAI's ``string_check``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocol.messages import Graded, Score, Task
from protocol.rewards import StringCheck

from services.grader.templates import FilledTexts, filled_texts, useless
from services.grader.tools import Tools

_HOLDS: Mapping[str, Callable[[str, str], bool]] = {
    "eq": lambda text, reference: text == reference,
    "ne": lambda text, reference: text != reference,
    "like": lambda text, reference: reference in text,
    "ilike": lambda text, reference: reference.casefold() in text.casefold(),
}
_CONTAINS = {"like", "ilike"}


async def verify(task: Task, text: str, check: StringCheck, tools: Tools) -> Score:
    """1 if the input equals, or contains, the reference as the operation says, else 0."""
    texts = filled_texts(check, task, text)
    if not isinstance(texts, FilledTexts):
        return texts
    if not texts.reference and check.operation in _CONTAINS:  # every text contains it
        return useless(check, "empty_reference", "too_short")
    if _HOLDS[check.operation](texts.input, texts.reference):
        return Graded(value=1)
    return Graded(value=0, reason="wrong")
