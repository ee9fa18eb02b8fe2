"""``weir grade``: one verdict per line, whatever the lines are; and how far graders agree with us.

What needs a pool is computed in this process, but where pipes open and close.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from deploy.launches import python_path
from services.grader import worker
from services.grader.offline import __main__ as command
from services.grader.offline.__main__ import MAX_LINE_BYTES, read_labelled
from services.grader.offline.calibration import (
    CALIBRATED,
    Case,
    Labelled,
    agreement,
    score_cases,
    summarize,
)
from services.grader.tools import Tools
from tests.architecture.project import ROOT
from tests.tables import read_rows, table
from tests.unit.grader.judge_server import MODEL, ScriptedServer, until
from tests.unit.grader.pools import InlinePool, list_descendants, wait_until_gone

Lines = list[dict[str, Any]]
Grade = Callable[[bytes], tuple[int, Lines, list[str]]]
Calibrate = Callable[[str], tuple[int, dict[str, dict[str, Any]], list[str]]]


RIGHT = r'{"response": "So it is \\boxed{42}.", "answer": "42"}'


@pytest.fixture
def grade(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Grade:
    """Grades lines: the exit status, the lines of standard output, those of standard error."""
    monkeypatch.setenv("WEIR_GRADER_WORKERS", "2")
    monkeypatch.delenv("WEIR_JUDGE_URL", raising=False)
    for module in (command, worker):
        monkeypatch.setattr(module, "Pool", InlinePool)

    def graded(lines: bytes, *options: str) -> tuple[int, Lines, list[str]]:
        path = tmp_path / "responses.jsonl"
        path.write_bytes(lines)
        status = command.main([*options, str(path)])
        output = capfd.readouterr()
        return (
            status,
            [json.loads(line) for line in output.out.splitlines()],
            output.err.splitlines(),
        )

    return graded


@pytest.fixture
def calibrate(grade: Callable[..., tuple[int, Lines, list[str]]]) -> Calibrate:
    """Calibrates by lines: the exit status, the report of each verifier, standard error."""

    def calibrated(lines: str) -> tuple[int, dict[str, dict[str, Any]], list[str]]:
        status, reports, errors = grade(lines.encode(), "--calibrate")
        return status, {report["verifier"]: report for report in reports}, errors

    return calibrated


READ = read_rows(r"""
{"response": "So it is \\boxed{42}.", "answer": "42"}                  | true  |
{"response": "\\boxed{41}", "answer": "42", "id": 7, "kind": "x"}      | false | wrong
{"response": "\\boxed{2k+2}", "answer": "2(k+1)"}                      | true  |
{"response": "no answer at all", "answer": "42"}                       | false | no_answer
{"response": "\\boxed{x+1}", "answer": "\\foo{"}                       | null  | gold_not_parsable
{"response": "\\boxed{42\\%}", "answer": "42", "problem": "By what percent?"} | true |
{"response": "\\boxed{42\\%}", "answer": "42", "problem": "How many?"} | false | wrong
{"response": "\ud800 \\boxed{42}", "answer": "42"}                     | true  |
{"response": "\\boxed{\udfff}", "answer": "42"}                        | false | not_parsable
{"response": "\\boxed{42}", "answer": "\ud800"}                        | null  | gold_not_parsable
{"response": "\\boxed{42}\u2028", "answer": "42"}                      | true  |
""")


def test_every_line_gets_its_verdict_in_order_whatever_it_holds(grade: Grade) -> None:
    status, reports, errors = grade(("\ufeff" + "\r\n".join(line for line, *_ in READ)).encode())
    assert (status, errors) == (0, [])
    for line, (_, verdict, reason) in zip(reports, READ, strict=True):
        assert (json.dumps(line["verdict"]), line["reason"] or "") == (verdict, reason)
        assert list(line) == ["verdict", "reason", "path", "ms"]
        assert line["ms"] >= 0


UNREADABLE = {
    b'{"response": "\xff", "answer": "1"}': "not JSON: ",
    b"{oops": "not JSON: ",
    b"  ": "not JSON: ",
    b'["response"]': "no JSON object",
    b'{"response": "x"}': "answer: ",
    b'{"response": "x", "answer": 1}': "answer: ",
    b'{"response": "", "answer": "1", "problem": []}': "problem: ",
    b"[" * 100_000: "not JSON: ",
    b"9" * 5000: "not JSON: ",
    RIGHT.encode() + b" " * MAX_LINE_BYTES: "longer than 64 MiB",
}


def test_a_line_that_cannot_be_read_has_its_place_and_a_message(grade: Grade) -> None:
    good = RIGHT.encode()
    status, reports, errors = grade(b"\n".join(b"%s\n%s" % (good, bad) for bad in UNREADABLE))
    assert status == 2
    verdicts = [(line["verdict"], line["reason"]) for line in reports]
    assert verdicts == [(True, None), (None, "unreadable_line")] * len(UNREADABLE)
    for number, (error, problem) in enumerate(zip(errors, UNREADABLE.values(), strict=True), 1):
        assert error.startswith(f"weir grade: line {2 * number}: {problem}")


def start(file: str | Path, stdout: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "services.grader.offline", str(file)],
        env=os.environ | {"PYTHONPATH": python_path({})},
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=_heed_ctrl_c,
    )


def _heed_ctrl_c() -> None:
    """A shell that runs the tests in the background has its children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@table("""
    waits_for  | status
    input      | 130
    its reader | 141
""")
def test_interrupted_or_with_nobody_to_read_its_output_it_ends_with_all_its_processes(
    waits_for: str, status: int, tmp_path: Path
) -> None:
    path = tmp_path / "many.jsonl"
    # The verdicts are more than a pipe holds.
    path.write_text(f"{RIGHT}\n" * 20_000)
    command = start("-" if waits_for == "input" else path)
    assert command.stdout is not None
    assert command.stderr is not None
    if waits_for == "input":
        asyncio.run(until(lambda: len(list_descendants(command.pid)) > 1))
    else:
        assert json.loads(command.stdout.readline())["verdict"] is True
    family = list_descendants(command.pid)
    if status == 130:
        command.send_signal(signal.SIGINT)
    else:
        command.stdout.close()
    assert command.wait(60) == status
    asyncio.run(wait_until_gone(family))
    assert command.stderr.read() == b""


SET = ROOT / "examples/calibration/solutions.jsonl"


@pytest.fixture(scope="session")
def solutions() -> list[Labelled]:
    with SET.open("rb") as file:
        return read_labelled(file)


@pytest.mark.anyio
async def test_math_answer_agrees_with_every_label_and_equation_steps_with_some(
    solutions: list[Labelled], tools: Tools
) -> None:
    (outcome, outcome_label), (process, process_label), _ = CALIBRATED
    cases = await score_cases(outcome, outcome_label, solutions, tools)
    pairs = zip(solutions, cases, strict=True)
    assert [solution.id for solution, case in pairs if case.score != case.label] == []
    cases = await score_cases(process, process_label, solutions, tools)
    whole = agreement(cases)
    assert (whole["graded"] or 0) > 0.75 * len(solutions)
    assert (whole["kappa"] or 0) > 0.35
    assert agreement([case for case in cases if case.kind == "empty"])["same_level"] == 1


LABELLED = (
    r'{"id": "one", "problem": "1 + 1 = ?", "solution": "1 + 1 = 2", "answer": "2",'
    r' "response": "1 + 1 = 2, so \\boxed{2}", "kind": "right", "outcome": true, "process": 1}'
)


def test_without_a_judge_the_others_are_reported(calibrate: Calibrate) -> None:
    status, reports, errors = calibrate(LABELLED.replace("{", '{"more": 1, ', 1) + "\n\n")
    assert status == 0
    (error,) = errors
    assert "WEIR_JUDGE_URL" in error
    labels = [(name, report["label"]) for name, report in reports.items()]
    assert labels == [("math_answer", "outcome"), ("equation_steps", "process")]
    assert reports["math_answer"]["all"]["same_level"] == 1


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (LABELLED.replace("true", '"yes"'), "line 1: outcome: "),
        (LABELLED.replace('"process": 1', '"process": 2'), "line 1: process: "),
        (f"{LABELLED}\n{{", "line 2: not JSON"),
        ("", "line 1: "),
    ],
)
def test_a_file_that_is_not_labelled_is_refused_with_its_lines(
    lines: str, problem: str, calibrate: Calibrate
) -> None:
    status, reports, errors = calibrate(lines)
    assert (status, reports) == (2, {})
    assert errors[0].startswith(f"weir grade: {problem}")


@pytest.fixture
def judge(
    server: ScriptedServer, calibrate: Calibrate, monkeypatch: pytest.MonkeyPatch
) -> ScriptedServer:
    """The judge that calibrating asks; of a thread of its own, as the judge lives in this one."""
    monkeypatch.setenv("WEIR_JUDGE_URL", server.url)
    monkeypatch.setenv("WEIR_JUDGE_MODEL", MODEL)
    return server


FILLER = LABELLED.replace("right", "filler").replace('"process": 1', '"process": 0')
TWO = f"{LABELLED}\n{FILLER.replace('one', 'two')}\n"


@pytest.mark.anyio
@pytest.mark.usefixtures("judge")
async def test_a_judge_is_measured_like_the_others(calibrate: Calibrate) -> None:
    status, reports, errors = await asyncio.to_thread(calibrate, TWO)
    assert (status, errors) == (0, [])
    judged = reports["model_judge"]
    assert (judged["label"], judged["all"]["n"], judged["all"]["same_level"]) == ("process", 2, 0.5)
    assert judged["confusion"] == {"1": {"1": 1}, "0": {"1": 1}}


Pairs = list[tuple[float, float | None]]  # labels and scores


def cases(pairs: Pairs, kind: str = "k") -> list[Case]:
    return [
        Case(kind, label == 1, label, score, None if score is not None else "no_verdict")
        for label, score in pairs
    ]


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


def test_a_summary_counts_by_kind_and_label() -> None:
    right = cases([(1, 1), (0, 1), (0, 0), (0.5, 0.75)], kind="right")
    summary = summarize(right + cases([(1, None)], kind="empty"))
    assert summary["all"] == {"n": 5, "graded": 4, "same_level": 0.5, "kappa": 0.3333}
    assert summary["ungradable"] == {"no_verdict": 1}
    assert summary["confusion"] == {
        "1": {"1": 1, "ungradable": 1},
        "0": {"1": 1, "0": 1},
        "0.5": {"1": 1},
    }
    assert summary["right_outcome"]["n"] == 2
    assert summary["kinds"]["right"]["same_level"] == 0.5
    assert summary["kinds"]["empty"]["same_level"] is None


@pytest.mark.anyio
async def test_a_judge_that_goes_down_ends_it_with_the_reason(
    judge: ScriptedServer, calibrate: Calibrate
) -> None:
    async def go_away(*_: object) -> None:
        await judge.go_away()

    judge.script = [go_away]
    status, reports, errors = await asyncio.to_thread(calibrate, TWO)
    assert (status, list(reports)) == (2, ["math_answer", "equation_steps"])
    (error,) = errors
    assert "cannot be reached" in error
    assert "WEIR_JUDGE_URL" in error


@pytest.mark.parametrize(
    ("name", "problem"), [("absent.jsonl", "No such file"), ("", "Is a directory")]
)
def test_a_path_without_a_file_is_named(
    name: str, problem: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(tmp_path / name)]) == 2
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"weir grade: {tmp_path}")
    assert problem in output.err
