"""Task files: every problem has its line and its field."""

import json
from pathlib import Path
from typing import Any

import pytest
from protocol.messages import Task
from protocol.tasks import MAX_LINE_BYTES, TaskFileError, read_tasks, valid_tasks

from tests.tables import table

LINE = '{"id": "1", "prompt": "1+1=", "answer": "2"}'
CONVERSATION = '{"messages": [{"role": "user", "content": "1+1?"}]}'


def change(line: str, **changes: Any) -> str:
    """A line with other fields; None removes one."""
    task = json.loads(line) | changes
    return json.dumps({key: value for key, value in task.items() if value is not None})


def parse_tasks(*lines: str) -> tuple[Task, ...]:
    return tuple(valid_tasks(text.encode() for text in lines))


def list_problems(*lines: str) -> list[str]:
    with pytest.raises(TaskFileError) as caught:
        parse_tasks(*lines)
    return caught.value.problems


def test_tasks_are_read_in_order_with_all_they_carry() -> None:
    metadata = {"level": 3, "tags": ["sum", None]}
    first, second = parse_tasks(
        change(LINE, solution="one and one", metadata=metadata), change(CONVERSATION, id="2")
    )
    assert (first.id, first.prompt, first.answer) == ("1", "1+1=", "2")
    assert (first.solution, first.metadata) == ("one and one", metadata)
    assert second.messages is not None
    assert (second.messages[0].role, second.messages[0].content) == ("user", "1+1?")


def test_each_wrong_line_is_reported_and_blank_ones_are_counted() -> None:
    same = LINE.replace('"1"', '"2"')
    lines = ["{", LINE, "  \t", change(same, answer=None), "[1]", LINE, same, LINE, "{\r"]
    assert [problem.split(": ")[:2] for problem in list_problems(*lines)] == [
        ["line 1", "not valid JSON"],
        ["line 4", "answer"],
        ["line 5", "a task must be a JSON object {...}"],
        ["line 6", "id"],
        ["line 8", "id"],
        ["line 9", "not valid JSON"],
    ]
    # A file without tasks is wrong too.
    assert len(list_problems("", " ")) == 1


DEEP = LINE.replace("}", ', "metadata": %s}')


@table(
    r"""
    line                                                               | problem
    {"id": 7, "prompt": "1+1=", "answer": "2"}                         | id:
    {"id": "1", "prompt": "", "answer": "2"}                           | prompt:
    {"id": "1", "prompt": "\ud83d", "answer": "2"}                     | prompt:
    {"id": "1", "messages": "1+1=", "answer": "2"}                     | messages
    {"id": "1", "prompt": "1+1=", "answr": "2"}                        | answr: unknown
    {"id": "1", "prompt": "1+1=", "reference_answer": "2"}             | reference_answer: unknown
    {"id": "2", "answer": "2"}                                         | task:
    {"prompt": "x", "messages": [{"role": "user", "content": "1+1?"}]} | task:
    {"messages": [{"role": "robot", "content": "1+1?"}]}               | messages.0.role:
    {"messages": [{"role": "tool", "content": "1+1?"}]}                | messages.0.role:
    {"messages": [{"role": "user", "content": [{}]}]}                  | messages.0.content:
    {"tools": [], "messages": [{"role": "user", "content": "1"}]}      | tools:
    {"a": 2, "metadata": {"a": 1}, "messages": [{"role": "user", "content": "1"}]} | a:
    {"id": "1", "prompt": "?", "metadata": {"tags": ["a", "b\ud83d"]}} | metadata.tags.1:
    {"id": "1", "prompt": "?", "metadata": {"\ud83d": 1}}              | metadata.\ud83d:
    {"id": "1", "prompt": "?", "metadata": NaN}                        | not valid JSON: NaN
    {"id": "1", "prompt": "?", "metadata": 1e999}                      | not valid JSON: 1e999
    """,
    (DEEP % ("8" * 5000), "a number of 5000 digits"),
    (DEEP % ("[" * 65 + "]" * 65), ""),
    (DEEP % ("[" * 100_000 + "]" * 100_000), ""),
)
def test_a_wrong_field_is_named(line: str, problem: str) -> None:
    problems = list_problems(LINE.replace('"1"', '"other"'), line)
    assert problems[0].startswith(f"line 2: {problem}")


def test_files_of_other_systems_are_read_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    answer = "\u2028\N{GRINNING FACE}"
    path = tmp_path / "tasks"
    lines = [LINE.replace('"2"', f'"{answer}"'), LINE.replace('"1"', '"2"'), ""]
    path.write_bytes("\ufeff".encode() + "\r\n".join(lines).encode())
    assert [task.answer for task in read_tasks(path)] == [answer, "2"]
    path.write_bytes(LINE.replace('"2"', '"é"').encode("latin-1"))
    with pytest.raises(TaskFileError, match=r"line 1: .* byte 42"):
        read_tasks(path)
    with pytest.raises(TaskFileError, match="missing"):
        read_tasks(tmp_path / "missing")


OPENAI = """{"messages": [
    {"role": "developer", "content": [{"type": "text", "text": "Be "}]},
    {"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1"}]},
    {"role": "assistant", "content": "2?"}
], "reference_answer": "2", "level": {"of": 3}}"""


def test_data_of_openai_is_read_as_it_is() -> None:
    (task,) = parse_tasks(OPENAI)
    assert task.messages is not None
    turns = [(turn.role, turn.content) for turn in task.messages]
    assert turns == [("developer", "Be "), ("user", "1+1"), ("assistant", "2?")]
    assert task.metadata == {"reference_answer": "2", "level": {"of": 3}}


def test_a_line_without_an_id_has_one_that_its_text_makes() -> None:
    lines = [CONVERSATION, change(LINE, id=None), f"{CONVERSATION}\r\n", f" {CONVERSATION}"]
    first, second, third, fourth = (task.id for task in parse_tasks(*lines))
    assert len({first, second, third, fourth}) == 4
    assert (third, fourth) == (f"{first}-3", f"{first}-4")


@table("""
    reference  | answer
    None       | None
    ""         | None
    0          | "0"
    {"a": "é"} | '{"a": "é"}'
""")
def test_the_answer_is_the_reference_answer_where_there_is_no_other(
    reference: object, answer: str | None
) -> None:
    (task,) = parse_tasks(change(CONVERSATION, reference_answer=reference))
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
    long_id = LINE.replace('"1"', f'"{"i" * 10_000}"')
    for problem in list_problems(LINE.replace("id", "k" * 10_000), long_id, long_id):
        assert len(problem) < 600


@table("""
    line                                | remedy
    {"prompt": "a", "answer": "b"},     | remove what follows the object
    {"prompt": "a", "answer": "b",}     | column 31, '}': remove the comma
    {“prompt”: "a", "answer": "b"}      | column 2, '“': write straight
    {'prompt': 'a', 'answer': 'b'}      | write straight double quotes
    {"prompt": "a", "answer": "b"       | the line ends too early
    prompt,answer                       | weir data import
    [{"prompt": "a", "answer": "b"}]    | weir data import
    {"prompt": "a", "answer": 1e3}      | in quotes
""")
def test_a_line_that_is_no_task_says_where_and_the_remedy(line: str, remedy: str) -> None:
    (problem,) = list_problems(line)
    assert remedy in problem


def test_an_integer_is_an_answer() -> None:
    (task,) = parse_tasks('{"prompt": "a", "answer": 12}')
    assert task.answer == "12"
