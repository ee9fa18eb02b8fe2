"""``weir data integers``: by rule, and on the task files that there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from protocol.messages import Graded
from protocol.tasks import read_tasks

from services.data.__main__ import main
from services.data.integers import How, Outcome
from services.grader.pool import Failed, Value
from services.grader.tools import Tools
from services.grader.verifiers import math_answer
from tests.unit.data.task_files import Files, a_task, rewrite
from tests.unit.grader.pools import InlinePool


def test_each_answer_goes_its_way(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    answers = ["42", r"\frac{14}{3}", r"11-2\sqrt{6}", r"\text{East}", r"10,\!080", "(1,2)"]
    tasks = [a_task(answer, id=f"task-{n}") for n, answer in enumerate(answers)]
    tasks[1] |= {"metadata": {"level": 5, "ü": ["\U0001d54f"]}, "solution": "See?"}
    assert files.rewrite(*tasks) == 0
    assert [(task["id"], task["answer"]) for task in files.written] == [
        ("task-0", "42"),
        ("task-1", "17"),
        ("task-2", "15"),
        ("task-4", "10080"),
    ]
    *left_out, summary = capsys.readouterr().err.splitlines()
    places = [line.partition(": no number")[0] for line in left_out]
    assert places == ["line 4: 'task-3'", "line 6: 'task-5'"]
    assert summary == "2 kept as they are, 2 rewritten, 2 left out"
    assert_only_prompt_and_answer_differ(files.written[1], tasks[1])
    assert [task.answer for task in read_tasks(files.target)] == ["42", "17", "15", "10080"]


def assert_only_prompt_and_answer_differ(task: dict[str, Any], old: dict[str, Any]) -> None:
    assert list(task) == list(old)
    assert {**task, "prompt": "", "answer": ""} == {**old, "prompt": "", "answer": ""}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "integer", "words"),
    [
        (r"1\frac{4}{5}", "14", r"\frac{m}{n}"),
        (r"-\frac{35}{9}", "-26", r"$m$ may be negative"),
        (r"\frac{3\sqrt{3}}{4}", "10", r"\frac{k\sqrt{m}}{n}"),
        (r"-\frac{\pi}{6}", "5", r"\frac{k\pi}{n}"),
        (r"\frac{1+\sqrt{5}}{2}", "9", r"\frac{p+q\sqrt{r}}{s}"),
        (r"90^\circ", "90", "in degrees"),
        (r"5.25 \text{ cents}", "25", ", in cents,"),
    ],
)
async def test_a_number_is_asked_for_by_its_integers(
    answer: str, integer: str, words: str, files: Files, tools: Tools
) -> None:
    [outcome] = await rewrite(files, [a_task(answer)], tools)
    assert outcome.how is How.REWRITTEN, outcome.reason
    assert outcome.fields["answer"] == integer
    problem, _, sentence = outcome.fields["prompt"].partition("\n\n")
    assert problem == "How long is it?"
    assert words in sentence


@pytest.mark.anyio
async def test_a_rounded_decimal_is_left_out_unless_the_problem_asks_for_it(
    files: Files, tools: Tools
) -> None:
    rounding = a_task("0.67", prompt="What part is red? Round to the nearest hundredth.")
    left_out, rule = await rewrite(files, [a_task("0.67"), {**rounding, "id": "two"}], tools)
    assert left_out.reason == "0.67 may be rounded, and the problem asks for no rounding"
    assert rule.fields["answer"] == "167"


@pytest.mark.anyio
async def test_the_sentence_goes_to_the_last_message_of_the_user(
    files: Files, tools: Tools
) -> None:
    turns = [("system", "Be brief."), ("user", "Half of 1?"), ("assistant", "<think>")]
    messages = [{"role": role, "content": content} for role, content in turns]
    task = {"id": "one", "messages": messages, "answer": "0.5"}
    [outcome] = await rewrite(files, [task], tools)
    contents = [turn["content"] for turn in outcome.fields["messages"]]
    assert contents[0] == "Be brief."
    assert contents[1].startswith("Half of 1?\n\nWrite the answer as $")
    assert contents[2] == "<think>"


class DoubtfulPool(InlinePool):
    """Finds all answers different."""

    async def run(self, function: str, *args: Any, **_: Any) -> Value | Failed:
        return Value("wrong")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ({"messages": [{"role": "system", "content": "Half of 1?"}], "answer": "0.5"}, "message"),
        ({"prompt": "What?", "answer": r"\frac{1+\sqrt{5}}{2}"}, "does not take"),
    ],
)
async def test_a_task_that_cannot_be_rewritten_is_left_out(
    task: dict[str, Any], reason: str, files: Files
) -> None:
    doubtful: Any = DoubtfulPool()
    [outcome] = await rewrite(files, [{"id": "x", **task}], Tools(doubtful))
    assert outcome.how is How.LEFT_OUT
    assert reason in outcome.reason


def test_the_file_that_is_read_is_not_overwritten(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.source.write_text(json.dumps(a_task("1/2")))
    files.target.symlink_to(files.source)
    for target in (files.source, files.target):
        assert main(["integers", str(files.source), str(target)]) == 2
        assert "is the file to read" in capsys.readouterr().err
    assert json.loads(files.source.read_text()) == a_task("1/2")


@pytest.mark.parametrize("task", [a_task("x+1"), {"id": "broken"}])
def test_where_nothing_can_be_written_the_old_file_stays(
    task: dict[str, Any], files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.target.write_text("old")
    assert files.rewrite(task) == 2
    assert files.target.read_text() == "old"
    assert sorted(path.name for path in files.folder.iterdir()) == ["in.jsonl", "out.jsonl"]
    assert "line 1: " in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["no/such", "/proc/self"])
def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    folder: str, files: Files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_GRADER_WORKERS", "none")  # the work itself would stop at this
    files.source.write_text(json.dumps(a_task("1/2")))
    target = files.folder / folder / "out.jsonl"
    assert main(["integers", str(files.source), str(target)]) == 2
    assert "cannot be written" in capsys.readouterr().err


DATA = Path(__file__).parents[4] / "shared" / "data"


@pytest.mark.anyio
@pytest.mark.skipif(not DATA.exists(), reason="needs task files in ../shared/data")
@pytest.mark.parametrize(
    ("name", "kept", "by_rule"), [("math500.jsonl", 315, 114), ("aime2024.jsonl", 30, 0)]
)
async def test_every_rewritten_task_of_the_task_files_verifies(
    name: str, kept: int, by_rule: int, files: Files, tools: Tools
) -> None:
    rows = [json.loads(line) for line in (DATA / name).read_text().splitlines()]
    tasks = [{"id": r["id"], "prompt": r["question"], "answer": r["answer"]} for r in rows]
    outcomes = await rewrite(files, tasks, tools)
    ways = [outcome.how for outcome in outcomes]
    assert (ways.count(How.KEPT), ways.count(How.REWRITTEN)) == (kept, by_rule)
    for outcome, task in zip(outcomes, tasks, strict=True):
        assert outcome.line.task is not None
        if outcome.how is How.LEFT_OUT:
            assert outcome.reason
        else:
            await assert_verifies(outcome, task, tools)


async def assert_verifies(outcome: Outcome, task: dict[str, Any], tools: Tools) -> None:
    """The new answer is an integer, and a form in named integers has the value of the old one."""
    assert str(int(outcome.fields["answer"])) == outcome.fields["answer"]
    assert outcome.fields["prompt"].startswith(task["prompt"])
    rebuilt = outcome.form.rebuilt() if outcome.form else outcome.fields["answer"]
    assert await math_answer.compare(task["answer"], rebuilt, tools) == Graded(value=1)
    if outcome.form:
        assert int(outcome.fields["answer"]) == sum(outcome.form.values.values())
