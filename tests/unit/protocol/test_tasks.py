"""Task files: every problem has its line and its field."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from protocol.messages import Task
from protocol.tasks import MAX_LINE_BYTES, TaskFileError, read_tasks, sound_tasks

HALF = "\ud83d"


def line(**changes: Any) -> str:
    task = {"id": "1", "prompt": "1+1=", "answer": "2", **changes}
    return json.dumps({key: value for key, value in task.items() if value is not None})


def parse_tasks(lines: Iterable[str]) -> tuple[Task, ...]:
    return tuple(sound_tasks(text.encode() for text in lines))


def problems(*lines: str) -> list[str]:
    with pytest.raises(TaskFileError) as caught:
        parse_tasks(lines)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def test_tasks_are_read_in_order_with_all_they_carry() -> None:
    messages = [{"role": "user", "content": "1+1?"}]
    first, second = parse_tasks(
        [
            line(solution="one and one", metadata={"level": 3, "tags": ["sum", None]}),
            line(id="2", prompt=None, messages=messages),
        ]
    )
    assert (first.id, first.prompt, first.answer) == ("1", "1+1=", "2")
    assert first.solution == "one and one"
    assert first.metadata == {"level": 3, "tags": ["sum", None]}
    assert second.messages is not None
    assert (second.messages[0].role, second.messages[0].content) == ("user", "1+1?")


def test_blank_lines_are_skipped_and_still_counted() -> None:
    assert len(parse_tasks(["", line(), "  \t", line(id="2"), "\r"])) == 2
    assert problems("", line(), "", "{").pop().startswith("line 4: ")
    assert len(problems("", " ")) == 1  # a file without tasks


def test_each_wrong_line_is_reported() -> None:
    found = problems("{", line(), line(id="2", answer=None), "[1]", line(id="3", answr="4"))
    assert [problem.split(": ")[:2] for problem in found] == [
        ["line 1", "not valid JSON"],
        ["line 3", "answer"],
        ["line 4", "a task must be a JSON object"],
        ["line 5", "answr"],
    ]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": 7}, "id"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "task"),
        ({"messages": [{"role": "user", "content": "1+1?"}]}, "task"),
        ({"prompt": None, "messages": [{"role": "robot", "content": "?"}]}, "messages.0.role"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], field: str) -> None:
    assert problems(line(**changes))[0].startswith(f"line 1: {field}: ")


def test_an_id_is_taken_once() -> None:
    lines = [line(id="a"), line(id="b"), line(id="a"), line(id="a")]
    assert [problem.partition(": ")[0] for problem in problems(*lines)] == ["line 3", "line 4"]


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_json_cannot_hold_are_refused(number: str) -> None:
    (problem,) = problems(line(metadata={"x": "?"}).replace('"?"', number))
    assert number in problem


@pytest.mark.parametrize("depth", [65, 100_000])
def test_bottomless_nesting_is_reported(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    found = problems(line(metadata={"x": "?"}).replace('"?"', nested))
    assert found[0].startswith("line 1: ")


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"prompt": HALF}, "prompt"),
        ({"metadata": {"tags": ["a", f"b{HALF}"]}}, "metadata.tags.1"),
        ({"metadata": {HALF: 1}}, r"metadata.\ud83d"),
    ],
)
def test_half_a_character_is_refused_wherever_it_stands(
    changes: dict[str, Any], place: str
) -> None:
    (problem,) = problems(line(), line(id="other", **changes))
    assert problem.startswith(f"line 2: {place}: ")


def test_files_of_other_systems_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    text = line(answer="\u2028\N{GRINNING FACE}") + "\r\n" + line(id="2") + "\r\n"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [task.answer for task in read_tasks(path)] == ["\u2028\N{GRINNING FACE}", "2"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing, latin = tmp_path / "missing.jsonl", tmp_path / "latin.jsonl"
    latin.write_bytes(line(answer="x").replace("x", "é").encode("latin-1"))
    with pytest.raises(TaskFileError, match=r"missing\.jsonl"):
        read_tasks(missing)
    with pytest.raises(TaskFileError, match=r"line 1: .* byte 42"):
        read_tasks(latin)


# ---------------------------------------------------------------------- data as OpenAI has it

ASKED = [{"role": "user", "content": "1+1?"}]


def openai_line(**columns: Any) -> str:
    return json.dumps({"messages": ASKED, **columns})


def test_data_of_openai_is_read_as_it_is() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}]},
        {"role": "user", "content": [{"type": "text", "text": text} for text in ("1+", "1")]},
        {"role": "assistant", "content": "2?"},
    ]
    (task,) = parse_tasks([openai_line(messages=messages, reference_answer="2", level={"of": 3})])
    assert task.messages is not None
    turns = [(turn.role, turn.content) for turn in task.messages]
    assert turns == [("developer", "Be "), ("user", "1+1"), ("assistant", "2?")]
    assert task.answer == "2"
    assert task.metadata == {"reference_answer": "2", "level": {"of": 3}}


def test_a_line_without_an_id_has_one_that_its_text_makes() -> None:
    one, two = openai_line(reference_answer="2"), openai_line(reference_answer="3")
    first, second, again, third = parse_tasks([one, two, one + "\r\n", one])
    (moved,) = parse_tasks([f" {one}"])
    assert moved.id == first.id
    assert len({task.id for task in (first, second, again, third)}) == 4
    assert (again.id, third.id) == (f"{first.id}-3", f"{first.id}-4")


@pytest.mark.parametrize(
    ("columns", "answer"),
    [
        ({}, None),
        ({"reference_answer": ""}, None),
        ({"reference_answer": 0}, "0"),
        ({"reference_answer": {"a": "é"}}, '{"a": "é"}'),
    ],
)
def test_the_answer_is_the_reference_answer_where_there_is_no_other(
    columns: dict[str, Any], answer: str | None
) -> None:
    (task,) = parse_tasks([openai_line(**columns)])
    assert task.answer == answer


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"tools": []}, "tools"),
        ({"metadata": {"a": 1}, "a": 2}, "a"),
        ({"prompt": "x"}, "task"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages.0.content"),
    ],
)
def test_what_cannot_be_kept_of_openais_data_is_refused(
    columns: dict[str, Any], field: str
) -> None:
    assert problems(openai_line(**columns))[0].startswith(f"line 1: {field}: ")


def test_weirs_own_shape_stays_strict() -> None:
    assert problems(line(reference_answer="2"))[0].startswith("line 1: reference_answer: unknown")
    assert problems(line(id=None)) == ["line 1: id: required, but missing"]


# ---------------------------------------------------------------------- in bounded memory and time


def test_a_line_is_read_up_to_a_limit_and_the_next_ones_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"x" * (2 * MAX_LINE_BYTES) + b"\n" + b"{\n")
    with pytest.raises(TaskFileError) as caught:
        read_tasks(path)
    huge, broken = caught.value.problems
    assert huge.startswith("line 1: longer")
    assert broken.startswith("line 2: ")


def test_after_twenty_problems_no_line_is_read() -> None:
    lines = iter([b"nonsense\n"] * 1000)
    with pytest.raises(TaskFileError):
        tuple(sound_tasks(lines))
    assert len(list(lines)) == 980


def test_what_is_told_of_a_line_is_short() -> None:
    long = line(id="i" * 10_000)
    for problem in problems(line(**{"k" * 10_000: 1}), long, long):
        assert len(problem) < 600
