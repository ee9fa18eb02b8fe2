"""The labelled solutions of the project, and the report on how far the graders agree with them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.grader import worker
from services.grader.offline.__main__ import main, read_labelled
from services.grader.offline.calibration import (
    CALIBRATED,
    Case,
    Labelled,
    agreement,
    cases_of,
    level_of,
    summary,
)
from services.grader.tools import Tools
from tests.unit.grader.judge_server import MODEL, ScriptedServer
from tests.unit.grader.pools import InlinePool

SET = Path(__file__).parents[4] / "examples" / "calibration" / "solutions.jsonl"


@pytest.fixture(scope="session")
def solutions() -> list[Labelled]:
    with SET.open("rb") as file:
        return read_labelled(file)


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
    assert (whole["graded"] or 0) > 0.75 * len(solutions)
    assert (whole["kappa"] or 0) > 0.35
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


Calibrate = Callable[[str], tuple[int, dict[str, dict[str, Any]], list[str]]]


@pytest.fixture
def calibrate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Calibrate:
    """Calibrates by lines: the exit status, the report of each verifier, what was complained of."""
    monkeypatch.setattr(worker, "Pool", InlinePool)
    monkeypatch.delenv("WEIR_JUDGE_URL", raising=False)

    def calibrated(lines: str) -> tuple[int, dict[str, dict[str, Any]], list[str]]:
        path = tmp_path / "labelled.jsonl"
        path.write_text(lines)
        status = main(["--calibrate", str(path)])
        written = capfd.readouterr()
        reports = map(json.loads, written.out.splitlines())
        found = {report["verifier"]: report for report in reports}
        return status, found, written.err.splitlines()

    return calibrated


def test_without_a_judge_the_others_are_reported(calibrate: Calibrate) -> None:
    status, found, errors = calibrate(f"{a_labelled(more=1)}\n\n")
    assert status == 0
    (error,) = errors
    assert "WEIR_JUDGE_URL" in error
    labels = [(name, report["label"]) for name, report in found.items()]
    assert labels == [("math_answer", "outcome"), ("equation_steps", "process")]
    assert found["math_answer"]["all"]["same_level"] == 1


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (a_labelled(outcome="yes"), "line 1: outcome: "),
        (a_labelled(process=2), "line 1: process: "),
        (f"{a_labelled()}\n{{", "line 2: not JSON"),
        ("", "line 1: "),
    ],
)
def test_a_file_that_is_not_labelled_is_refused_with_its_lines(
    lines: str, problem: str, calibrate: Calibrate
) -> None:
    status, found, errors = calibrate(lines)
    assert (status, found) == (2, {})
    assert errors[0].startswith(f"weir grade: {problem}")


@pytest.fixture
def judge(
    server: ScriptedServer, calibrate: Calibrate, monkeypatch: pytest.MonkeyPatch
) -> ScriptedServer:
    """The judge that calibrating asks; of a thread of its own, as the judge lives in this one."""
    monkeypatch.setenv("WEIR_JUDGE_URL", server.url)
    monkeypatch.setenv("WEIR_JUDGE_MODEL", MODEL)
    return server


TWO = f"{a_labelled()}\n{a_labelled(id='two', process=0, kind='filler')}\n"


@pytest.mark.anyio
@pytest.mark.usefixtures("judge")
async def test_a_judge_is_measured_like_the_others(calibrate: Calibrate) -> None:
    status, found, errors = await asyncio.to_thread(calibrate, TWO)
    assert (status, errors) == (0, [])
    judged = found["model_judge"]
    assert (judged["label"], judged["all"]["n"], judged["all"]["same_level"]) == ("process", 2, 0.5)
    assert judged["confusion"] == {"1": {"1": 1}, "0": {"1": 1}}


@pytest.mark.anyio
async def test_a_judge_that_goes_down_ends_it_with_the_reason(
    judge: ScriptedServer, calibrate: Calibrate
) -> None:
    async def go_away(*_: object) -> None:
        await judge.go_away()

    judge.script = [go_away]
    status, found, errors = await asyncio.to_thread(calibrate, TWO)
    assert (status, list(found)) == (2, ["math_answer", "equation_steps"])
    (error,) = errors
    assert "cannot be reached" in error
    assert "WEIR_JUDGE_URL" in error


Pairs = list[tuple[float, float | None]]  # a label and what was given


def cases(pairs: Pairs, kind: str = "k") -> list[Case]:
    return [
        Case(kind, label == 1, label, given, None if given is not None else "no_verdict")
        for label, given in pairs
    ]


def test_scores_round_to_levels_and_the_upper_of_two_that_are_as_near() -> None:
    assert list(map(level_of, (0, 0.2, 0.25, 0.74, 0.75, 1))) == [0, 0, 0.5, 0.5, 1, 1]


# Two readers of 50 proposals: 20 times yes by both, 15 times no by both (kappa 0.4).
TEXTBOOK = [(1, 1)] * 20 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 15
SAME: Pairs = [(0, 0), (0.5, 0.5), (1, 1)]


@pytest.mark.parametrize(
    ("pairs", "kappa"),
    [
        (SAME, 1),
        ([(0, 0), (0, 1), (1, 0), (1, 1)], 0),
        ([(0, 1), (1, 0)], -1),
        (TEXTBOOK, 0.4),
        ([*SAME * 3, (0, 0.5)], 0.8864),  # a near miss weighs less
        ([*SAME * 3, (0, 1)], 0.7826),  # than a far one
        ([(1, 1), (1, 1)], None),
        ([(1, None)], None),
    ],
)
def test_kappa_is_that_of_the_textbook(pairs: Pairs, kappa: float | None) -> None:
    assert agreement(cases(pairs))["kappa"] == kappa


def test_a_summary_says_it_all_of_what_was_graded() -> None:
    right = cases([(1, 1), (0, 1), (0, 0), (0.5, 0.75)], kind="right")
    found = summary(right + cases([(1, None)], kind="empty"))
    assert found["all"] == {"n": 5, "graded": 4, "same_level": 0.5, "kappa": 0.3333}
    assert found["ungradable"] == {"no_verdict": 1}
    assert found["confusion"] == {
        "1": {"1": 1, "ungradable": 1},
        "0": {"1": 1, "0": 1},
        "0.5": {"1": 1},
    }
    assert found["right_outcome"]["n"] == 2
    assert [(kind, each["same_level"]) for kind, each in found["kinds"].items()] == [
        ("right", 0.5),
        ("empty", None),
    ]
