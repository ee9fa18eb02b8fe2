"""``weir grade`` as a process: pipes that open and close, Ctrl-C, memory."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from services.grader.offline import __main__ as command_line
from tests.unit.grader.judge_server import until
from tests.unit.grader.pools import InlinePool
from tests.unit.grader.processes import family_of, until_gone

pytestmark = pytest.mark.slow

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


def write(command: subprocess.Popen[bytes], lines: bytes) -> None:
    assert command.stdin is not None
    command.stdin.write(lines)
    command.stdin.flush()


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


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(a_line())
    monkeypatch.setattr(command_line, "Pool", InlinePool)
    monkeypatch.setattr(sys, "stdout", FullDisk())
    assert command_line.main([str(path)]) == 2
    assert capsys.readouterr().err == "weir grade: standard output: No space left on device\n"


def test_standard_input_may_come_slowly_and_memory_does_not_grow_with_it(tmp_path: Path) -> None:
    path, peaks = tmp_path / "verdicts", []
    with path.open("wb") as file:
        command = start("-", stdout=file)
    for _ in range(2):
        for _ in range(96):
            write(command, a_line("x" * 900_000))
        peaks.append(peak_bytes(command.pid))
    for number in range(3):
        write(command, a_line(rf"\boxed{{{number}}}", "1"))
    _, errors = command.communicate(timeout=120)
    assert (command.returncode, errors) == (0, b"")
    verdicts = [json.loads(line)["verdict"] for line in path.read_text().splitlines()]
    assert verdicts[192:] == [False, True, False]
    assert peaks[1] - peaks[0] < 40 << 20  # of 86 MB that came between


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (peak,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(peak.split()[1]) << 10
