"""``weir grade`` as a process: pipes that open and close, Ctrl-C, memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]


def a_line(response: str = r"So it is \boxed{42}.", answer: str = "42") -> str:
    return json.dumps({"response": response, "answer": answer})


def start(*arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'proto'}{os.pathsep}{ROOT}"}
    return subprocess.Popen(
        [sys.executable, "-m", "services.grader.offline", *arguments],
        env=environment,
        stdin=streams.get("stdin", subprocess.PIPE),
        stdout=streams.get("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        preexec_fn=_heed_ctrl_c,
    )


def _heed_ctrl_c() -> None:
    """A shell that runs the tests in the background has its children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def family_of(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = {int(child) for task in tasks for child in task.read_text().split()}
    return children.union(*(family_of(child) for child in children))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in {"Z", "X"}


def assert_gone(pids: set[int]) -> None:
    assert pids, "it started processes"
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, "some process outlived the command"
        time.sleep(0.05)


def test_standard_input_may_come_slowly() -> None:
    command = start("-")
    assert command.stdin is not None
    assert command.stdout is not None
    for number in range(3):
        line = a_line(rf"\boxed{{{number}}}", "1")
        command.stdin.write(f"{line}\n".encode())
        command.stdin.flush()
        time.sleep(0.2)
    command.stdin.close()
    found = [json.loads(line)["verdict"] for line in command.stdout]
    assert found == [False, True, False]
    assert command.wait(20) == 0
    command.stdout.close()


def test_ctrl_c_ends_it_while_it_waits_for_input() -> None:
    command = start("-")
    deadline = time.monotonic() + 20
    while not family_of(command.pid):
        assert time.monotonic() < deadline, "it starts no workers"
        time.sleep(0.05)
    time.sleep(1)
    assert_ends(command, 130)


def test_ctrl_c_ends_it_while_nobody_reads_its_output(tmp_path: Path) -> None:
    command = start_with_much_to_say(tmp_path)
    time.sleep(1)  # for the pipe to be full
    assert_ends(command, 130)


def test_it_ends_when_its_reader_goes_away(tmp_path: Path) -> None:
    command = start_with_much_to_say(tmp_path)
    assert_ends(command, 141)


def start_with_much_to_say(folder: Path) -> subprocess.Popen[bytes]:
    """A command that has begun to write, and has more to write than a pipe holds."""
    path = folder / "many.jsonl"
    path.write_text(f"{a_line()}\n" * 20_000)
    command = start(str(path))
    assert command.stdout is not None
    assert json.loads(command.stdout.readline())["verdict"] is True
    return command


def assert_ends(command: subprocess.Popen[bytes], status: int) -> None:
    """Interrupted (130), or with nobody to read its output (141), it ends with all processes."""
    family = family_of(command.pid)
    assert command.stdout is not None
    assert command.stderr is not None
    if status == 130:
        command.send_signal(signal.SIGINT)
    else:
        command.stdout.close()
    assert command.wait(20) == status
    assert_gone(family)
    assert command.stderr.read() == b""


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(a_line())
    with open("/dev/full", "wb") as full:
        command = start(str(path), stdout=full)
        _, errors = command.communicate(timeout=30)
    assert command.returncode == 2
    assert errors == b"weir grade: standard output: No space left on device\n"


def test_memory_does_not_grow_with_the_file() -> None:
    command = start("-", stdout=subprocess.DEVNULL)
    assert command.stdin is not None
    line = f"{a_line('x' * 900_000)}\n".encode()
    peaks = []
    for _ in range(2):
        for _ in range(150):
            command.stdin.write(line)
        command.stdin.flush()
        peaks.append(peak_bytes(command.pid))
    command.stdin.close()
    assert command.wait(60) == 0
    assert peaks[1] - peaks[0] < 60 << 20  # of 135 MB that came between


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (peak,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(peak.split()[1]) << 10
