"""Processes of this machine, each with all that it starts, and the folder that a stack lives in."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import random
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from glob import iglob
from pathlib import Path
from typing import Any

from deploy.launches import Launch, inherited_variables
from services.chassis.deployment import read_variable

STOP_TIMEOUT_S = 20.0
_MEMORY = "/dev/shm"
_SLOW_DISK = 25 * 10**6  # bytes per second
_LOOK_S = 0.1
_SERVICE_PORTS = range(20_000, 32_768)
_FIRST_RESTART_PAUSE_S = 0.5
_LONGEST_RESTART_PAUSE_S = 10.0
_SHORT_S = 1.0  # a process that ends well sooner has nothing to do, and waits before it looks again
_STEADY_S = 20.0  # a process that lived this long may restart soon
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
    standard_input: bytes = field(default=b"", repr=False)
    held: tuple[int, ...] = ()
    secret_files: dict[str, int] = field(default_factory=dict)  # descriptors, by the variable
    running: subprocess.Popen[bytes] | None = None
    has_started: bool = False  # since it was last begun
    failures: int = 0  # in a row, each before it had started
    started_at: float = 0.0
    restart_at: float = 0.0
    restart_pause_s: float = _FIRST_RESTART_PAUSE_S

    @property
    def name(self) -> str:
        return self.launch.name

    @property
    def has_ended(self) -> bool:
        """Whether it ran, and has come to an end by itself."""
        return self.running is not None and self.running.poll() is not None

    def variables(self) -> dict[str, str]:
        """Return its environment. A secret is in a file, which a variable ``NAME_FILE`` names.

        The file is in memory, and ends with this process, however that ends. Other users cannot
        open it; everything that the process itself starts can, as the ranks of a learner do.
        """
        for name in self.launch.secrets.keys() - self.secret_files.keys():
            self.secret_files[name] = _write_in_memory(name, self.launch.secrets[name])
        files = {f"{n}_FILE": f"/proc/{os.getpid()}/fd/{d}" for n, d in self.secret_files.items()}
        return environment_for({**self.launch.environment_at(self.port), **files})

    def close(self) -> None:
        """Close the files of its secrets, once it has ended for good."""
        while self.secret_files:
            os.close(self.secret_files.popitem()[1])

    def start(self) -> None:
        """Start it, in a process group of its own; if that cannot be done, `revive` tries again."""
        self.has_started = False
        try:
            with self.log_path.open("ab") if self.log_path else nullcontext() as log:
                self.running = subprocess.Popen(
                    self.launch.command_at(self.port),
                    env=self.variables(),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT if log else None,
                    process_group=0,
                    pass_fds=self.held,
                    preexec_fn=partial(_before_its_program, self.launch.niceness),
                )
        except (OSError, subprocess.SubprocessError) as error:  # no more processes, a full disk
            self._pause(is_steady=False)
            say(f"{self.name} cannot be started now: {error}")
            return
        self.started_at = time.monotonic()
        assert self.running.stdin is not None
        with suppress(BrokenPipeError), self.running.stdin as pipe:  # it may have ended again
            pipe.write(self.standard_input)

    def revive(self) -> None:
        """If it has ended, clear away its process group, and start it again after a pause."""
        if self.running is not None and (status := self.running.poll()) is not None:
            _kill_group(self.running)
            how = f"ended with status {status}; starting it again" if status else "starts again"
            log = f"; see {self.log_path}" if status and self.log_path else ""
            say(f"{self.name} {how}{log}")
            self.failures += 0 if self.has_started or status == 0 else 1
            lived_s = time.monotonic() - self.started_at
            self._pause(is_steady=lived_s > (_STEADY_S if status else _SHORT_S))
            self.running = None
        if self.running is None and time.monotonic() >= self.restart_at:
            self.start()

    def look(self) -> bool:
        """Ask whether it has started, unless it is known to; a process that has says so itself."""
        if not self.has_started and self.running is not None:
            self.has_started = self._says_so() and not self.has_ended
        if self.has_started:
            self.failures = 0
        return self.has_started

    def _pause(self, *, is_steady: bool) -> None:
        longer = min(_LONGEST_RESTART_PAUSE_S, 2 * self.restart_pause_s)
        self.restart_pause_s = _FIRST_RESTART_PAUSE_S if is_steady else longer
        self.restart_at = time.monotonic() + self.restart_pause_s

    def _says_so(self) -> bool:
        path = self.launch.startup_path
        try:
            if path is None:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return True
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2):
                return True
        except OSError:
            return False


def stop(processes: Iterable[Process], patience_s: Callable[[], float]) -> None:
    """Send SIGTERM to processes; kill what is left of their groups after ``patience_s``.

    How long that may take is asked for again while it does.
    """
    stopping = list(processes)
    leaving = [(process, process.running) for process in stopping if process.running]
    for _, running in leaving:
        running.terminate()
    began = time.monotonic()
    while not all(process.has_ended for process, _ in leaving):
        if time.monotonic() - began > patience_s():
            break
        time.sleep(_LOOK_S)
    for process, running in leaving:
        if not process.has_ended:
            say(f"{process.name} did not leave in time; killing it")
        _kill_group(running)
        running.wait()
        process.running = None
    for process in stopping:
        process.close()


def _kill_group(leader: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)


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
    return (port for port in candidates if is_free(port))


def is_free(port: int) -> bool:
    """Whether a server could listen on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
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
    inherited = inherited_variables(os.environ).items()
    return {**{k: v for k, v in inherited if k.removesuffix("_FILE") not in own}, **own}


def _write_in_memory(name: str, text: str) -> int:
    """Return the descriptor of a file without a place on a disk, which only this user may read."""
    descriptor = os.memfd_create(name)
    os.fchmod(descriptor, 0o400)
    os.write(descriptor, text.encode())
    return descriptor


def _before_its_program(niceness: int) -> None:
    """Runs in the child: if the supervisor is killed, it is told to leave."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.nice(niceness)


class Home:
    """One stack's folder, WEIR_HOME, where the ``weir`` command finds it.

    Every process that a stack's supervisor starts holds the same lock on it, by inheritance, so a
    stack is gone when the lock is free, however its processes ended. The supervisor alone has the
    file ``supervisor`` open.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path.resolve()
        self._clock = clock
        self._lock, self._mark = self.path / "lock", self.path / "supervisor"
        self.lock = -1  # its file descriptor, while this process holds it
        self._marking = -1

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Home:
        """The folder that WEIR_HOME names."""
        return cls(Path(environment.get("WEIR_HOME", ".weir")))

    def take(self) -> None:
        """Become the only stack here, once the processes of one that was killed have left.

        Raises:
            StackError: if a stack runs here.
        """
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        began = self._clock()
        while not self._try_to_lock():
            for process_id in _holders(self._mark):
                raise StackError(
                    f"a stack runs here already (process {process_id}); stop it with `weir down`, "
                    "or set WEIR_HOME to another folder"
                )
            self._wait(began, stop_timeout_s(self.path / "data"))
        self.forget()  # what a killed stack has left
        self._marking = os.open(self._mark, os.O_RDWR | os.O_CREAT, 0o600)

    def vacate(self) -> bool:
        """Tell the stack that runs here to stop, and wait until all of it has; False if none."""
        if not self._lock.exists() or self._try_to_lock():
            return False
        told = set[int]()
        began = self._clock()
        while not self._try_to_lock():
            for process_id in {*_holders(self._mark)} - told:
                told.add(process_id)
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(process_id, signal.SIGTERM)
            # The services leave, then their server.
            self._wait(began, stop_timeout_s(self.path / "data") + 2 * STOP_TIMEOUT_S)
        return True

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Write stack.json, by which the ``weir`` command finds the gateway."""
        path = self.path / "stack.json"
        _write(path, json.dumps({**facts, "pid": os.getpid()}, indent=1))
        say(f"Weir is up at {facts['url']} (key in {path}); logs in {self.path / 'logs'}")

    def forget(self) -> None:
        (self.path / "stack.json").unlink(missing_ok=True)

    def api_keys(self, environment: Mapping[str, str]) -> tuple[str, str]:
        """The gateway's keys, and the one of them that the ``weir`` command uses here.

        The keys are WEIR_API_KEYS, or the file of WEIR_API_KEYS_FILE. Where none of them is there
        in plain text, one that is made once is added.

        Raises:
            DeploymentError: if that file cannot be read.
        """
        keys = read_variable(environment, "WEIR_API_KEYS") or ""
        for key in map(str.strip, re.split("[,\n]", keys)):
            if key and ":" not in key:  # which a hash has
                return keys, key
        path = self.path / "api_key"
        if not path.exists():
            _write(path, f"weir-{secrets.token_urlsafe(24)}")
        own = path.read_text(encoding="utf-8")
        return f"{keys},{own}" if keys else own, own

    def memory(self, environment: Mapping[str, str]) -> Path:
        """This stack's own folder below WEIR_MEMORY_DIR; with no memory to write to, a disk's."""
        root = environment.get("WEIR_MEMORY_DIR") or (
            _MEMORY if os.access(_MEMORY, os.W_OK) else ""
        )
        name = hashlib.sha256(str(self.path).encode()).hexdigest()[:16]
        return Path(root) / f"weir-{name}" if root else self.path / "data" / "weights"

    def _try_to_lock(self) -> bool:
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self.lock = descriptor
        return True

    def _wait(self, began: float, patience_s: float) -> None:
        """Look again soon; after ``patience_s`` kill whatever still holds the lock.

        Without their Redis, services wait two minutes for it before they leave.
        """
        for process_id in _holders(self._lock) if self._clock() - began > patience_s else ():
            say(f"killing process {process_id}, which holds {self._lock}")
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _write(path: Path, text: str) -> None:
    """Write a file that nobody else may read, whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.touch(mode=0o600)
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _holders(file: Path) -> Iterator[int]:
    """The processes that have a file open, but for other people's."""
    for link in iglob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):  # it has just been closed
            if os.readlink(link) == str(file):
                yield int(link.split("/")[2])
