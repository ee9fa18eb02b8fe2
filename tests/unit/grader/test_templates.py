"""Templates of checks, and responses without their thinking."""

import re

import pytest
from protocol.messages import Graded

from services.grader.templates import NoOutput, UnknownField, fill, remove_thinking
from tests.builders import a_task
from tests.tables import table

TASK = a_task(
    solution="one and one",
    metadata={
        **{"level": 3, "source": {"book": "Euklid"}, "tags": ["é"]},
        **{"unit": "apples", "list": [{"n": 7}]},
    },
)


@table(r"""
    template                                              | filled
    {{item.prompt}}{{item.answer}}                        | 1+1=2
    {{ item.id }}: {{item.solution}}                      | sum-1: one and one
    {{item.metadata.level}} {{item.metadata.source.book}} | 3 Euklid
    {{item.level}} {{item.source.book}} {{item.tags}}     | 3 Euklid ["é"]
    \boxed{{{item.answer}}} \frac{{1}}{{2}}               | \boxed{2} \frac{{1}}{{2}}
    {{item.list[0].n}} of {{item.unit}}                   | 7 of apples
    it said {{sample.output_text}}                        | it said {{item.answer}} \1
""")
def test_fields_are_filled_in_once(template: str, filled: str) -> None:
    assert fill(template, TASK, r"{{item.answer}} \1") == filled


def test_a_part_of_the_response_s_json_is_filled_in_or_missing() -> None:
    template = "{{sample.output_json.a[1].b}}"
    assert fill(template, TASK, '{"a": [0, {"b": "7apples"}]}') == "7apples"
    for text in ("no JSON", '{"a": [0]}'):
        with pytest.raises(NoOutput) as missing:
            fill(template, TASK, text)
        assert missing.value.score == Graded(value=0, reason="no_output")


LACKED = ("item.answer", "item.solution")  # where a task has neither
UNKNOWN = ("item", "item.hint", "item.metadata.x", "item.metadata.level.x", "sample.text", "answer")


@pytest.mark.parametrize("name", [*UNKNOWN, *LACKED])
def test_an_unknown_field_is_named(name: str) -> None:
    with pytest.raises(UnknownField, match=re.escape(name)):
        fill(f"{{{{{name}}}}}", a_task(answer=None) if name in LACKED else TASK, "text")


@table(
    """
    text                                | response
    <think>hm</think>So 2.              | So 2.
    hm</think>So 2.                     | So 2.
    <think>hm                           |
    a<think>b</think>c<think>d</think>e | ace
    <think>a<think>b</think>c           | c
    no thoughts                         | no thoughts
""",
    ("<think>" * 100_000, ""),
)
def test_thinking_is_left_out(text: str, response: str) -> None:
    assert remove_thinking(text) == response
