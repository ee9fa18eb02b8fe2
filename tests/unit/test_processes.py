"""However the tests are ended, what they started ends with them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = """
import subprocess, sys, time
from tests import processes
processes.end_with_me()
titled = "import setproctitle, time; setproctitle.setproctitle('sleep'); time.sleep(300)"
print(subprocess.Popen([sys.executable, "-c", titled], start_new_session=True).pid, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_tests_started_ends_with_them(end: signal.Signals) -> None:
    tests = subprocess.Popen([sys.executable, "-c", TESTS], stdout=subprocess.PIPE, text=True)
    assert tests.stdout is not None
    started = int(tests.stdout.readline())
    deadline = time.monotonic() + 60
    while _command(started).strip("\0 ") != "sleep":  # until it has its title
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(tests.pid, end)
    tests.wait()
    while _command(started):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except FileNotFoundError:
        return ""
