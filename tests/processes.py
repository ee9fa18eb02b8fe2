"""What tests start ends with them, however they end: after Ctrl-C, SIGTERM and kill -9, too.

A reaper, a process in a session of its own, waits until the tests are gone. Then it kills every
process that was started under their mark, a variable of the environment. It does not see children
that were forked without a new program, confined code and containers: those end by other means.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

MARK = "STARTED_BY_TESTS"
_GRACE_S = 45  # after an interrupt, for fixtures to stop their processes in good order
_LOOK_EVERY_S = 0.2


def end_with_me() -> None:
    """Start the reaper, and let SIGTERM end the tests as Ctrl-C does."""
    tests = str(os.getpid())
    mark = f"{os.environ.get(MARK, '')}/{tests}"
    reaper = subprocess.Popen(
        [sys.executable, __file__, mark, tests], stdout=subprocess.PIPE, start_new_session=True
    )
    assert reaper.stdout is not None
    reaper.stdout.readline()  # it is ready for its signals
    os.environ[MARK] = mark  # from here on, for whatever is started
    os.environ["SPT_NOENV"] = "1"  # setproctitle, as vLLM uses it, leaves the environment readable
    os.environ["WEIR_INHERIT"] = f"{MARK},SPT_NOENV"

    def interrupt(signum: int, frame: FrameType | None) -> None:
        reaper.terminate()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)


def reap(mark: str, tests: int) -> None:
    """Wait for the end of ``tests``, then kill what has ``mark``. SIGTERM bounds the wait."""
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_GRACE_S))
    signal.signal(signal.SIGALRM, lambda *_: os.kill(tests, signal.SIGKILL))
    print(flush=True)
    while os.getppid() == tests:
        time.sleep(_LOOK_EVERY_S)
    signal.alarm(0)
    kill_marked(mark)


def kill_marked(mark: str) -> None:
    while marked := [process for process in processes() if _is_marked(process, mark)]:
        for process in marked:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_LOOK_EVERY_S)


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _is_marked(process: int, mark: str) -> bool:
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    variable = f"{MARK}={mark}".encode()
    return any(entry == variable or entry.startswith(variable + b"/") for entry in environment)


if __name__ == "__main__":
    reap(sys.argv[1], int(sys.argv[2]))
