"""The images, built as they are, and one stack of the compose file that they run in."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import yaml

from deploy.local import USERS
from deploy.processes import free_ports
from tests.containers.engines import ROOT, Engine, engine
from tests.stack.conftest import TASKS, Jobs, Json, wait_for

SERVICES = ("gateway", "grader", "rollout", "learner", "environment")
PROJECT = "weir-test"
_ALL = ("--profile", "environment")  # services, also those that are started on request
_CONTAINER_ENDED = ("running", "stopped container", "ended with 137")  # as podman says it


@dataclass(kw_only=True)
class Stack(Jobs):
    engine: Engine
    files: tuple[str, ...]
    services: tuple[str, ...] = ()  # those that can run here

    def compose(self, *arguments: str) -> str:
        files = [word for file in self.files for word in ("--file", file)]
        return self.engine.run(*self.engine.compose, *files, "-p", PROJECT, *arguments)

    def job_ids(self) -> set[str]:
        return {job["id"] for job in self.weir.jobs()}

    def wait_until_ready(self) -> None:
        wait_for(lambda: self.job_ids() is not None, 240, "the gateway")

    def execute(self, service: str, *command: str) -> str:
        """What a command prints in a container; a learner's begins anew after a job.

        A command that runs while its container ends is killed with it, and exits with 137.
        """
        deadline = time.monotonic() + 180
        while True:
            try:
                return self.engine("exec", container(service), *command)
            except AssertionError as error:
                ended = any(words in str(error) for words in _CONTAINER_ENDED)
                if not ended or time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def first_process(self, service: str) -> int:
        """Its number on the host; 0 while there is none."""
        return int(self.engine("inspect", "--format", "{{.State.Pid}}", container(service)))

    def kill(self, service: str) -> None:
        """Kill a container's first process, and so all of them, and wait until it has another."""
        victim = self.first_process(service)
        assert victim, f"{service} does not run"  # 0 would be this very process and its kin
        os.kill(victim, signal.SIGKILL)

        def is_back() -> bool:
            return self.first_process(service) not in {0, victim}

        wait_for(is_back, 180, f"{service} to start again")

    def train(self, steps: int) -> str:
        """Submit a small job on the demo's model and tasks."""
        return self.submit(
            start="examples/arithmetic/base-model",
            held_out=TASKS.with_name("held_out.jsonl"),
            training={"steps": steps, "groups_per_step": 8, "checkpoint_every": 5},
            evaluation={"tasks": 32},
        )


def container(service: str) -> str:
    return f"{PROJECT}-{service}-1"


@pytest.fixture(scope="session")
def running_engine() -> Iterator[Engine]:
    """An engine that has the images: the five services', and those of other people."""
    container_engine = engine()
    base = re.findall(r"^ARG BASE=(.+)$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    container_engine.prepare("python", base[0])
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name, service in compose.items():
        if "build" not in service and name not in container_engine.cannot_make:
            container_engine.prepare(name, service["image"])
    container_engine.build(*tagged("gateway"))
    with ThreadPoolExecutor(2) as pool:  # what two images share is there before both are built
        for pair in (
            [tagged("grader"), ["learner", "--target", "engine"]],
            [tagged("rollout"), tagged("learner")],
            [tagged("environment")],
        ):
            list(pool.map(lambda job: container_engine.build(*job), pair))
    yield container_engine
    container_engine.tidy()


@pytest.fixture(scope="session")
def stack(running_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("compose")
    users = [f"redis_{user}" for user in USERS]
    names = ("redis_password", *users, "grafana_password", "environment_key", "api_keys")
    texts = {name: secrets.token_hex(16) for name in names}
    for name, text in texts.items():
        (folder / name).write_text(text)
    files = {name: {"file": str(folder / name)} for name in names}
    override = f"secrets: {json.dumps(files)}\n{running_engine.override}\n"
    (folder / "override.yml").write_text(override)
    folder.chmod(0o755)
    address = f"127.0.0.1:{next(free_ports())}"
    running_engine.environment |= {"WEIR_GATEWAY_PORT": address}
    stack = Stack(
        facts={"url": f"http://{address}", "api_key": texts["api_keys"]},
        engine=running_engine,
        files=("docker-compose.yml", str(folder / "override.yml")),
    )
    services = stack.compose(*_ALL, "config", "--services").split()
    stack.services = tuple(name for name in services if name not in running_engine.cannot_make)
    with running_engine.serving():
        try:
            stack.compose("up", "--detach", "--no-build", *stack.services)
            stack.wait_until_ready()
            yield stack
        finally:
            (folder / "containers.log").write_text(stack.compose("logs", "--no-color"))
            stack.compose(*_ALL, "down", "--volumes", "--timeout", "5")


@pytest.fixture(scope="session")
def trained(stack: Stack) -> Json:
    return stack.wait_for_end(stack.train(steps=10))


def tagged(service: str) -> list[str]:
    return [service, "--tag", f"weir/{service}"]
