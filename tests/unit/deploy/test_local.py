"""A stack of processes: what it consists of, and how its processes start, end and begin again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from deploy.home import Home
from deploy.launches import Launch, Rendezvous, learner_command
from deploy.local import Stack, describe_stack
from deploy.placement import PlacementError, choose
from deploy.processes import (
    STOP_TIMEOUT_S,
    Process,
    StackError,
    environment_for,
    free_ports,
    stop_all,
    stop_timeout_s,
)
from services.chassis.deployment import Deployment, words

GPUS = [f"nvidia{number}" for number in range(8)]
SERVE = (  # says that it has started, as a service does
    "import http.server, sys;"
    "h = type('H', (http.server.BaseHTTPRequestHandler,),"
    " {'do_GET': lambda s: (s.send_response(200), s.end_headers()), 'log_message': print});"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), h).serve_forever()"
)


def stack_of(home: Path, devices: Sequence[str] = (), **environment: str) -> Stack:
    return describe_stack(Home(home), environment, choose(environment, devices))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(process_id: int) -> bool:
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_two_stacks_side_by_side_share_no_port_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_METRICS_PORT", "9000")
    for name in "ab":
        (tmp_path / name).mkdir()
    one, other = (stack_of(tmp_path / name) for name in "ab")
    ports = [process.port for stack in (one, other) for process in stack.processes]
    assert len(set(ports)) == len(ports)
    assert one.api_key != other.api_key
    assert one.api_key == stack_of(tmp_path / "a").api_key
    for process in one.services:
        environment = environment_for(process.launch.environment_at(process.port))
        deployment = Deployment.from_environment(environment)
        assert deployment.metrics_port == deployment.port == process.port


def test_a_stack_on_cpus_has_as_many_processes_as_the_environment_says(tmp_path: Path) -> None:
    counts = {"WEIR_ROLLOUTS": "2", "WEIR_GRADERS": "3", "WEIR_LEARNER_RANKS": "2"}
    stack = stack_of(tmp_path, (), **counts)
    roles = [process.launch.role for process in stack.services]
    assert roles == ["gateway", *["grader"] * 3, *["rollout"] * 2, "learner"]
    assert "torch.distributed.run" in stack.services[-1].launch.command
    assert all("CUDA_VISIBLE_DEVICES" not in p.launch.environment for p in stack.services)
    held = {process.held for process in stack.processes}
    assert held == {(stack.home.lock,)}, "the home is free when all have gone"
    for line in (b"maxmemory-policy noeviction", b"appendonly yes", b"appendfsync always"):
        assert line in stack.valkey.standard_input


def test_on_a_gpu_box_every_process_sees_its_own_gpus(tmp_path: Path) -> None:
    line = "learner=0-3 rollout=4,5 rollout=6 judge=7"
    stack = stack_of(tmp_path, GPUS, WEIR_GPUS=line, WEIR_JUDGE_MODEL="models/gpt-oss-20b")
    by_name = {process.name: process.launch for process in stack.services}
    assert {name: each.environment["CUDA_VISIBLE_DEVICES"] for name, each in by_name.items()} == {
        "gateway": "",
        "judge": "7",
        "grader-0": "",
        "rollout-0": "4,5",
        "rollout-1": "6",
        "learner": "0,1,2,3",
    }
    assert by_name["rollout-0"].environment["WEIR_ROLLOUT_TENSOR_PARALLEL_SIZE"] == "2"
    assert by_name["learner"].command == learner_command(4)
    assert by_name["learner"].environment["DS_ACCELERATOR"] == "cuda"
    judge = next(process for process in stack.services if process.name == "judge")
    url = by_name["grader-0"].environment["WEIR_JUDGE_URL"]
    assert url == f"http://127.0.0.1:{judge.port}/v1"
    assert judge.launch.command_at(judge.port)[0] == sys.executable
    assert str(judge.port) in judge.launch.command_at(judge.port)


def test_launchers_of_several_nodes_meet_at_the_first() -> None:
    command = learner_command(4, node=1, nodes=2, meet_at=Rendezvous("10.0.0.1", 29500))
    text = " ".join(command)
    assert "--nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29500" in text
    assert "--nproc-per-node 4 -m services.learner" in text


@pytest.mark.parametrize(
    ("keys", "own"), [("one, two\n", "one"), ("{hash}\none\ntwo\n", "one"), ("{hash}", "weir-")]
)
def test_the_command_gets_a_plain_key_however_the_keys_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str, own: str
) -> None:
    listed = keys.format(hash=f"alice:read:sha256:{'0' * 64}")
    (tmp_path / "keys").write_text(listed)
    monkeypatch.setenv("WEIR_API_KEYS_FILE", str(tmp_path / "keys"))
    in_file = stack_of(tmp_path, (), WEIR_API_KEYS_FILE=str(tmp_path / "keys"))
    for stack in (in_file, stack_of(tmp_path, (), WEIR_API_KEYS=listed)):
        assert stack.api_key.startswith(own)
        given = environment_for(stack.services[0].launch.environment)
        assert {stack.api_key, *words(listed)} <= set(words(given["WEIR_API_KEYS"]))
        assert "WEIR_API_KEYS_FILE" not in given


def test_what_a_stack_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="WEIR_API_KEYS_FILE"):
        stack_of(tmp_path, (), WEIR_API_KEYS_FILE=str(tmp_path / "absent"))
    with pytest.raises(PlacementError, match="WEIR_JUDGE_MODEL"):
        stack_of(tmp_path, GPUS[:3], WEIR_GPUS="learner=0 rollout=1 judge=2")
    with pytest.raises(PlacementError, match="WEIR_REDIS_PORT"):
        stack_of(tmp_path, WEIR_REDIS_PORT="http")


def test_a_port_that_is_taken_is_told_and_never_given_out(tmp_path: Path) -> None:
    with socket.socket() as taken:
        port = next(free_ports())
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(StackError, match=f"WEIR_GATEWAY_PORT={port}"):
            stack_of(tmp_path, WEIR_GATEWAY_PORT=str(port))
        assert port not in set(free_ports())


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.take()
    yield home
    os.close(home.lock)


@pytest.fixture
def start(home: Home) -> Iterator[Callable[..., Stack]]:
    """Starts a stack of programs, which ends with the test."""
    stacks: list[Stack] = []

    def start(*services: Process) -> Stack:
        valkey = program(home, "valkey", SERVE)
        stack = Stack(home, "http://", "key", "redis://", valkey, [*services], home.path / "memory")
        stacks.append(stack)
        stack._start(stack.processes)
        return stack

    yield start
    for process in (process for stack in stacks for process in stack.processes):
        process.stop(5)


def program(home: Home, name: str, code: str, **options: object) -> Process:
    command = (sys.executable, "-c", code, "{port}")
    launch = Launch(name, name, command, {"WEIR_API_KEYS": ""}, **options)  # type: ignore[arg-type]
    return Process(launch, next(free_ports()), home.path / "logs" / name, held=(home.lock,))


def test_a_stack_starts_though_one_ends_well_and_begins_anew_and_a_judge_takes_its_time(
    home: Home, start: Callable[..., Stack]
) -> None:
    """And what computes gives way, what answers does not."""
    mark = home.path / "mark"
    once = f"import os, sys; p = {str(mark)!r}; os.path.exists(p) or (open(p, 'w'), sys.exit(0));"
    gateway, learner = (
        program(home, "gateway", SERVE, niceness=0),
        program(home, "learner", once + SERVE),
    )
    judge = program(home, "judge", "import time; time.sleep(600)", is_awaited=False)
    start(gateway, learner, judge)
    assert mark.exists()
    assert [each.has_started for each in (gateway, learner, judge)] == [True, True, False]
    assert gateway.running is not None
    assert learner.running is not None
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, gateway.running.pid) <= max(own, 0)
    assert os.getpriority(os.PRIO_PROCESS, learner.running.pid) >= 10
    session = Path(f"/proc/{learner.running.pid}/autogroup")
    if session.exists() and os.geteuid() == 0:  # who is not root may have to wait
        assert session.read_text().endswith("nice 10\n")


def test_a_process_that_cannot_start_is_told_with_its_last_words(
    home: Home, start: Callable[..., Stack]
) -> None:
    broken = program(home, "rollout", "raise SystemExit('WEIR_PORT is wrong')")
    with pytest.raises(StackError, match=r"rollout .* again and again(.*\n)*.*WEIR_PORT"):
        start(broken)


@pytest.mark.parametrize("how", ["restart", "stop"])
def test_what_a_process_has_started_ends_with_it(home: Home, how: str) -> None:
    code = (
        "import pathlib, subprocess, time; child = subprocess.Popen(['sleep', '600']);"
        f"pathlib.Path({str(home.path)!r}, 'child').write_text(str(child.pid) + '.');"
        "time.sleep(600)"
    )
    parent, told = program(home, "rollout", code), home.path / "child"
    parent.start()
    wait_for(lambda: told.exists() and told.read_text().endswith("."))
    child = int(told.read_text().rstrip("."))
    assert is_alive(child)
    if how == "restart":
        assert parent.running is not None
        parent.running.kill()
        wait_for(lambda: parent.has_ended)
        parent.revive()
    else:
        parent.stop(60)
    wait_for(lambda: not is_alive(child))
    parent.stop(60)


def test_a_home_has_one_stack_from_the_first_moment(home: Home) -> None:
    with pytest.raises(StackError, match=f"process {os.getpid()}"):
        Home(home.path).take()


def test_when_a_supervisor_is_killed_its_processes_leave_and_then_the_home_is_free(
    tmp_path: Path,
) -> None:
    child = (
        "import pathlib, signal, sys, time; home = pathlib.Path(sys.argv[1])\n"
        "def leave(*_): time.sleep(0.5); (home / 'left').touch(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave); (home / 'hears').touch()\n"
        "while True: time.sleep(0.05)\n"
    )
    supervisor = (
        "import os, pathlib, sys, time; from deploy.home import Home;"
        "from deploy.launches import Launch; from deploy.processes import Process\n"
        "home = Home(pathlib.Path(sys.argv[1])); home.take()\n"
        "launch = Launch('child', 'child', ('{python}', '-c', sys.argv[2], sys.argv[1]))\n"
        "Process(launch, 0, held=(home.lock,)).start()\n"
        "while not (home.path / 'hears').exists(): time.sleep(0.05)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", supervisor, str(tmp_path), child]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    home = Home(tmp_path)
    home.take()
    assert (tmp_path / "left").exists()
    os.close(home.lock)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("hangs", [False, True])
def test_what_a_killed_stack_has_started_is_waited_for_and_killed_if_it_hangs(
    tmp_path: Path, hangs: bool
) -> None:
    code = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX);"
        f"print('held', flush=True); time.sleep({600 if hangs else 0.5})"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    hours = count(step=3600)
    clock = (lambda: next(hours)) if hangs else time.monotonic
    # The stranger has the number of the supervisor that was killed.
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as left,
        subprocess.Popen(["sleep", "600"]) as stranger,
    ):
        (tmp_path / "supervisor.pid").write_text(str(stranger.pid))
        assert left.stdout is not None
        assert left.stdout.readline() == b"held\n"
        try:
            home = Home(tmp_path, clock)
            assert home.vacate()
            os.close(home.lock)
            assert left.wait() == (-signal.SIGKILL if hangs else 0)
            assert not Home(tmp_path).vacate()
            assert stranger.poll() is None
        finally:
            left.kill()
            stranger.kill()


def test_a_stop_asks_again_how_long_it_may_take(home: Home) -> None:
    """What is told to leave does so once the third question has been asked."""
    hears, asked = home.path / "hears", home.path / "asked"
    code = (
        f"import pathlib, signal, time; asked = pathlib.Path({str(asked)!r})\n"
        "def save(*_):\n    while not asked.exists(): time.sleep(0.02)\n    raise SystemExit(7)\n"
        f"signal.signal(signal.SIGTERM, save); pathlib.Path({str(hears)!r}).touch()\n"
        "while True: time.sleep(0.02)\n"
    )
    learner = program(home, "learner", code)
    learner.start()
    wait_for(hears.exists)
    running, questions = learner.running, count(1)

    def patience_s() -> float:
        if next(questions) == 3:
            asked.touch()
        return 60

    stop_all([learner], patience_s)
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
