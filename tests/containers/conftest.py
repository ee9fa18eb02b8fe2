"""The images, built as they are, and one stack of the compose file that they run in."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import yaml
from protocol.recipe import load_recipe

from deploy.local import USERS
from tests.containers.engines import ROOT, Engine, engine

SERVICES = ("gateway", "grader", "rollout", "learner", "environment")
PROJECT = "weir-test"
_ALL = ("--profile", "environment")  # services, also those that are started on request
_CONTAINER_ENDED = ("running", "stopped container", "ended with 137")  # as podman says it
ENDED = {"succeeded", "failed", "cancelled"}
Json = dict[str, Any]


@dataclass
class Stack:
    engine: Engine
    files: tuple[str, ...]
    services: tuple[str, ...]  # those that can run here
    sdk: openai.OpenAI

    def compose(self, *arguments: str) -> str:
        files = [word for file in self.files for word in ("--file", file)]
        return self.engine.run(*self.engine.compose, *files, "-p", PROJECT, *arguments)

    def up(self) -> None:
        self.compose("up", "--detach", "--no-build", *self.services)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.sdk.fine_tuning.jobs.list(limit=1) is not None, 240, "the gateway")

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
        wait_until(
            lambda: self.first_process(service) not in {0, victim}, 180, f"{service} to start again"
        )

    def submit(self, steps: int) -> str:
        """A small job on the demo's model and tasks."""
        recipe = load_recipe(ROOT / "recipes/demo.toml").model_dump(mode="json")
        del recipe["tasks"]
        model = recipe["model"].pop("path")
        recipe["training"] |= {"steps": steps, "groups_per_step": 8, "checkpoint_every": 5}
        recipe["evaluation"] |= {"tasks": 32}
        files = {
            name: self.sdk.files.create(
                file=ROOT / f"examples/arithmetic/{name}.jsonl", purpose="fine-tune"
            ).id
            for name in ("train", "held_out")
        }
        return self.sdk.fine_tuning.jobs.create(
            model=model,
            training_file=files["train"],
            validation_file=files["held_out"],
            extra_body={"recipe": recipe},
        ).id

    def job(self, job_id: str) -> Json:
        return self.sdk.fine_tuning.jobs.retrieve(job_id).model_dump()

    def wait_for_step(self, job_id: str, step: int) -> None:
        def reached() -> bool:
            job = self.job(job_id)
            assert job["status"] not in ENDED, job
            return job["weir"]["step"] >= step

        wait_until(reached, 240, f"step {step}")

    def wait_for_end(self, job_id: str) -> Json:
        wait_until(lambda: self.job(job_id)["status"] in ENDED, 400, f"the end of {job_id}")
        return self.job(job_id)


def container(service: str) -> str:
    return f"{PROJECT}-{service}-1"


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait, also through the time when the gateway is not there."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except (openai.APIConnectionError, openai.InternalServerError):
            pass
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


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
    port, key = free_port(), secrets.token_hex(16)
    passwords = ("redis_password", *(f"redis_{user}" for user in USERS), "grafana_password")
    of_test = {name: secrets.token_hex(16) for name in passwords}
    of_test["environment_key"] = secrets.token_hex(16)
    for name, text in (of_test | {"api_keys": key}).items():
        (folder / name).write_text(text)
    named = {name: {"file": str(folder / name)} for name in (*of_test, "api_keys")}
    override = f"secrets: {json.dumps(named)}\n{running_engine.override}\n"
    (folder / "override.yml").write_text(override)
    folder.chmod(0o755)
    running_engine.environment |= {"WEIR_GATEWAY_PORT": f"127.0.0.1:{port}"}
    sdk = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)
    described = Stack(running_engine, ("docker-compose.yml", str(folder / "override.yml")), (), sdk)
    names = described.compose(*_ALL, "config", "--services").split()
    described.services = tuple(name for name in names if name not in running_engine.cannot_make)
    with running_engine.serving():
        try:
            described.up()
            yield described
        finally:
            (folder / "containers.log").write_text(described.compose("logs", "--no-color"))
            described.compose(*_ALL, "down", "--volumes", "--timeout", "5")


@pytest.fixture(scope="session")
def trained(stack: Stack) -> Json:
    return stack.wait_for_end(stack.submit(steps=10))


def tagged(service: str) -> list[str]:
    return [service, "--tag", f"weir/{service}"]
