"""``weir grade`` as a process: pipes that open and close, Ctrl-C, memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.unit.grader.judge_server import until
from tests.unit.grader.processes import family_of, until_gone

ROOT = Path(__file__).parents[4]


def a_line(response: str = r"So it is \boxed{42}.", answer: str = "42") -> bytes:
    return json.dumps({"response": response, "answer": answer}).encode() + b"\n"


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
    path.write_bytes(a_line() * 20_000)  # whose verdicts are more than a pipe holds
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
