"""The two texts that a check compares: its templates, filled in."""

from __future__ import annotations

from typing import NamedTuple

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import StringCheck, TextSimilarity

from services.grader.templates import NoOutput, UnknownField, fill
from services.grader.thinking import without_thinking

MAX_TEXT_CHARS = 500_000  # of a response


class ComparedTexts(NamedTuple):
    """What is graded, and what it is held against."""

    input: str
    reference: str


def compared_texts(
    check: StringCheck | TextSimilarity, task: Task, text: str
) -> ComparedTexts | Score:
    """Both texts of a check; or its score, where there is nothing to compare."""
    if len(text) > MAX_TEXT_CHARS:
        return Graded(value=0, reason="too_long")
    output = said(text)
    try:
        return ComparedTexts(fill(check.input, task, output), fill(check.reference, task, output))
    except UnknownField:
        return Ungradable(reason="unknown_field")
    except NoOutput:
        return Graded(value=0, reason="no_output")


def said(text: str) -> str:
    """What a response says after its thinking; one that does not think stays as it is."""
    output = without_thinking(text)
    return text if output == text else output.strip()
