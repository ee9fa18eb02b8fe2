"""A stack of processes: its launches, and their start, end and restart."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from protocol.placement import PlacementError, choose

from deploy.launches import Launch, learner_command
from deploy.local import Stack, describe_stack
from deploy.processes import (
    STOP_TIMEOUT_S,
    Home,
    Process,
    StackError,
    free_ports,
    stop,
    stop_timeout_s,
)
from services.chassis.deployment import Deployment, DeploymentError, read_variable, split_list
from tests.tables import read_rows

GPUS = [f"nvidia{number}" for number in range(8)]
SERVE = (  # says that it has started, as a service does
    "import http.server, sys;"
    "h = type('H', (http.server.BaseHTTPRequestHandler,),"
    " {'do_GET': lambda s: (s.send_response(200), s.end_headers()), 'log_message': print});"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), h).serve_forever()"
)


def make_stack(home: Path, devices: Sequence[str] = (), **environment: str) -> Stack:
    return describe_stack(Home(home), environment, choose(environment, devices))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_stacks_side_by_side_share_no_port_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_METRICS_PORT", "9000")
    for name in "ab":
        (tmp_path / name).mkdir()
    first, second, again = (make_stack(tmp_path / name) for name in "aba")
    ports = [process.port for stack in (first, second) for process in stack.processes]
    assert len(set(ports)) == len(ports)
    key, key_of_second, key_again = (
        stack.description["api_key"] for stack in (first, second, again)
    )
    assert key_of_second != key == key_again
    for process in first.services:
        deployment = Deployment.from_environment(process.variables())
        assert deployment.metrics_port == deployment.port == process.port


def test_a_stack_on_cpus_has_as_many_processes_as_the_environment_says(tmp_path: Path) -> None:
    counts = {"WEIR_ROLLOUTS": "2", "WEIR_GRADERS": "3", "WEIR_LEARNER_RANKS": "2"}
    counts |= {"WEIR_ENVIRONMENTS": "1", "WEIR_ENVIRONMENT_PYTHON": sys.executable}
    stack = make_stack(tmp_path, (), **counts)
    roles = " ".join(process.launch.role for process in stack.services)
    assert roles == "gateway grader grader grader environment rollout rollout learner"
    assert "torch.distributed.run" in stack.services[-1].launch.command
    assert all("CUDA_VISIBLE_DEVICES" not in p.launch.environment for p in stack.services)
    inherited = {process.inherited_files for process in stack.processes}
    assert inherited == {(stack.home.lock,)}, "the home is free when all have gone"


def test_each_service_is_a_user_of_redis_with_a_password_of_its_own(tmp_path: Path) -> None:
    python = {"WEIR_ENVIRONMENTS": "1", "WEIR_ENVIRONMENT_PYTHON": sys.executable}
    stack = make_stack(tmp_path, (), **python)
    urls = {p.launch.role: p.launch.secrets["WEIR_REDIS_URL"] for p in stack.services}
    urls["default"] = stack.description["redis_url"]
    users = {role: urlsplit(url) for role, url in urls.items()}
    for role, user in users.items():
        assert (user.username or "default") == role
        assert f'user {role} on ">{user.password}" '.encode() in stack.valkey.standard_input
    assert len({user.password for user in users.values()}) == 6
    for line in (b"maxmemory-policy noeviction", b"appendonly yes", b"appendfsync always"):
        assert line in stack.valkey.standard_input


def test_on_a_gpu_box_every_process_sees_its_own_gpus(tmp_path: Path) -> None:
    line = "learner=0-3 rollout=4,5 rollout=6 judge=7"
    variables = {"WEIR_GPUS": line, "WEIR_JUDGE_MODEL": "models/judge", "WEIR_ENVIRONMENTS": "0"}
    stack = make_stack(tmp_path, GPUS, **variables)
    by_name = {process.name: process for process in stack.services}
    environments = {name: process.launch.environment for name, process in by_name.items()}
    gpus = [f"{name}={values['CUDA_VISIBLE_DEVICES']}" for name, values in environments.items()]
    expected = "gateway= judge=7 grader-0= rollout-0=4,5 rollout-1=6 learner=0,1,2,3"
    assert set(gpus) == set(expected.split())
    assert environments["learner"]["DS_ACCELERATOR"] == "cuda"
    assert by_name["learner"].launch.command == learner_command(4)
    judge = by_name["judge"]
    assert environments["grader-0"]["WEIR_JUDGE_URL"] == f"http://127.0.0.1:{judge.port}/v1"
    assert {sys.executable, str(judge.port)} < {*judge.launch.command_line(judge.port)}


def test_environment_workers_run_by_a_python_of_their_own_and_know_the_model_door(
    tmp_path: Path,
) -> None:
    python = tmp_path / "bin/python"
    variables = {"WEIR_ENVIRONMENT_PYTHON": str(python), "WEIR_API_KEYS": f"a:sha256:{'0' * 64}"}
    roles = {process.launch.role for process in make_stack(tmp_path, **variables).services}
    assert "environment" not in roles, "that Python is not there"
    with pytest.raises(PlacementError, match="make install-environment"):
        make_stack(tmp_path, **variables, WEIR_ENVIRONMENTS="2")
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    stack = make_stack(tmp_path, **variables)
    (worker,) = (p for p in stack.services if p.launch.role == "environment")
    assert worker.launch.command_line(1) == [str(python), "-m", "services.environment"]
    assert worker.launch.environment["WEIR_GATEWAY_URL"] == stack.description["url"]
    (gateway,) = (p for p in stack.services if p.launch.role == "gateway")
    key = worker.launch.secrets["WEIR_ENVIRONMENT_KEY"]
    assert key == gateway.launch.secrets["WEIR_ENVIRONMENT_KEY"] != stack.description["api_key"]
    again = {p.launch.secrets.get("WEIR_ENVIRONMENT_KEY") for p in make_stack(tmp_path).services}
    assert key not in again, "every start has another"


OF_OPERATOR = dict(
    read_rows("""
    WEIR_API_KEYS         | of-operator-WEIR_API_KEYS
    WEIR_JUDGE_API_KEY    | of-operator-WEIR_JUDGE_API_KEY
    WEIR_JUDGES           | of-operator-judges
    WEIR_REDIS_PASSWORD   | of-operator-redis
    HF_TOKEN              | of-operator-HF_TOKEN
    WANDB_API_KEY         | of-operator-wandb
    AWS_SECRET_ACCESS_KEY | of-operator-aws
    DATABASE_URL          | pg://me:of-operator@h/db
    HF_MIRROR             | https://me:of-operator@h
    HTTPS_PROXY           | http://proxy:3128
    NCCL_DEBUG            | INFO
    MY_LAB                | 7
    """)
)
ALLOWED = {
    "gateway": {"WEIR_API_KEYS", "WEIR_ENVIRONMENT_KEY"},
    "grader": {"WEIR_JUDGE_API_KEY", "WEIR_JUDGES"},
    "environment": {"WEIR_ENVIRONMENT_KEY"},
    "rollout": set[str](),
    "learner": {"HF_TOKEN"},
}


def test_each_service_gets_its_own_secrets_in_files_and_inherits_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "judge").write_text("of-operator-WEIR_JUDGE_API_KEY\n")
    variables = OF_OPERATOR | {"WEIR_ENVIRONMENTS": "1", "WEIR_ENVIRONMENT_PYTHON": sys.executable}
    variables |= {"WEIR_JUDGE_API_KEY": "", "WEIR_JUDGE_API_KEY_FILE": str(tmp_path / "judge")}
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    stack = describe_stack(Home(tmp_path), os.environ, choose(os.environ, ()))
    assert not any("of-operator" in text for text in stack.valkey.variables().values())
    for process in stack.services:
        variables = process.variables()
        role = process.launch.role
        assert not any("of-operator" in text for text in variables.values()), role
        files = {name for name, text in variables.items() if text.startswith("/proc/")}
        secrets = {name.removesuffix("_FILE") for name in files}
        assert secrets == {"WEIR_REDIS_URL", *ALLOWED[role]}, role
        for name in secrets & OF_OPERATOR.keys():
            assert read_variable(variables, name) == OF_OPERATOR[name]
        assert all(text not in repr(process) for text in process.launch.secrets.values())
        inherited = {"HTTPS_PROXY", "NCCL_DEBUG", "MY_LAB"} & variables.keys()
        assert inherited == {"HTTPS_PROXY", "NCCL_DEBUG"}, "what nobody named is not inherited"


def test_the_file_of_a_secret_is_for_one_user_and_its_process_and_then_gone(home: Home) -> None:
    mark = home.path / "read"
    code = (
        "import os, pathlib; path = os.environ['KEY_FILE'];"
        f"pathlib.Path({str(mark)!r}).write_text(open(path).read() + oct(os.stat(path).st_mode))"
    )
    process = program(home, "reader", code, secrets={"KEY": "a secret"})
    process.start()
    file = Path(process.variables()["KEY_FILE"])
    wait_until(lambda: process.has_ended)
    assert mark.read_text() == "a secret0o100400"
    assert b"a secret" not in b"".join(p.read_bytes() for p in home.path.rglob("*.log"))
    stop([process], lambda: 5)
    assert not file.exists()


@pytest.mark.parametrize(
    ("keys", "prefix"), [("one, two\n", "one"), ("{hash}\none\ntwo\n", "one"), ("{hash}", "weir-")]
)
def test_the_command_gets_a_plain_key_however_the_keys_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str, prefix: str
) -> None:
    listed = keys.format(hash=f"alice:read:sha256:{'0' * 64}")
    (tmp_path / "keys").write_text(listed)
    monkeypatch.setenv("WEIR_API_KEYS_FILE", str(tmp_path / "keys"))
    in_file = make_stack(tmp_path, (), WEIR_API_KEYS_FILE=str(tmp_path / "keys"))
    for stack in (in_file, make_stack(tmp_path, (), WEIR_API_KEYS=listed)):
        key = stack.description["api_key"]
        assert key.startswith(prefix)
        api_keys = Deployment.from_environment(stack.services[0].variables()).api_keys
        assert {key, *split_list(listed)} <= set(api_keys)
        assert all("WEIR_API_KEYS_FILE" not in p.variables() for p in stack.services[1:])


JUDGED = {"WEIR_GPUS": "learner=0 rollout=1 judge=2"}


@pytest.mark.parametrize(
    ("error", "variables", "problem"),
    [
        (DeploymentError, {"WEIR_API_KEYS_FILE": "/nowhere"}, "WEIR_API_KEYS_FILE"),
        (PlacementError, {"WEIR_REDIS_PORT": "http"}, "WEIR_REDIS_PORT"),
        (PlacementError, JUDGED, "WEIR_JUDGE_MODEL is not set"),
        (PlacementError, JUDGED | {"WEIR_JUDGE_MODEL": "gpt-oss-20b"}, "vLLM 0.33 or"),
    ],
)
def test_a_variable_that_is_missing_or_wrong_is_named(
    error: type[Exception], variables: dict[str, str], problem: str, tmp_path: Path
) -> None:
    devices = GPUS[:3] if "WEIR_GPUS" in variables else []
    with pytest.raises(error, match=problem):
        make_stack(tmp_path, devices, **variables)


def test_a_port_in_use_is_refused_and_never_given_out(tmp_path: Path) -> None:
    with socket.socket() as server:
        port = next(free_ports())
        server.bind(("127.0.0.1", port))
        server.listen()
        assert port not in set(free_ports())
        with pytest.raises(StackError, match=f"WEIR_GATEWAY_PORT={port}"):
            make_stack(tmp_path, WEIR_GATEWAY_PORT=str(port))


def test_a_stack_keeps_its_port(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        ports = [make_stack(tmp_path / name).services[0].port for _ in range(2)]
        assert ports[0] == ports[1]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.acquire()
    yield home
    os.close(home.lock)


@pytest.fixture
def start(home: Home) -> Iterator[Callable[..., None]]:
    started: list[Process] = []

    def start(*services: Process) -> None:
        valkey = program(home, "valkey", SERVE)
        stack = Stack(home, {}, valkey, [*services], home.path / "memory")
        started.extend(stack.processes)
        stack._start(stack.processes)

    yield start
    stop(started, lambda: 5)


def program(home: Home, name: str, code: str, **options: object) -> Process:
    command = (sys.executable, "-c", code, "{port}")
    launch = Launch(name, name, command, **options)  # type: ignore[arg-type]
    return Process(
        launch, next(free_ports()), home.path / "logs" / name, inherited_files=(home.lock,)
    )


def test_a_stack_starts_though_one_ends_well_and_begins_anew_and_a_judge_takes_its_time(
    home: Home, start: Callable[..., None]
) -> None:
    """And what computes gives way, what answers does not."""
    mark = home.path / "mark"
    once = f"import os, sys; p = {str(mark)!r}; os.path.exists(p) or (open(p, 'w'), sys.exit(0));"
    gateway = program(home, "gateway", SERVE, niceness=0)
    learner = program(home, "learner", once + SERVE)
    judge = program(home, "judge", "import time; time.sleep(600)", is_awaited=False)
    start(gateway, learner, judge)
    assert mark.exists()
    assert [process.has_started for process in (gateway, learner, judge)] == [True, True, False]
    assert gateway.running is not None
    assert learner.running is not None
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, gateway.running.pid) == niceness
    assert os.getpriority(os.PRIO_PROCESS, learner.running.pid) == min(19, niceness + 10)


def test_a_process_that_cannot_start_is_told_with_its_last_words(
    home: Home, start: Callable[..., None]
) -> None:
    broken = program(home, "rollout", "raise SystemExit('WEIR_PORT is wrong')")
    with pytest.raises(StackError, match=r"rollout .* again and again(.*\n)*.*WEIR_PORT"):
        start(broken)


@pytest.mark.parametrize("how", ["restart", "stop"])
def test_what_a_process_has_started_ends_with_it(home: Home, how: str) -> None:
    read, write = os.pipe()  # which its child holds open, and so has an end when that has gone
    code = (
        f"import os, subprocess, time; subprocess.Popen(['sleep', '600'], pass_fds=[{write}]);"
        f"os.write({write}, b'.'); time.sleep(600)"
    )
    parent = program(home, "rollout", code)
    parent.inherited_files = (*parent.inherited_files, write)
    parent.start()
    os.close(write)
    assert os.read(read, 1) == b"."
    if how == "restart":
        parent.inherited_files = (home.lock,)
        assert parent.running is not None
        parent.running.kill()
        wait_until(lambda: parent.has_ended)
        parent.restart_if_ended()
    else:
        stop([parent], lambda: 60)
    gone = select.select([read], [], [], 60)[0]
    stop([parent], lambda: 60)
    assert gone
    os.close(read)


def test_a_home_has_one_stack_from_the_first_moment(home: Home) -> None:
    with pytest.raises(StackError, match=f"process {os.getpid()}"):
        Home(home.path).acquire()


SUPERVISOR = """
import os, pathlib, sys, time
from deploy.launches import Launch
from deploy.processes import Home, Process
home = Home(pathlib.Path(sys.argv[1]))
home.acquire()
launch = Launch('child', 'child', ('{python}', '-c', sys.argv[2], sys.argv[1]))
Process(launch, 0, inherited_files=(home.lock,)).start()
while not (home.path / 'hears').exists(): time.sleep(0.05)
os.kill(os.getpid(), 9)
"""
CHILD = """
import pathlib, signal, sys, time
home = pathlib.Path(sys.argv[1])
def leave(*_):
    (home / 'told').touch()
    time.sleep(HANGS_S)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
(home / 'hears').touch()
while True: time.sleep(0.05)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("hangs_s", [0.5, 600])
def test_what_a_killed_supervisor_started_is_told_waited_for_and_killed_if_it_hangs(
    tmp_path: Path, hangs_s: float
) -> None:
    child = CHILD.replace("HANGS_S", str(hangs_s))
    command = [sys.executable, "-c", SUPERVISOR, str(tmp_path), child]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    wait_until((tmp_path / "told").exists)
    hours = count(step=3600)
    home = Home(tmp_path, (lambda: next(hours)) if hangs_s > 1 else time.monotonic)
    assert home.stop_stack()
    os.close(home.lock)
    assert not Home(tmp_path).stop_stack()


def test_a_stop_asks_again_how_long_it_may_take(home: Home) -> None:
    """The process stops after the timeout has been asked for three times."""
    ready_path = home.path / "hears"
    asked_path = home.path / "asked"
    code = (
        f"import pathlib, signal, time; asked = pathlib.Path({str(asked_path)!r})\n"
        "def save(*_):\n    while not asked.exists(): time.sleep(0.02)\n    raise SystemExit(7)\n"
        f"signal.signal(signal.SIGTERM, save); pathlib.Path({str(ready_path)!r}).touch()\n"
        "while True: time.sleep(0.02)\n"
    )
    learner = program(home, "learner", code)
    learner.start()
    wait_until(ready_path.exists)
    running = learner.running
    questions = count(1)

    def timeout_s() -> float:
        if next(questions) == 3:
            asked_path.touch()
        return 60

    stop([learner], timeout_s)
    assert running is not None
    assert running.returncode == 7


def test_a_stop_waits_as_long_as_the_largest_checkpoint_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "jobs/job/checkpoints/.unfinished-1-step-000001"
    (folder / "policy").mkdir(parents=True)
    with (folder / "engine").open("wb") as file:
        file.truncate(500 * 10**6)
    scan = os.scandir

    def renamed_meanwhile(path: Path) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "policy":
            folder.rename(folder.with_name("step-000001"))
        return scan(path)

    assert stop_timeout_s(tmp_path) == STOP_TIMEOUT_S + 20
    monkeypatch.setattr(os, "scandir", renamed_meanwhile)
    assert stop_timeout_s(tmp_path) >= STOP_TIMEOUT_S
    assert folder.with_name("step-000001").exists()
