"""The labelled solutions of the project, and the report on how far the graders agree with them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.grader.offline.__main__ import main
from services.grader.offline.agreement import agreement
from services.grader.offline.calibration import (
    CALIBRATED,
    Labelled,
    cases_of,
    read_labelled,
)
from services.grader.tools import Tools
from tests.unit.grader.judge_server import MODEL, ScriptedServer, replies

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
SET = ROOT / "examples" / "calibration" / "solutions.jsonl"
KINDS = {"right", "wrong", "right_answer_wrong_reasoning", "filler", "empty", "injection"}


@pytest.fixture(scope="session")
def solutions() -> list[Labelled]:
    with SET.open("rb") as file:
        return read_labelled(file)


def test_the_labelled_set_has_every_kind_and_labels_that_fit(solutions: list[Labelled]) -> None:
    assert len({each.id for each in solutions}) == len(solutions) >= 60
    problems = {(each.problem, each.answer, each.solution) for each in solutions}
    assert len(problems) == len({problem for problem, _, _ in problems}) >= 12
    kinds = Counter(each.kind for each in solutions)
    assert set(kinds) == KINDS
    assert min(kinds.values()) >= 5
    for each in solutions:
        assert each.process in {0, 0.5, 1}, each.id
        labels = {
            "right": each.outcome and each.process > 0,
            "right_answer_wrong_reasoning": each.outcome and not each.process,
            "wrong": not (each.outcome or each.process),
            "empty": not (each.outcome or each.process),
        }
        assert labels.get(each.kind, True), each.id


@pytest.mark.anyio
async def test_math_answer_agrees_with_every_label_and_equation_steps_with_some(
    solutions: list[Labelled], tools: Tools
) -> None:
    (outcome, outcome_label), (process, process_label), _ = CALIBRATED
    cases = await cases_of(outcome, outcome_label, solutions, tools)
    pairs = zip(solutions, cases, strict=True)
    assert [solution.id for solution, case in pairs if case.given != case.label] == []
    cases = await cases_of(process, process_label, solutions, tools)
    whole = agreement(cases)
    assert whole["graded"] == len(solutions)
    assert (whole["kappa"] or 0) > 0.1  # better than chance
    assert agreement([case for case in cases if case.kind == "empty"])["same_level"] == 1


def a_labelled(**changes: Any) -> str:
    fields = {
        "id": "one",
        "problem": "1 + 1 = ?",
        "solution": "1 + 1 = 2",
        "answer": "2",
        "response": r"1 + 1 = 2, so \boxed{2}",
        "kind": "right",
        "outcome": True,
        "process": 1,
    }
    return json.dumps(fields | changes)


def calibrate_file(
    folder: Path, lines: str, capfd: pytest.CaptureFixture[str]
) -> tuple[int, str, list[str]]:
    path = folder / "labelled.jsonl"
    path.write_text(lines)
    status = main(["--calibrate", str(path)])
    written = capfd.readouterr()
    return status, written.out, written.err.splitlines()


def reports(text: str) -> dict[str, dict[str, Any]]:
    """What was reported of each verifier."""
    found = map(json.loads, text.splitlines())
    return {report["verifier"]: report for report in found}


@pytest.fixture
def no_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIR_JUDGE_URL", raising=False)


@pytest.mark.usefixtures("no_judge")
def test_without_a_judge_the_others_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status, text, errors = calibrate_file(tmp_path, f"{a_labelled(more=1)}\n\n", capfd)
    assert status == 0
    assert errors == ["weir grade: model_judge was not asked: WEIR_JUDGE_URL is not set"]
    found = reports(text)
    assert {name: report["label"] for name, report in found.items()} == {
        "math_answer": "outcome",
        "equation_steps": "process",
    }
    assert found["math_answer"]["all"]["same_level"] == 1


BAD = {
    "a label that is none": (a_labelled(outcome="yes"), "line 1: outcome: "),
    "a score that is none": (a_labelled(process=2), "line 1: process: "),
    "no label": ("{}", "line 1: id: required, but missing"),
    "no JSON": (f"{a_labelled()}\n{{", "line 2: not JSON"),
    "nothing": ("", "line 1: the file holds no labelled solution"),
}


@pytest.mark.usefixtures("no_judge")
@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_not_labelled_is_refused_with_its_lines(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines, problem = BAD[case]
    status, report, errors = calibrate_file(tmp_path, lines, capfd)
    assert (status, report) == (2, "")
    assert errors[0].startswith(f"weir grade: {problem}")


async def calibrate_with(server: ScriptedServer, folder: Path) -> tuple[int, str, str]:
    path = folder / "labelled.jsonl"
    path.write_text(f"{a_labelled()}\n{a_labelled(id='two', process=0, kind='filler')}\n")
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT / 'proto'}{os.pathsep}{ROOT}",
        "WEIR_JUDGE_URL": server.url,
        "WEIR_JUDGE_MODEL": MODEL,
    }
    command = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "services.grader.offline", "--calibrate", str(path)],
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    written, errors = await asyncio.wait_for(command.communicate(), 60)
    assert command.returncode is not None
    return command.returncode, written.decode(), errors.decode()


@pytest.mark.anyio
async def test_a_judge_is_measured_like_the_others(tmp_path: Path) -> None:
    async with ScriptedServer() as server:
        status, text, errors = await calibrate_with(server, tmp_path)
    assert (status, errors) == (0, "")
    judged = reports(text)["model_judge"]
    assert (judged["label"], judged["all"]["n"], judged["all"]["same_level"]) == ("process", 2, 0.5)
    assert judged["confusion"] == {"1": {"1": 1}, "0": {"1": 1}}


@pytest.mark.anyio
@pytest.mark.parametrize("when", ["at its self-test", "meanwhile"])
async def test_a_judge_that_is_down_ends_it_with_the_reason(when: str, tmp_path: Path) -> None:
    async with ScriptedServer() as server:

        async def go_away(*_: object) -> None:
            await server.go_away()

        if when == "meanwhile":
            server.script = [go_away]
        else:
            server.exam = replies(b"no such thing", status=404)
        status, report, errors = await calibrate_with(server, tmp_path)
    assert status == 2
    assert list(reports(report)) == ["math_answer", "equation_steps"]
    assert "weir grade: the judge is not up: " in errors
    assert ("cannot be reached" if when == "meanwhile" else "answers 404") in errors
    assert "start it, or unset WEIR_JUDGE_URL" in errors
