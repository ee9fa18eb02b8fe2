"""``weir grade FILE``: one verdict per line, in order, whatever the lines are.

What needs a pool is computed in this process.
"""

from __future__ import annotations

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

from services.grader.offline import __main__ as command
from services.grader.offline.__main__ import MAX_LINE_BYTES
from tests.architecture.project import ROOT
from tests.unit.grader.judge_server import until
from tests.unit.grader.pools import InlinePool, family_of, until_gone

Grade = Callable[[bytes], tuple[int, list[dict[str, Any]], list[str]]]


def a_line(response: str = r"So it is \boxed{42}.", answer: str = "42", **others: Any) -> str:
    return json.dumps({"response": response, "answer": answer, **others})


@pytest.fixture
def grade(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Grade:
    """Grades lines: the exit status, the lines of standard output, those of standard error."""
    monkeypatch.setenv("WEIR_GRADER_WORKERS", "2")
    monkeypatch.setattr(command, "Pool", InlinePool)

    def graded(lines: bytes) -> tuple[int, list[dict[str, Any]], list[str]]:
        path = tmp_path / "responses.jsonl"
        path.write_bytes(lines)
        status = command.main([str(path)])
        said = capfd.readouterr()
        return status, [json.loads(line) for line in said.out.splitlines()], said.err.splitlines()

    return graded


READ = [
    (a_line(), True, None),
    (a_line(r"\boxed{41}", id=7, kind="other keys are left alone"), False, "wrong"),
    (a_line(r"\boxed{2k+2}", "2(k+1)"), True, None),
    (a_line("no answer at all"), False, "no_answer"),
    (a_line(r"\boxed{x+1}", r"\foo{"), None, "gold_not_parsable"),
    (a_line(r"\boxed{42\%}", problem="By what percent does it grow?"), True, None),
    (a_line(r"\boxed{42\%}"), False, "wrong"),
    (r'{"response": "\ud800 \\boxed{42}", "answer": "42"}', True, None),
    (r'{"response": "\\boxed{\udfff}", "answer": "42"}', False, "not_parsable"),
    (r'{"response": "\\boxed{42}", "answer": "\ud800"}', None, "gold_not_parsable"),
    (r'{"response": "\\boxed{42}\u2028", "answer": "42"}', True, None),
]


def test_every_line_gets_its_verdict_in_order_whatever_it_holds(grade: Grade) -> None:
    status, found, errors = grade(("\ufeff" + "\r\n".join(line for line, *_ in READ)).encode())
    assert (status, errors) == (0, [])
    assert [[line["verdict"], line["reason"]] for line in found] == [said for _, *said in READ]
    assert all(list(line) == ["verdict", "reason", "path", "ms"] for line in found)
    assert all(isinstance(line["path"], str) and line["ms"] >= 0 for line in found)


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
    a_line("x" * MAX_LINE_BYTES).encode(): "longer than 64 MiB",
}


def test_a_line_that_cannot_be_read_has_its_place_and_a_message(grade: Grade) -> None:
    good = a_line().encode()
    status, found, errors = grade(b"\n".join(b"%s\n%s" % (good, bad) for bad in UNREADABLE))
    assert status == 2
    given = [(line["verdict"], line["reason"]) for line in found]
    assert given == [(True, None), (None, "unreadable_line")] * len(UNREADABLE)
    for number, (error, problem) in enumerate(zip(errors, UNREADABLE.values(), strict=True), 1):
        assert error.startswith(f"weir grade: line {2 * number}: {problem}")


@pytest.mark.parametrize(
    ("name", "problem"), [("absent.jsonl", "No such file"), ("", "Is a directory")]
)
def test_what_is_no_file_is_named(
    name: str, problem: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(tmp_path / name)]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"weir grade: {tmp_path}")
    assert problem in said.err


def start(file: str | Path, stdout: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "services.grader.offline", str(file)],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'proto'}{os.pathsep}{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=_heed_ctrl_c,
    )


def _heed_ctrl_c() -> None:
    """A shell that runs the tests in the background has its children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("waits_for", "status"), [("input", 130), ("its reader", 141)])
def test_interrupted_or_with_nobody_to_read_its_output_it_ends_with_all_its_processes(
    waits_for: str, status: int, tmp_path: Path
) -> None:
    path = tmp_path / "many.jsonl"
    path.write_bytes(
        (a_line().encode() + b"\n") * 20_000
    )  # whose verdicts are more than a pipe holds
    command = start("-" if waits_for == "input" else path)
    assert command.stdout is not None
    assert command.stderr is not None
    if waits_for == "input":
        asyncio.run(until(lambda: len(family_of(command.pid)) > 1))  # a worker is there
    else:
        assert json.loads(command.stdout.readline())["verdict"] is True
    family = family_of(command.pid)
    if status == 130:
        command.send_signal(signal.SIGINT)
    else:
        command.stdout.close()
    assert command.wait(60) == status
    asyncio.run(until_gone(family))
    assert command.stderr.read() == b""
