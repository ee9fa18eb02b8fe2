"""Templates of checks, and responses without their thinking."""

from __future__ import annotations

import re

import pytest

from services.grader.templates import UnknownField, fill, problem_of, without_thinking
from tests.builders import a_task

TASK = a_task(
    solution="one and one", metadata={"level": 3, "source": {"book": "Euklid"}, "tags": ["é"]}
)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{{item.prompt}}{{item.answer}}", "1+1=2"),
        ("{{ item.id }}: {{item.solution}}", "sum-1: one and one"),
        ("{{item.metadata.level}} {{item.metadata.source.book}}", "3 Euklid"),
        ("{{item.metadata.tags}}", '["é"]'),
        ("{{item.level}} {{item.source.book}} {{item.tags}}", '3 Euklid ["é"]'),
        (r"\boxed{{{item.answer}}} \frac{{1}}{{2}}", r"\boxed{2} \frac{{1}}{{2}}"),
        ("it said {{sample.output_text}}", "it said {{item.answer}} \\1"),
    ],
)
def test_fields_are_filled_in_once(template: str, filled: str) -> None:
    assert fill(template, TASK, r"{{item.answer}} \1") == filled


LACKED = ("item.answer", "item.solution")  # where a task has neither
UNKNOWN = ("item", "item.hint", "item.metadata.x", "item.metadata.level.x", "sample.text", "answer")


@pytest.mark.parametrize("name", [*UNKNOWN, *LACKED])
def test_an_unknown_field_is_named(name: str) -> None:
    with pytest.raises(UnknownField, match=re.escape(name)):
        fill(f"{{{{{name}}}}}", a_task(answer=None) if name in LACKED else TASK, "text")


def test_a_conversation_is_one_problem() -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    assert problem_of(a_task(prompt=None, messages=turns)) == "[system]\nBe brief.\n\n[user]\n1+1?"
    assert problem_of(a_task(prompt=None, messages=turns[1:])) == "1+1?"


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>hm</think>So 2.", "So 2."),
        ("hm</think>So 2.", "So 2."),
        ("<think>hm", ""),
        ("a<think>b</think>c<think>d</think>e", "ace"),
        ("<think>a<think>b</think>c", "c"),
        ("no thoughts", "no thoughts"),
        ("<think>" * 100_000, ""),
    ],
)
def test_thinking_is_left_out(text: str, rest: str) -> None:
    assert without_thinking(text) == rest
