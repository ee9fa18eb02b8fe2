"""Task files: every problem has its line and its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from protocol.messages import Task
from protocol.tasks import MAX_LINE_BYTES, TaskFileError, read_tasks, valid_tasks

HALF = "\ud83d"
ASKED = [{"role": "user", "content": "1+1?"}]


def line(**changes: Any) -> str:
    task = {"id": "1", "prompt": "1+1=", "answer": "2", **changes}
    return json.dumps({key: value for key, value in task.items() if value is not None})


def openai_line(**columns: Any) -> str:
    return json.dumps({"messages": ASKED, **columns})


def parse_tasks(*lines: str) -> tuple[Task, ...]:
    return tuple(valid_tasks(text.encode() for text in lines))


def problems(*lines: str) -> list[str]:
    with pytest.raises(TaskFileError) as caught:
        parse_tasks(*lines)
    return caught.value.problems


def test_tasks_are_read_in_order_with_all_they_carry() -> None:
    metadata = {"level": 3, "tags": ["sum", None]}
    first, second = parse_tasks(
        line(solution="one and one", metadata=metadata),
        line(id="2", prompt=None, messages=ASKED),
    )
    assert (first.id, first.prompt, first.answer) == ("1", "1+1=", "2")
    assert (first.solution, first.metadata) == ("one and one", metadata)
    assert second.messages is not None
    assert (second.messages[0].role, second.messages[0].content) == ("user", "1+1?")


def test_each_wrong_line_is_reported_and_blank_ones_are_counted() -> None:
    found = problems("{", line(), "  \t", line(id="2", answer=None), "[1]", line(answr="4"), "{\r")
    assert [problem.split(": ")[:2] for problem in found] == [
        ["line 1", "not valid JSON"],
        ["line 4", "answer"],
        ["line 5", "a task must be a JSON object"],
        ["line 6", "answr"],
        ["line 7", "not valid JSON"],
    ]
    assert len(problems("", " ")) == 1  # a file without tasks


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (line(id=7), "id: "),
        (line(prompt=""), "prompt: "),
        (line(prompt=None), "task: "),
        (line(messages=ASKED), "task: "),
        (line(prompt=None, messages=[{"role": "robot", "content": "?"}]), "messages.0.role: "),
        (line(reference_answer="2"), "reference_answer: unknown"),
        (line(prompt=HALF), "prompt: "),
        (line(metadata={"tags": ["a", f"b{HALF}"]}), "metadata.tags.1: "),
        (line(metadata={HALF: 1}), r"metadata.\ud83d: "),
        *((line(metadata=7).replace("7", it), f"not valid JSON: {it}") for it in ("NaN", "1e999")),
        (line(metadata=7).replace("7", "8" * 5000), "a number of 5000 digits"),
        *((line(metadata=7).replace("7", "[" * it + "]" * it), "") for it in (65, 100_000)),
        (openai_line(tools=[]), "tools: "),
        (openai_line(metadata={"a": 1}, a=2), "a: "),
        (openai_line(prompt="x"), "task: "),
        (openai_line(messages=[{"role": "tool", "content": "x"}]), "messages.0.role: "),
        (openai_line(messages=[{"role": "user", "content": [{}]}]), "messages.0.content: "),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    found = problems(line(id="other"), text)
    assert found[0].startswith(f"line 2: {problem}")


def test_an_id_is_taken_once() -> None:
    lines = [line(id="a"), line(id="b"), line(id="a"), line(id="a")]
    assert [problem.partition(": ")[0] for problem in problems(*lines)] == ["line 3", "line 4"]


def test_files_of_other_systems_are_read_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    path, missing, latin = (tmp_path / name for name in ("ours", "missing", "latin"))
    text = line(answer="\u2028\N{GRINNING FACE}") + "\r\n" + line(id="2") + "\r\n"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [task.answer for task in read_tasks(path)] == ["\u2028\N{GRINNING FACE}", "2"]
    latin.write_bytes(line(answer="x").replace("x", "é").encode("latin-1"))
    with pytest.raises(TaskFileError, match="missing"):
        read_tasks(missing)
    with pytest.raises(TaskFileError, match=r"line 1: .* byte 42"):
        read_tasks(latin)


def test_data_of_openai_is_read_as_it_is() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}]},
        {"role": "user", "content": [{"type": "text", "text": text} for text in ("1+", "1")]},
        {"role": "assistant", "content": "2?"},
    ]
    (task,) = parse_tasks(openai_line(messages=messages, reference_answer="2", level={"of": 3}))
    assert task.messages is not None
    turns = [(turn.role, turn.content) for turn in task.messages]
    assert turns == [("developer", "Be "), ("user", "1+1"), ("assistant", "2?")]
    assert task.metadata == {"reference_answer": "2", "level": {"of": 3}}


def test_a_line_without_an_id_has_one_that_its_text_makes() -> None:
    one, two = openai_line(reference_answer="2"), line(id=None)
    first, second, again, third = parse_tasks(one, two, one + "\r\n", f" {one}")
    assert len({task.id for task in (first, second, again, third)}) == 4
    assert (again.id, third.id) == (f"{first.id}-3", f"{first.id}-4")


@pytest.mark.parametrize(
    ("reference", "answer"), [(None, None), ("", None), (0, "0"), ({"a": "é"}, '{"a": "é"}')]
)
def test_the_answer_is_the_reference_answer_where_there_is_no_other(
    reference: object, answer: str | None
) -> None:
    (task,) = parse_tasks(openai_line(reference_answer=reference))
    assert task.answer == answer


def test_long_lines_and_many_problems_take_bounded_memory_and_time(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"x" * (2 * MAX_LINE_BYTES) + b"\n" + b"{\n")
    with pytest.raises(TaskFileError, match=r"line 1: longer.*\nline 2: "):
        read_tasks(path)
    lines = iter([b"nonsense\n"] * 1000)
    with pytest.raises(TaskFileError):
        tuple(valid_tasks(lines))
    assert len(list(lines)) == 980
    long = line(id="i" * 10_000)
    for problem in problems(line(**{"k" * 10_000: 1}), long, long):
        assert len(problem) < 600
