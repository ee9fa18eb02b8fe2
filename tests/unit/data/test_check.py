"""``weir data check`` names each problem of a task file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from protocol.tasks import MAX_LINE_BYTES

from services.chassis.pool import Cause, Failed, Value
from services.data import check as data_check
from services.data.__main__ import main
from services.data.presets import PRESETS
from tests.architecture.project import ROOT
from tests.tables import table
from tests.unit.grader.pools import InlinePool

HANGS = r"\sum_{k=1}^{10^{12}}\sin(k^2)"


def a_line(**changes: object) -> str:
    task = {"id": "one", "prompt": "1+1=", "answer": "2", **changes}
    return json.dumps({key: value for key, value in task.items() if value is not None})


def check(tmp_path: Path, content: bytes | str) -> int:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return main(["check", str(path)])


SOUND_ANSWERS = ["2", r"\frac{1}{2}", r"\text{East}", "(B)", r"\{1,2\}", r"(1,\infty)", "x+1"]


@table(
    """
    content                                        | problem
    {                                              | not valid JSON
    {"id": "one", "prompt": "1+1=", "answr": "2"}  | answr:
    {"id": "one", "prompt": "", "answer": "2"}     | prompt: empty; fill it in
    {"id": "one", "prompt": "  ", "answer": "2"}   | prompt: blank
    {"id": "one", "prompt": "1+1=", "answer": " "} | answer: blank
    {"id": "one", "messages": [], "answer": "2"}   | messages: empty; fill it in
    """,
)
def test_a_problem_is_reported_with_its_line(
    content: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, f"{a_line(id='zero', prompt='0=')}\n\n{content}\n") == 2
    *report, last = capsys.readouterr().out.splitlines()
    assert any(finding.startswith(f"line 3: {problem}") for finding in report)
    assert all(finding.startswith("line 3: ") for finding in report)
    assert last.endswith(f" tasks, {len(report)} problems")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\n \n", "the file holds no task"),
        (b"\xef\xbb\xbf", "the file holds no task"),
        (b"\xff\xfe{", "not UTF-8"),
        (b"x" * (MAX_LINE_BYTES + 9), "longer than 4 MiB"),
    ],
    ids=range(4),
)
def test_a_file_without_readable_lines_is_reported(
    content: bytes, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, content) == 2
    assert capsys.readouterr().out.startswith(f"line 1: {problem}")


@pytest.mark.parametrize(
    ("lines", "status", "report"),
    [
        (["{"] * 50, 2, "0 tasks, 50 problems"),
        ([a_line(), a_line(prompt="2=")], 2, "line 2: id: 'one' is taken by line 1"),
        ([a_line(), a_line(id="two")], 0, "line 2: warning: the same prompt as line 1"),
    ],
)
def test_every_problem_and_every_repetition_is_reported(
    lines: list[str], status: int, report: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, "\n".join(lines)) == status
    assert report in capsys.readouterr().out.splitlines()


def test_data_of_openai_is_sound_and_a_missing_answer_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = '{"messages": [{"role": "user", "content": "1?"}], "complies": "no"}'
    answered = '{"messages": [{"role": "user", "content": "2?"}], "reference_answer": 7}'
    lines = [first, answered, first.replace("1?", "3?")]
    assert check(tmp_path, "\n\n".join(lines)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "line 1: warning: no answer, in 2 tasks in all: only some graders can do without",
        "3 tasks, 0 problems",
    ]


class HangingPool(InlinePool):
    """A call with the answer that hangs ends as it would in a worker."""

    async def run(
        self, function: str, *args: Any, deadline_s: float, suspect: bool = False
    ) -> Value | Failed:
        if HANGS in args:
            return Failed(Cause.TIMEOUT)
        return await super().run(function, *args, deadline_s=deadline_s)


def test_an_answer_that_cannot_be_compared_is_a_problem_of_its_line_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_check, "Pool", HangingPool)
    answers = [HANGS, r"\frac{", "1 " * 2000, *SOUND_ANSWERS]
    lines = [a_line(id=str(n), prompt=f"{n}=", answer=answer) for n, answer in enumerate(answers)]
    assert check(tmp_path, "\n".join(lines)) == 2
    *problems, last = capsys.readouterr().out.splitlines()
    faults = ("timeout", "cannot read", "too long")
    for number, (problem, fault) in enumerate(zip(problems, faults, strict=True), 1):
        assert problem.startswith(f"line {number}: answer: ")
        assert fault in problem
    assert last == f"{len(answers)} tasks, 3 problems"


def test_the_document_shows_a_sound_task_and_every_preset(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/data.md").read_text("utf-8")
    (line,) = re.findall(r"```\n(\{.*?)```", page, re.DOTALL)
    assert check(tmp_path, line) == 0
    names = set(re.findall(r"`(.+?)`", page))
    assert {*PRESETS, *(preset.hub for preset in PRESETS.values())} <= names
