"""The two texts that a check compares: its templates, filled in."""

from __future__ import annotations

from typing import NamedTuple

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import StringCheck, TextSimilarity

from services.grader.templates import UnknownField, fill
from services.grader.thinking import without_thinking

MAX_TEXT_CHARS = 500_000  # of a response


class ComparedTexts(NamedTuple):
    """What is graded, and what it is held against."""

    input: str
    reference: str


def compared_texts(
    check: StringCheck | TextSimilarity, task: Task, text: str
) -> ComparedTexts | Score:
    """Both texts of a check; or its score, where there is nothing to compare.

    The response is what it says after its thinking; a response that does not think stays as it is,
    blank space included.
    """
    if len(text) > MAX_TEXT_CHARS:
        return Graded(value=0, reason="too_long")
    said = without_thinking(text)
    if said != text:
        said = said.strip()
    try:
        return ComparedTexts(fill(check.input, task, said), fill(check.reference, task, said))
    except UnknownField:
        return Ungradable(reason="unknown_field")
