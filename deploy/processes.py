"""Supervised processes of this machine with their process groups, and the folder of a stack."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_SLOW_DISK_BYTES_PER_S = 25 * 10**6
_POLL_S = 0.1
_SERVICE_PORTS = range(20_000, 32_768)
_FIRST_PORT = 8000
_MIN_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 10.0
# The backoff starts again after a process ran this long, or this long and ended with status 0.
_STEADY_S = 20.0
_STEADY_IF_DONE_S = 1.0
_PR_SET_PDEATHSIG = 1
# Loaded early, since a forked child must not load a library.
_LIBC = ctypes.CDLL(None)


class StackError(RuntimeError):
    """The stack cannot run; the text says why and what to do."""


@dataclass
class Process:
    """A supervised process.

    Args:
        log_path: the file of its output; None for this process's output.
        inherited_files: descriptors that stay open in it and its children.
        secret_files: descriptors by variable.
        has_started: whether it has started since its last `start`.
        num_failures: how often in a row it ended before it had started.
    """

    launch: Launch
    port: int
    log_path: Path | None = None
    standard_input: bytes = field(default=b"", repr=False)
    inherited_files: tuple[int, ...] = ()
    secret_files: dict[str, int] = field(default_factory=dict)
    running: subprocess.Popen[bytes] | None = None
    has_started: bool = False
    num_failures: int = 0
    started_at: float = 0.0
    restart_at: float = 0.0
    backoff_s: float = _MIN_BACKOFF_S

    @property
    def name(self) -> str:
        return self.launch.name

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self.running is not None and self.running.poll() is not None

    def variables(self) -> dict[str, str]:
        """Return its environment; the variable ``NAME_FILE`` names the file of a secret.

        The file is in memory and vanishes with this process. Other users cannot open it; children
        of the process can, such as the ranks of a learner.
        """
        for name in self.launch.secrets.keys() - self.secret_files.keys():
            self.secret_files[name] = _write_in_memory(name, self.launch.secrets[name])
        variables = self.launch.variables(self.port)
        for name, descriptor in self.secret_files.items():
            variables[f"{name}_FILE"] = f"/proc/{os.getpid()}/fd/{descriptor}"
        return add_inherited(variables)

    def close(self) -> None:
        """Close the files of its secrets, when it will not start again."""
        while self.secret_files:
            os.close(self.secret_files.popitem()[1])

    def start(self) -> None:
        """Start it in its own process group; if that fails, `restart_if_ended` tries again."""
        self.has_started = False
        try:
            with self.log_path.open("ab") if self.log_path else nullcontext() as log:
                self.running = subprocess.Popen(
                    self.launch.command_line(self.port),
                    env=self.variables(),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT if log else None,
                    process_group=0,
                    pass_fds=self.inherited_files,
                    preexec_fn=partial(_prepare_child, self.launch.niceness),
                )
        except (OSError, subprocess.SubprocessError) as error:
            # There may be too many processes, or a full disk.
            self._back_off(is_steady=False)
            say(f"{self.name} cannot be started now: {error}")
            return
        self.started_at = time.monotonic()
        assert self.running.stdin is not None
        # The process may have ended already.
        with suppress(BrokenPipeError), self.running.stdin as pipe:
            pipe.write(self.standard_input)

    def restart_if_ended(self) -> None:
        """If it has ended, kill its process group, and start it again after a backoff."""
        if self.running is not None:
            status = self.running.poll()
            if status is not None:
                self._clear_ended(self.running, status)
        if self.running is None and time.monotonic() >= self.restart_at:
            self.start()

    def _clear_ended(self, ended: subprocess.Popen[bytes], status: int) -> None:
        _kill_group(ended)
        self.running = None
        run_s = time.monotonic() - self.started_at
        if status == 0:
            say(f"{self.name} has ended as intended, such as after a job, and starts again")
            self._back_off(is_steady=run_s > _STEADY_IF_DONE_S)
            return
        log = f"; see {self.log_path}" if self.log_path else ""
        say(f"{self.name} ended with status {status}; starting it again{log}")
        if not self.has_started:
            self.num_failures += 1
        self._back_off(is_steady=run_s > _STEADY_S)

    def check_started(self) -> bool:
        """Return whether it has started; asks the process until it has."""
        if not self.has_started and self.running is not None:
            self.has_started = self._responds() and not self.has_ended
        if self.has_started:
            self.num_failures = 0
        return self.has_started

    def _back_off(self, *, is_steady: bool) -> None:
        self.backoff_s = min(_MAX_BACKOFF_S, 2 * self.backoff_s)
        if is_steady:
            self.backoff_s = _MIN_BACKOFF_S
        self.restart_at = time.monotonic() + self.backoff_s

    def _responds(self) -> bool:
        path = self.launch.startup_path
        try:
            if path is None:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return True
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2):
                return True
        except OSError:
            return False


def stop(processes: Sequence[Process], timeout_s: Callable[[], float]) -> None:
    """Send SIGTERM to processes, and kill their groups when they have ended or time is up.

    ``timeout_s`` is called repeatedly, since the timeout may grow.
    """
    stopping = [(process, process.running) for process in processes if process.running]
    for _, running in stopping:
        running.terminate()
    start = time.monotonic()
    while not all(process.has_ended for process, _ in stopping):
        if time.monotonic() - start > timeout_s():
            break
        time.sleep(_POLL_S)
    for process, running in stopping:
        if not process.has_ended:
            say(f"{process.name} did not stop in time; killing it")
        _kill_group(running)
        running.wait()
        process.running = None
    for process in processes:
        process.close()


def _kill_group(leader: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)


def stop_timeout_s(data: Path) -> float:
    """Return how long a learner may take to stop, by the checkpoints in a data folder.

    A slow disk must be able to write the largest, which may still grow.
    """
    sizes = map(folder_size, data.glob("jobs/*/checkpoints/*"))
    return STOP_TIMEOUT_S + max(sizes, default=0) / _SLOW_DISK_BYTES_PER_S


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder that others may change meanwhile."""
    size = 0
    # `walk` skips folders that vanish.
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.stat(os.path.join(path, name)).st_size
    return size


def free_ports() -> Iterator[int]:
    """Yield unused ports of this machine, each once.

    They are below the ports of outgoing connections, so they stay free until a process restarts.
    """
    candidates = list(_SERVICE_PORTS)
    random.shuffle(candidates)
    return (port for port in candidates if is_free(port))


def is_free(port: int) -> bool:
    """Whether a server could listen on a port."""
    with socket.socket() as probe:
        # Servers set this option, too.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def say(text: str) -> None:
    """Print a message for the operator, whose terminal may be gone."""
    with suppress(OSError):
        print(f"weir: {text}", file=sys.stderr, flush=True)


def add_inherited(variables: Mapping[str, str]) -> dict[str, str]:
    """Add inherited variables; ``NAME_FILE`` only if ``NAME`` is not set."""
    inherited = inherited_variables(os.environ)
    missing = {
        name: text
        for name, text in inherited.items()
        if name.removesuffix("_FILE") not in variables
    }
    return {**missing, **variables}


def _write_in_memory(name: str, text: str) -> int:
    """Return the descriptor of a file in memory that only this user may read."""
    descriptor = os.memfd_create(name)
    os.fchmod(descriptor, 0o400)
    os.write(descriptor, text.encode())
    return descriptor


def _prepare_child(niceness: int) -> None:
    """Have the kernel send SIGTERM to this child if the supervisor is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.nice(niceness)


class Home:
    """The folder of a stack, WEIR_HOME, where the ``weir`` command finds it.

    All processes of a stack inherit its lock, so a free lock means that all have ended. Only the
    supervisor has the file ``supervisor`` open. ``lock`` is the lock's descriptor while it is held.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path.resolve()
        self.lock = -1
        self._clock = clock
        self._lock_path = self.path / "lock"
        self._supervisor_path = self.path / "supervisor"
        self._supervisor_file = -1
        self._reservation: socket.socket | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Home:
        return cls(Path(environment.get("WEIR_HOME", ".weir")))

    def acquire(self) -> None:
        """Become the only stack here, after the processes of a killed stack have ended.

        Raises:
            StackError: if a stack runs here.
        """
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        start = self._clock()
        while not self._try_to_lock():
            for process_id in _find_holders(self._supervisor_path):
                raise StackError(
                    f"a stack runs here already (process {process_id}); stop it with `weir down`, "
                    "or set WEIR_HOME to another folder"
                )
            self._wait(start, stop_timeout_s(self.path / "data"))
        self.withdraw()
        self._supervisor_file = os.open(self._supervisor_path, os.O_RDWR | os.O_CREAT, 0o600)

    def stop_stack(self) -> bool:
        """Stop the stack that runs here, and wait for its processes; False if there is none."""
        if not self._lock_path.exists():
            return False
        if self._try_to_lock():
            self.withdraw()
            return False
        notified: set[int] = set()
        start = self._clock()
        while not self._try_to_lock():
            for process_id in set(_find_holders(self._supervisor_path)) - notified:
                notified.add(process_id)
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGTERM)
            # The services stop first, then their server.
            self._wait(start, stop_timeout_s(self.path / "data") + 2 * STOP_TIMEOUT_S)
        self.withdraw()
        return True

    def publish(self, stack: Mapping[str, Any]) -> None:
        """Write stack.json, where the ``weir`` command finds the gateway."""
        _write(self.path / "stack.json", json.dumps({**stack, "pid": os.getpid()}, indent=1))

    def write_prometheus_config(self, config: Mapping[str, Any]) -> None:
        """Write prometheus.yml; YAML includes JSON."""
        _write(self.path / "prometheus.yml", json.dumps(config, indent=1))

    def choose_port(self, ports: Iterator[int]) -> int:
        """Return the gateway's port: the last one of this stack, else 8000, else a new one."""
        path = self.path / "port"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        last = int(text) if text.isdecimal() else _FIRST_PORT
        port = next(filter(self._reserve, (last, _FIRST_PORT)), 0) or next(ports)
        _write(path, str(port))
        return port

    def _reserve(self, port: int) -> bool:
        """Reserve a free port among the stacks of this machine, for as long as this object lives.

        Two stacks that start at the same time would both find it free.
        """
        reservation = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            reservation.bind(f"\0weir-port-{port}")
            if is_free(port):
                self._reservation = reservation
                return True
        reservation.close()
        return False

    def names_supervisor(self, process_id: int) -> bool:
        """Whether a supervisor has written stack.json."""
        return self.read_stack().get("pid") == process_id

    def read_stack(self) -> dict[str, Any]:
        """Return what stack.json has; nothing if there is none."""
        path = self.path / "stack.json"
        return json.loads(path.read_bytes()) if path.exists() else {}

    def withdraw(self) -> None:
        """Remove stack.json."""
        (self.path / "stack.json").unlink(missing_ok=True)

    def api_keys(self, environment: Mapping[str, str]) -> tuple[str, str]:
        """Return the gateway's keys, and the key of the ``weir`` command.

        The keys are those of WEIR_API_KEYS or WEIR_API_KEYS_FILE. If all are hashes, this stack's
        own key is added.

        Raises:
            DeploymentError: if the file cannot be read.
        """
        keys = read_variable(environment, "WEIR_API_KEYS") or ""
        for key in map(str.strip, re.split("[,\n]", keys)):
            # Hashes of keys contain colons.
            if key and ":" not in key:
                return keys, key
        path = self.path / "api_key"
        if not path.exists():
            _write(path, f"weir-{secrets.token_urlsafe(24)}")
        own_key = path.read_text(encoding="utf-8")
        return f"{keys},{own_key}" if keys else own_key, own_key

    def memory_dir(self, environment: Mapping[str, str]) -> Path:
        """Return this stack's folder in memory; without writable memory, one on disk."""
        root = environment.get("WEIR_MEMORY_DIR")
        if not root:
            if not os.access(_MEMORY, os.W_OK):
                return self.path / "data" / "weights"
            root = _MEMORY
        name = hashlib.sha256(str(self.path).encode()).hexdigest()[:16]
        return Path(root) / f"weir-{name}"

    def _try_to_lock(self) -> bool:
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self.lock = descriptor
        return True

    def _wait(self, start: float, timeout_s: float) -> None:
        """Sleep; after the timeout kill the processes that hold the lock.

        Services without their Redis would wait two minutes for it before they stop.
        """
        if self._clock() - start > timeout_s:
            for process_id in _find_holders(self._lock_path):
                say(f"killing process {process_id}, which holds {self._lock_path}")
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
        time.sleep(_POLL_S)


def _write(path: Path, text: str) -> None:
    """Write a file that only this user may read, completely or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.touch(mode=0o600)
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _find_holders(file: Path) -> Iterator[int]:
    """Yield this user's processes that have a file open."""
    for link in iglob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(link) == str(file):
                yield int(link.split("/")[2])
