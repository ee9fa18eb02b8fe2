"""Exact comparisons of two texts."""

from __future__ import annotations

from typing import Any

import pytest
from protocol.messages import Graded, Score, Ungradable
from protocol.rewards import StringCheck

from services.grader.templates import MAX_CHARS
from services.grader.tools import Tools
from services.grader.verifiers.string_check import verify
from tests.builders import a_task

pytestmark = pytest.mark.anyio

WRONG = Graded(value=0, reason="wrong")
RIGHT = Graded(value=1)


async def checked(text: str, tools: Tools, answer: str = "Paris", **settings: Any) -> Score:
    task = a_task(answer=answer, metadata={"empty": "", "list": [1, "é"]})
    return await verify(task, text, StringCheck(**settings), tools)


@pytest.mark.parametrize(
    ("operation", "text", "score"),
    [
        ("eq", "Paris", RIGHT),
        ("eq", "paris", WRONG),
        ("ne", "Paris", WRONG),
        ("ne", "Rome", RIGHT),
        ("like", "It is Paris.", RIGHT),
        ("like", "It is PARIS.", WRONG),
        ("ilike", "It is PARIS.", RIGHT),
        ("ilike", "It is Rome.", WRONG),
    ],
)
async def test_each_operation_says_what_it_says(
    operation: str, text: str, score: Score, tools: Tools
) -> None:
    assert await checked(text, tools, operation=operation) == score


async def test_letters_without_case_are_equal_in_any_language(tools: Tools) -> None:
    assert await checked("STRASSE", tools, answer="straße", operation="ilike") == RIGHT


async def test_templates_say_what_is_compared(tools: Tools) -> None:
    settings = {"input": "<{{sample.output_text}}>", "reference": "<{{ item.metadata.list }}>"}
    assert await checked('[1, "é"]', tools, **settings) == RIGHT


async def test_thinking_is_no_part_of_the_answer(tools: Tools) -> None:
    assert await checked("<think>Rome?</think>\n\nParis\n", tools) == RIGHT
    assert await checked("<think>Paris</think>Rome", tools, operation="like") == WRONG


@pytest.mark.parametrize("operation", ["like", "ilike"])
async def test_what_every_text_contains_is_ungradable(operation: str, tools: Tools) -> None:
    score = await checked("x", tools, reference="{{item.metadata.empty}}", operation=operation)
    assert score == Ungradable(reason="empty_reference")


async def test_an_empty_response_is_in_no_text(tools: Tools) -> None:
    swapped = {"input": "{{item.answer}}", "reference": "{{sample.output_text}}"}
    score = await checked("", tools, operation="like", **swapped)
    assert score == Graded(value=0, reason="too_short")


async def test_a_response_over_the_limit_is_too_long_even_for_ne(tools: Tools) -> None:
    score = await checked("x" * (MAX_CHARS + 1), tools, operation="ne")
    assert score == Graded(value=0, reason="too_long")
