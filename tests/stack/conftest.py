"""One real stack for all tests of this folder, and a way to send it jobs and to look inside."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from protocol.recipe import load_recipe

from weir.client import WeirClient

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "examples/arithmetic/train.jsonl"
BASE_MODEL = str(ROOT / "examples/arithmetic/base-model")
SERVICES = ("gateway", "grader", "rollout", "learner")
Json = dict[str, Any]


@dataclass
class Stack:
    home: Path
    supervisor: subprocess.Popen[bytes]
    facts: Json = field(default_factory=dict)

    def wait_until_up(self, timeout_s: float = 400) -> None:
        def is_up() -> bool:
            assert self.supervisor.poll() is None, "the stack does not start; see its words"
            return (self.home / "stack.json").exists()

        wait_for(is_up, timeout_s, "stack.json")
        self.facts = json.loads((self.home / "stack.json").read_text())

    def client(self) -> WeirClient:
        return WeirClient(self.facts["url"], self.facts["api_key"])

    def metrics(self) -> dict[str, str]:
        """The service by the address of each of its processes, for a Prometheus."""
        return {
            httpx.URL(url).netloc.decode(): name.partition("-")[0]
            for name, url in self.facts["metrics"].items()
        }

    def leaders(self) -> dict[str, int]:
        """The process that the supervisor runs under each name now."""
        programs = {name: f"services.{name}" for name in (*SERVICES, "environment")} | {
            "valkey": "valkey-server"
        }
        found = {}
        for process in psutil.Process(self.supervisor.pid).children():
            with suppress(psutil.Error):  # it has ended
                line = " ".join(process.cmdline())
                found |= {name: process.pid for name in programs if programs[name] in line}
        return found

    def kill(self, name: str) -> int:
        victim = self.leaders()[name]
        os.kill(victim, signal.SIGKILL)
        return victim

    def submit(self, *, tasks: Path = TASKS, start: str = BASE_MODEL, **changes: Json) -> str:
        """A small job on the arithmetic model; ``changes`` go into the recipe's tables."""
        recipe = load_recipe(ROOT / "recipes/demo.toml").model_dump(mode="json")
        tables = {
            "training": {"steps": 24, "groups_per_step": 4, "checkpoint_every": 4},
            "rollout": {"group_size": 4},
        }
        for table in {*tables, *changes}:
            changed = {**tables.get(table, {}), **changes.get(table, {})}
            recipe[table] = {**(recipe[table] or {}), **changed}
        del recipe["evaluation"], recipe["tasks"], recipe["model"]["path"]
        with self.client() as weir:
            body = {
                "model": start,
                "training_file": weir.upload(tasks),
                "recipe": recipe,
            }
            return weir.submit(body)["id"]

    def job(self, job_id: str) -> Json:
        with self.client() as weir:
            return weir.job(job_id)

    def wait_for_step(self, job_id: str, step: int, timeout_s: float = 300) -> None:
        def reached() -> bool:
            job = self.job(job_id)
            assert job["status"] != "failed", job["error"]
            return job["weir"]["step"] >= step

        wait_for(reached, timeout_s, f"step {step}")

    def wait_for_end(self, job_id: str, timeout_s: float = 400) -> Json:
        ended = {"succeeded", "failed", "cancelled"}
        wait_for(lambda: self.job(job_id)["status"] in ended, timeout_s, f"the end of {job_id}")
        return self.job(job_id)

    def cancel(self, job_id: str) -> Json:
        with self.client() as weir:
            weir.cancel(job_id)
        return self.wait_for_end(job_id)

    def events(self, job_id: str) -> list[Json]:
        with self.client() as weir:
            return list(weir.events(job_id))

    def job_folder(self, job_id: str) -> Path:
        return self.home / "data" / "jobs" / job_id


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.3)


def of_home(home: Path) -> set[int]:
    """Every living process that carries this stack's folder in its environment."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended
            if process.environ().get("WEIR_HOME") == str(home):
                found.add(process.pid)
    return found


def start(home: Path, *command: str, **environment: str) -> Stack:
    """A stack of processes, or what another module of deploy/ makes of it."""
    settings = {
        "WEIR_HOME": str(home),
        "WEIR_MODEL_ROOTS": f"{ROOT}{os.pathsep}{home / 'models'}",
        "WEIR_CLAIM_IDLE_S": "3",
        "WEIR_HEARTBEAT_S": "0.5",
        "WEIR_NICENESS": "0",  # the machine may be busy
        "SPT_NOENV": "1",  # a process that sets its title keeps its environment, for `of_home`
        "PYTHONPATH": os.pathsep.join([str(ROOT / "proto"), str(ROOT)]),
    }
    supervisor = subprocess.Popen(
        [sys.executable, "-m", *(command or ("deploy.local", "up"))],
        cwd=ROOT,
        env={**os.environ, **settings, **environment},
    )
    return Stack(home, supervisor)


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
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with a_stack(tmp_path_factory.mktemp("stack")) as stack:
        yield stack
