"""One real stack for all tests of this folder, and a way to send it jobs and to look inside."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import pytest
from protocol.recipe import load_recipe

from weir.client import WeirClient, WeirError

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "examples/arithmetic/train.jsonl"
BASE_MODEL = str(ROOT / "examples/arithmetic/base-model")
ENDED = {"succeeded", "failed", "cancelled"}
PROGRAMS = {
    "gateway": "services.gateway",
    "grader": "services.grader",
    "rollout": "services.rollout",
    "learner": "services.learner",
    "environment": "services.environment",
    "valkey": "valkey-server",
}
Json = dict[str, Any]


@dataclass(kw_only=True)
class Jobs:
    """The jobs of a stack, wherever it runs."""

    facts: Json = field(default_factory=dict)  # its url and an api_key

    def client(self) -> WeirClient:
        return WeirClient(self.facts["url"], self.facts["api_key"])

    @cached_property
    def weir(self) -> WeirClient:
        return self.client()

    def submit(
        self,
        *,
        tasks: Path = TASKS,
        held_out: Path | None = None,
        start: str = BASE_MODEL,
        **changes: Json,
    ) -> str:
        """A small job on the arithmetic model; ``changes`` go into the recipe's tables."""
        recipe = load_recipe(ROOT / "recipes/demo.toml").model_dump(mode="json")
        tables = {
            "training": {"steps": 24, "groups_per_step": 4, "checkpoint_every": 4},
            "rollout": {"group_size": 4},
        }
        for table in {*tables, *changes}:
            changed = {**tables.get(table, {}), **changes.get(table, {})}
            recipe[table] = {**(recipe[table] or {}), **changed}
        del recipe["tasks"], recipe["model"]["path"]
        body = {
            "model": start,
            "training_file": self.weir.upload(tasks),
            "recipe": recipe,
        }
        if held_out:
            body["validation_file"] = self.weir.upload(held_out)
        else:
            del recipe["evaluation"]
        return self.weir.submit(body)["id"]

    def step(self, job_id: str) -> int:
        job = self.weir.job(job_id)
        assert job["status"] not in ENDED - {"succeeded"}, job["error"]
        return job["weir"]["step"]

    def wait_for_step(
        self,
        job_id: str,
        step: int,
        timeout_s: float = 300,
    ) -> None:
        wait_for(lambda: self.step(job_id) >= step, timeout_s, f"step {step}")

    def wait_for_end(self, job_id: str, timeout_s: float = 400) -> Json:
        def has_ended() -> bool:
            return self.weir.job(job_id)["status"] in ENDED

        wait_for(has_ended, timeout_s, f"the end of {job_id}")
        return self.weir.job(job_id)

    def cancel(self, job_id: str) -> Json:
        self.weir.cancel(job_id)
        return self.wait_for_end(job_id)

    def metrics(self, job_id: str) -> list[Json]:
        """The data of its metrics events so far."""
        events = self.weir.past_events(job_id)
        return [event["data"] for event in events if event["type"] == "metrics"]


@dataclass(kw_only=True)
class Stack(Jobs):
    home: Path
    supervisor: subprocess.Popen[bytes]

    def wait_until_up(self, timeout_s: float = 400) -> None:
        def is_up() -> bool:
            assert self.supervisor.poll() is None, "the stack does not start; see its words"
            return (self.home / "stack.json").exists()

        wait_for(is_up, timeout_s, "stack.json")
        self.facts = json.loads((self.home / "stack.json").read_text())

    def leaders(self) -> dict[str, int]:
        """The process that the supervisor runs under each name now."""
        leaders = {}
        for process in psutil.Process(self.supervisor.pid).children():
            with suppress(psutil.Error):  # it has ended
                line = " ".join(process.cmdline())
                leaders |= {name: process.pid for name in PROGRAMS if PROGRAMS[name] in line}
        return leaders

    def kill(self, name: str) -> None:
        os.kill(self.leaders()[name], signal.SIGKILL)

    def job_folder(self, job_id: str) -> Path:
        return self.home / "data" / "jobs" / job_id


def wait_for(condition: Callable[[], object], timeout_s: float, event: str) -> None:
    """Wait, also through the time when the gateway is not there."""
    deadline = time.monotonic() + timeout_s
    while True:
        with suppress(WeirError):
            if condition():
                return
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {event}"
        time.sleep(0.3)


def of_home(home: Path) -> set[int]:
    """Every living process that carries this stack's folder in its environment."""
    processes = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended
            if process.environ().get("WEIR_HOME") == str(home):
                processes.add(process.pid)
    return processes


def variables(home: Path) -> dict[str, str]:
    """The environment of a stack and of what talks to it."""
    return os.environ | {
        "WEIR_HOME": str(home),
        "WEIR_MODEL_ROOTS": f"{ROOT}{os.pathsep}{home / 'models'}",
        "WEIR_CLAIM_IDLE_S": "3",
        "WEIR_HEARTBEAT_S": "0.5",
        "WEIR_NICENESS": "0",  # the machine may be busy
        "SPT_NOENV": "1",  # a process that sets its title keeps its environment, for `of_home`
        "PYTHONPATH": os.pathsep.join([str(ROOT / "proto"), str(ROOT)]),
    }


def start(home: Path, *command: str, **environment: str) -> Stack:
    """A stack of processes, or what another module of deploy/ makes of it."""
    supervisor = subprocess.Popen(
        [sys.executable, "-m", *(command or ("deploy.local", "up"))],
        cwd=ROOT,
        env=variables(home) | environment,
    )
    return Stack(home=home, supervisor=supervisor)


@contextmanager
def a_stack(home: Path, **environment: str) -> Iterator[Stack]:
    """A stack of processes that is up; what it has stored goes with it."""
    running = start(home, **environment)
    try:
        running.wait_until_up()
        yield running
    finally:
        running.supervisor.terminate()
        running.supervisor.wait(240)
        shutil.rmtree(home / "data", ignore_errors=True)


@pytest.fixture(scope="session")
def operator() -> dict[str, str]:
    """Secrets in the variables of the person who starts the stack."""
    names = ("WEIR_API_KEYS", "WEIR_JUDGE_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")
    return {name: secrets.token_hex(16) for name in names}


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, operator: dict[str, str]) -> Iterator[Stack]:
    with a_stack(tmp_path_factory.mktemp("stack"), **operator) as stack:
        yield stack
