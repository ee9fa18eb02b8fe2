"""Processes of this machine, each with all that it starts: start, watch, start again, stop."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from deploy.launches import Launch

STOP_TIMEOUT_S = 20.0
_SLOW_DISK = 25 * 10**6  # bytes per second
_LOOK_S = 0.1
_SERVICE_PORTS = range(20_000, 32_768)
_FIRST_RESTART_PAUSE_S = 0.5
_LONGEST_RESTART_PAUSE_S = 10.0
_SHORT_S = 1.0  # a process that ends well sooner has nothing to do, and waits before it looks again
_STEADY_S = 20.0  # a process that lived this long may restart at once
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here: a child that was only forked must not load a library


class StackError(RuntimeError):
    """The stack cannot run; the text says why and what to do."""


@dataclass
class Process:
    """One supervised process: how to start it, and how it has fared.

    ``log_path`` is where its output goes; None: to this process's own. ``held`` are file
    descriptors that stay open as long as it, or anything that inherits them, lives.
    """

    launch: Launch
    port: int
    log_path: Path | None = None
    standard_input: bytes = b""
    held: tuple[int, ...] = ()
    running: subprocess.Popen[bytes] | None = None
    has_started: bool = False  # since it was last begun
    failures: int = 0  # in a row, each before it had started
    started_at: float = 0.0
    restart_at: float = 0.0
    restart_pause_s: float = _FIRST_RESTART_PAUSE_S

    @property
    def name(self) -> str:
        """How it is called in logs."""
        return self.launch.name

    @property
    def has_ended(self) -> bool:
        """Whether it ran, and has come to an end by itself."""
        return self.running is not None and self.running.poll() is not None

    def start(self) -> None:
        """Start it, in a session of its own; if that cannot be done now, `revive` tries again."""
        try:
            self._start()
        except (OSError, subprocess.SubprocessError) as error:  # no more processes, a full disk
            self.restart_at = time.monotonic() + self._longer_pause()
            say(f"{self.name} cannot be started now: {error}")

    def _start(self) -> None:
        self.has_started = False
        log = self.log_path.open("ab") if self.log_path else None
        try:
            self.running = subprocess.Popen(
                self.launch.command_at(self.port),
                env=environment_for(self.launch.environment_at(self.port)),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT if log else None,
                start_new_session=True,
                pass_fds=self.held,
                preexec_fn=_die_with_supervisor,
            )
        finally:
            if log:
                log.close()
        self.started_at = time.monotonic()
        _make_nice(self.running.pid, self.launch.niceness)
        _write_and_close(self.running.stdin, self.standard_input)

    def revive(self) -> None:
        """If it has ended, clear away its process group, and start it again after a pause."""
        now = time.monotonic()
        if self.running is not None and (status := self.running.poll()) is not None:
            self._signal_group(signal.SIGKILL)
            say(f"{self.name} ended with status {status}; starting it again")
            self.failures += 0 if self.has_started or status == 0 else 1
            lived_s = now - self.started_at
            steady = lived_s > (_STEADY_S if status else _SHORT_S)
            self.restart_pause_s = _FIRST_RESTART_PAUSE_S if steady else self._longer_pause()
            self.restart_at = now + (0.0 if steady and status == 0 else self.restart_pause_s)
            self.running = None
        if self.running is None and now >= self.restart_at:
            self.start()

    def look(self) -> bool:
        """Ask whether it has started, unless it is known to; a process that has says so itself."""
        if not self.has_started and self.running is not None:
            self.has_started = self._says_so() and not self.has_ended
        if self.has_started:
            self.failures = 0
        return self.has_started

    def ask_to_leave(self) -> None:
        """Send SIGTERM."""
        if self.running is not None:
            self.running.terminate()

    def stop(self, timeout_s: float) -> None:
        """Ask it to leave; kill what is left of its process group after ``timeout_s``."""
        if self.running is None:
            return
        self.ask_to_leave()
        try:
            self.running.wait(timeout_s)
        except subprocess.TimeoutExpired:
            say(f"{self.name} did not leave in time; killing it")
        self._signal_group(signal.SIGKILL)
        self.running.wait()
        self.running = None

    def _signal_group(self, signum: signal.Signals) -> None:
        if self.running is not None:
            try:
                os.killpg(self.running.pid, signum)
            except ProcessLookupError:
                return

    def _says_so(self) -> bool:
        path = self.launch.startup_path
        try:
            if path is None:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return True
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _longer_pause(self) -> float:
        return min(_LONGEST_RESTART_PAUSE_S, 2 * self.restart_pause_s)


def stop_all(processes: Iterable[Process], patience_s: Callable[[], float]) -> None:
    """Stop processes side by side; how long that may take is asked for again while it does."""
    leaving = [process for process in processes if process.running is not None]
    for process in leaving:
        process.ask_to_leave()
    began = time.monotonic()
    while not all(process.has_ended for process in leaving):
        if time.monotonic() - began > patience_s():
            break
        time.sleep(_LOOK_S)
    for process in leaving:
        process.stop(_LOOK_S)


def stop_timeout_s(data: Path) -> float:
    """How long a learner may take to leave, by the checkpoints in a data folder.

    As long as a slow disk takes for the largest; one that is being written counts with what is
    there, so that none is cut off while it grows.
    """
    sizes = map(size_of, data.glob("jobs/*/checkpoints/*"))
    return STOP_TIMEOUT_S + max(sizes, default=0) / _SLOW_DISK


def size_of(folder: Path) -> int:
    """The bytes of all files below a folder that others change meanwhile."""
    size = 0
    for path, _, names in os.walk(folder):  # which passes over a folder that has just gone
        for name in names:
            with suppress(OSError):
                size += os.stat(os.path.join(path, name)).st_size
    return size


def free_ports() -> Iterator[int]:
    """Ports of this machine that nobody uses, none of them twice.

    They are below those that the kernel gives to outgoing connections, so that a process finds its
    port free when it is started again.
    """
    candidates = list(_SERVICE_PORTS)
    random.shuffle(candidates)
    return (port for port in candidates if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def say(text: str) -> None:
    """Tell the person who started the stack."""
    print(f"weir: {text}", file=sys.stderr, flush=True)


def environment_for(own: Mapping[str, str]) -> dict[str, str]:
    """What is inherited, and what is its own; a file that would say the same is left out."""
    inherited = {k: v for k, v in os.environ.items() if k.removesuffix("_FILE") not in own}
    return {**inherited, **own}


def _write_and_close(pipe: IO[bytes] | None, content: bytes) -> None:
    assert pipe is not None
    with suppress(BrokenPipeError), pipe:  # it has ended, and will be started again
        pipe.write(content)


def _make_nice(process_id: int, niceness: int) -> None:
    """Give a session leader a niceness, and its session: many kernels share processors by session.

    A system that knows no such thing is left as it is.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process_id, niceness)
        session = Path(f"/proc/{process_id}/autogroup")
        for _ in range(5):
            try:
                session.write_text(str(niceness))
                return
            except BlockingIOError:  # the kernel takes one change per 0.1 s from who is not root
                time.sleep(0.1)


def _die_with_supervisor() -> None:
    """Runs in the child before its program: if the supervisor is killed, it is told to leave."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
