"""A stack of processes: what it consists of, and how its processes start, end and begin again."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy import processes
from deploy.home import Home
from deploy.launches import Launch, Rendezvous, learner_command
from deploy.local import Stack, describe_stack
from deploy.placement import PlacementError, choose
from deploy.processes import Process, StackError, environment_for, free_ports
from services.chassis.deployment import Deployment, words

GPUS = [f"nvidia{number}" for number in range(8)]
SERVE = (  # says that it has started after a moment, as a service does
    "import http.server, sys, time; time.sleep(0.3);"
    "h = type('H', (http.server.BaseHTTPRequestHandler,),"
    " {'do_GET': lambda s: (s.send_response(200), s.end_headers()), 'log_message': print});"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), h).serve_forever()"
)


def stack_of(home: Path, devices: Sequence[str] = (), **environment: str) -> Stack:
    return describe_stack(Home(home), environment, choose(environment, devices))


def test_two_stacks_side_by_side_share_no_port_and_no_secret(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    one, other = (stack_of(tmp_path / name) for name in "ab")
    ports = [process.port for stack in (one, other) for process in stack.processes]
    assert len(set(ports)) == len(ports)
    assert one.api_key != other.api_key
    assert one.api_key == stack_of(tmp_path / "a").api_key


def test_a_stack_on_cpus_has_as_many_processes_as_the_environment_says(tmp_path: Path) -> None:
    counts = {"WEIR_ROLLOUTS": "2", "WEIR_GRADERS": "3", "WEIR_LEARNER_RANKS": "2"}
    stack = stack_of(tmp_path, (), **counts)
    roles = [process.launch.role for process in stack.services]
    assert roles == ["gateway", *["grader"] * 3, *["rollout"] * 2, "learner"]
    assert "torch.distributed.run" in stack.services[-1].launch.command
    assert all("CUDA_VISIBLE_DEVICES" not in p.launch.environment for p in stack.services)


def test_on_a_gpu_box_every_process_sees_its_own_gpus(tmp_path: Path) -> None:
    line = "learner=0-3 rollout=4,5 rollout=6 judge=7"
    stack = stack_of(tmp_path, GPUS, WEIR_GPUS=line, WEIR_JUDGE_MODEL="models/gpt-oss-20b")
    by_name = {process.name: process.launch for process in stack.services}
    sees = {name: each.environment["CUDA_VISIBLE_DEVICES"] for name, each in by_name.items()}
    assert sees == {
        "gateway": "",
        "judge": "7",
        "grader-0": "",
        "rollout-0": "4,5",
        "rollout-1": "6",
        "learner": "0,1,2,3",
    }
    assert by_name["rollout-0"].environment["WEIR_ROLLOUT_TENSOR_PARALLEL_SIZE"] == "2"
    assert by_name["learner"].command == learner_command(4)
    assert by_name["learner"].command[-3] == "4"
    assert by_name["learner"].environment["DS_ACCELERATOR"] == "cuda"
    judge = next(process for process in stack.services if process.name == "judge")
    url = by_name["grader-0"].environment["WEIR_JUDGE_URL"]
    assert url == f"http://127.0.0.1:{judge.port}/v1"
    assert str(judge.port) in judge.launch.command_at(judge.port)


def test_keys_may_be_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("one, two\n")
    file = str(tmp_path / "keys")
    stack = stack_of(tmp_path, (), WEIR_API_KEYS_FILE=file)
    assert stack.api_key == "one"
    monkeypatch.setenv("WEIR_API_KEYS_FILE", file)
    assert "WEIR_API_KEYS_FILE" not in environment_for(stack.services[0].launch.environment)


def test_a_file_of_keys_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"WEIR_API_KEYS_FILE='.*absent' cannot be read"):
        stack_of(tmp_path, (), WEIR_API_KEYS_FILE=str(tmp_path / "absent"))


@pytest.mark.parametrize(("keys", "own"), [("{hash}\none\ntwo\n", "one"), ("{hash}", "weir-")])
def test_the_command_gets_a_plain_key_however_the_keys_are_written(
    tmp_path: Path, keys: str, own: str
) -> None:
    listed = keys.format(hash=f"alice:read:sha256:{'0' * 64}")
    (tmp_path / "keys").write_text(listed)
    in_file = stack_of(tmp_path, (), WEIR_API_KEYS_FILE=str(tmp_path / "keys"))
    for stack in (in_file, stack_of(tmp_path, (), WEIR_API_KEYS=listed)):
        assert stack.api_key.startswith(own)
        given = stack.services[0].launch.environment["WEIR_API_KEYS"]
        assert stack.api_key in words(given)
        assert set(words(listed)) <= set(words(given))


def test_services_of_one_machine_do_not_share_a_port_for_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_METRICS_PORT", "9000")
    for process in stack_of(tmp_path).services:
        environment = environment_for(process.launch.environment_at(process.port))
        deployment = Deployment.from_environment(environment)
        assert deployment.metrics_port == deployment.port == process.port


def test_a_judge_needs_a_model(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match="WEIR_JUDGE_MODEL is not set"):
        stack_of(tmp_path, GPUS[:3], WEIR_GPUS="learner=0 rollout=1 judge=2")


def test_launchers_of_several_nodes_meet_at_the_first() -> None:
    command = learner_command(4, node=1, nodes=2, meet_at=Rendezvous("10.0.0.1", 29500))
    text = " ".join(command)
    assert "--nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29500" in text
    assert "--nproc-per-node 4 -m services.learner" in text


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=f"WEIR_GATEWAY_PORT={port}: Address already in use"):
            stack_of(tmp_path, WEIR_GATEWAY_PORT=str(port))
    with pytest.raises(PlacementError, match="WEIR_REDIS_PORT='http': give a port"):
        stack_of(tmp_path, WEIR_REDIS_PORT="http")


def test_a_port_that_is_given_out_is_free() -> None:
    ports = free_ports()
    for port in (next(ports), next(ports)):
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.take()
    yield home
    os.close(home.lock)


def program(home: Home, name: str, code: str, **options: object) -> Process:
    command = (sys.executable, "-c", code, "{port}")
    launch = Launch(name, name, command, {"WEIR_API_KEYS": ""}, **options)  # type: ignore[arg-type]
    return Process(launch, next(free_ports()), home.path / "logs" / name, held=(home.lock,))


def start(home: Home, *services: Process) -> Stack:
    valkey = program(home, "valkey", SERVE)
    memory = home.path / "memory"
    stack = Stack(home, "http://weir", "key", "redis://", valkey, [*services], memory)
    stack._start([stack.valkey, *services])
    return stack


def test_a_process_that_ends_well_while_the_stack_starts_begins_anew(home: Home) -> None:
    mark = home.path / "mark"
    once = f"import os, sys; p = {str(mark)!r}; os.path.exists(p) or (open(p, 'w'), sys.exit(0));"
    learner = program(home, "learner", once + SERVE)
    stack = start(home, learner)
    assert learner.has_started
    assert learner.running is not None
    for process in stack.processes:
        process.stop(5)


def test_what_computes_gives_way_and_what_answers_does_not(home: Home) -> None:
    gateway, learner = program(home, "gateway", SERVE, niceness=0), program(home, "learner", SERVE)
    stack = start(home, gateway, learner)
    assert gateway.running is not None
    assert learner.running is not None
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for process_id, niceness in {gateway.running.pid: own, learner.running.pid: 10}.items():
        assert os.getpriority(os.PRIO_PROCESS, process_id) == niceness
        session = Path(f"/proc/{process_id}/autogroup")
        if session.exists():
            assert session.read_text().endswith(f"nice {niceness}\n")
    for process in stack.processes:
        process.stop(5)


def test_a_process_that_cannot_start_is_told_with_its_last_words(home: Home) -> None:
    broken = program(home, "rollout", "raise SystemExit('WEIR_PORT is wrong')")
    with pytest.raises(StackError, match=r"rollout cannot start.*(\n.*)*WEIR_PORT is wrong"):
        start(home, broken)


def test_a_process_that_cannot_be_started_now_is_tried_again(home: Home) -> None:
    grader = program(home, "grader", SERVE)
    stack = start(home, grader)
    (home.path / "logs").rename(home.path / "elsewhere")
    assert grader.running is not None
    grader.running.kill()
    grader.running.wait()
    grader.revive()
    grader.restart_at = 0.0
    grader.revive()
    assert grader.running is None
    (home.path / "elsewhere").rename(home.path / "logs")
    grader.restart_at = 0.0
    grader.revive()
    assert grader.running is not None
    for process in stack.processes:
        process.stop(5)


def test_a_process_that_cannot_be_started_at_first_is_tried_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = home.path / "mark"

    def fail_once() -> None:  # in the child: its parent gets a SubprocessError
        if not mark.exists():
            mark.touch()
            raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(processes, "_die_with_supervisor", fail_once)
    grader = program(home, "grader", SERVE)
    stack = start(home, grader)
    assert mark.exists()
    assert stack.valkey.has_started
    assert grader.has_started
    for process in stack.processes:
        process.stop(5)


def test_a_process_that_nobody_waits_for_does_not_hold_up_the_start(home: Home) -> None:
    judge = program(home, "judge", "import time; time.sleep(60)", is_awaited=False)
    stack = start(home, judge)
    assert not judge.has_started
    for process in stack.processes:
        process.stop(5)


def test_a_home_has_one_stack_from_the_first_moment(home: Home) -> None:
    with pytest.raises(StackError, match=f"a stack runs here already \\(process {os.getpid()}\\)"):
        Home(home.path).take()


def test_a_home_is_free_only_when_everything_that_ran_there_has_gone(tmp_path: Path) -> None:
    """A supervisor is killed; what it started ends half a second later."""
    code = (
        "import os, subprocess, sys, pathlib; from deploy.home import Home;"
        "home = Home(pathlib.Path(sys.argv[1])); home.take();"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1.5)'],"
        " pass_fds=(home.lock,)); print('up', flush=True); os.kill(os.getpid(), 9)"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
    )
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline() == b"up\n"
    assert supervisor.wait() == -signal.SIGKILL
    began = time.monotonic()
    Home(tmp_path).take()
    assert time.monotonic() - began > 0.5


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the number of a supervisor that was killed."""
    process = subprocess.Popen(["sleep", "60"])
    for name in ("supervisor.pid", "stack.json"):
        (tmp_path / name).write_text(str(process.pid))
    yield process
    process.kill()
    process.wait()


def test_what_a_killed_stack_has_written_stops_no_stranger(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "lock").touch()
    assert not Home(tmp_path).vacate()
    assert stranger.poll() is None


@pytest.mark.parametrize(("works_s", "ended"), [(1, 0), (600, -signal.SIGKILL)])
def test_what_a_killed_stack_has_started_is_waited_for_and_no_stranger_stopped(
    tmp_path: Path,
    stranger: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    works_s: float,
    ended: int,
) -> None:
    if ended:
        monkeypatch.setattr("deploy.home.STOP_TIMEOUT_S", 0.1)
        monkeypatch.setattr(processes, "STOP_TIMEOUT_S", 0.1)
    code = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX);"
        f"print('held', flush=True); time.sleep({works_s})"
    )
    left = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE
    )
    assert left.stdout is not None
    assert left.stdout.readline() == b"held\n"
    assert Home(tmp_path).vacate()
    assert left.wait() == ended
    assert stranger.poll() is None


def test_two_who_look_at_once_do_not_take_each_other_for_the_supervisor(tmp_path: Path) -> None:
    (tmp_path / "supervisor.pid").write_text("1")
    with ThreadPoolExecutor(2) as threads:
        looks = [threads.submit(look_often, tmp_path) for _ in range(2)]
    assert [look.result() for look in looks] == [{None}, {None}]


def look_often(path: Path) -> set[int | None]:
    return {Home(path)._supervisor() for _ in range(20_000)}


def test_a_stack_that_begins_is_never_taken_for_the_one_before(tmp_path: Path) -> None:
    named = tmp_path / "supervisor.pid"
    named.write_text("1")
    with named.open() as looker, ThreadPoolExecutor(1) as thread:
        fcntl.flock(looker, fcntl.LOCK_SH)  # who looks holds up the stack that begins
        home = Home(tmp_path)
        taking = thread.submit(home.take)
        deadline = time.monotonic() + 20
        while (text := named.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
        fcntl.flock(looker, fcntl.LOCK_UN)
        taking.result()
    assert text == ""
    assert named.read_text() == str(os.getpid())
    os.close(home.lock)


def test_nothing_to_stop_is_told(tmp_path: Path) -> None:
    assert not Home(tmp_path / "nowhere").vacate()


def test_a_stop_waits_as_long_as_a_checkpoint_grows(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.path / "data/jobs/job/checkpoints/.unfinished-1-step-000001"
    folder.mkdir(parents=True)
    save = (
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n"
        "    for number in range(10):\n"
        f"        (pathlib.Path({str(folder)!r}) / str(number)).write_bytes(bytes(500))\n"
        "        time.sleep(0.2)\n"
        "    (pathlib.Path(sys.argv[1])).touch()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "pathlib.Path(sys.argv[2]).touch()\n"
        "while True: time.sleep(0.05)\n"
    )
    saved, hears = home.path / "saved", home.path / "hears"
    command = (sys.executable, "-c", save, str(saved), str(hears))
    learner = Process(Launch("learner", "learner", command), 0)
    learner.start()
    while not hears.exists():
        time.sleep(0.02)
    monkeypatch.setattr(processes, "STOP_TIMEOUT_S", 0.5)
    monkeypatch.setattr(processes, "_SLOW_DISK", 1000)
    processes.stop_all([learner], lambda: processes.stop_timeout_s(home.path / "data"))
    assert saved.exists()
    assert processes.stop_timeout_s(home.path / "data") == 0.5 + 5000 / 1000


def test_a_checkpoint_may_get_its_name_while_its_size_is_asked_for(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.path / "data/jobs/job/checkpoints/.unfinished-1-step-000001"
    (folder / "policy").mkdir(parents=True)
    scan = os.scandir

    def renamed_meanwhile(path: Path) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "policy":
            folder.rename(folder.with_name("step-000001"))
        return scan(path)

    monkeypatch.setattr(os, "scandir", renamed_meanwhile)
    assert processes.stop_timeout_s(home.path / "data") == processes.STOP_TIMEOUT_S
    assert folder.with_name("step-000001").exists()
