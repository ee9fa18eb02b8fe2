"""Exact comparisons of two texts."""

from __future__ import annotations

import pytest
from protocol.messages import Graded, Score, Ungradable
from protocol.rewards import StringCheck

from services.grader.templates import MAX_CHARS
from services.grader.tools import Tools
from services.grader.verifiers.openai import string_check
from tests.builders import a_task

pytestmark = pytest.mark.anyio

TASK = a_task(answer="Paris", metadata={"street": "straße", "empty": "", "list": [1, "é"]})
RIGHT, WRONG = Graded(value=1), Graded(value=0, reason="wrong")
TOO_SHORT, TOO_LONG = (Graded(value=0, reason=reason) for reason in ("too_short", "too_long"))
STREET = {"reference": "{{item.metadata.street}}"}
EMPTY = {"reference": "{{item.metadata.empty}}"}
QUOTED = {"input": "<{{sample.output_text}}>", "reference": "<{{ item.metadata.list }}>"}
SWAPPED = {"input": "{{item.answer}}", "reference": "{{sample.output_text}}"}


@pytest.mark.parametrize(
    ("operation", "text", "templates", "score"),
    [
        ("eq", "Paris", {}, RIGHT),
        ("eq", "paris", {}, WRONG),
        ("ne", "Paris", {}, WRONG),
        ("ne", "Rome", {}, RIGHT),
        ("like", "It is Paris.", {}, RIGHT),
        ("like", "It is PARIS.", {}, WRONG),
        ("ilike", "It is PARIS.", {}, RIGHT),
        ("ilike", "It is Rome.", {}, WRONG),
        ("ilike", "STRASSE", STREET, RIGHT),
        ("eq", '[1, "é"]', QUOTED, RIGHT),
        ("eq", "<think>Rome?</think>\n\nParis\n", {}, RIGHT),  # thinking is no part of the answer
        ("like", "<think>Paris</think>Rome", {}, WRONG),
        ("like", "x", EMPTY, Ungradable(reason="empty_reference")),  # which is in every text
        ("ilike", "x", EMPTY, Ungradable(reason="empty_reference")),
        ("like", "", SWAPPED, TOO_SHORT),
        ("ne", "x" * (MAX_CHARS + 1), {}, TOO_LONG),
    ],
)
async def test_each_operation_compares_what_its_templates_say(
    operation: str, text: str, templates: dict[str, str], score: Score, tools: Tools
) -> None:
    check = StringCheck.model_validate({"operation": operation, **templates})
    assert await string_check(TASK, text, check, tools) == score
