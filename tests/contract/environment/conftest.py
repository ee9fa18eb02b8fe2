"""A gateway and a rollout whose model counts, and environment workers as processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.processes import free_ports
from tests.architecture.project import ROOT
from tests.contract.gateway.fake_rollout import FakeRollout, a_rollout
from tests.contract.gateway.stack import KEY, Stack, a_gateway
from tests.contract.valkey_server import Server

PYTHON = os.environ.get("WEIR_ENVIRONMENT_PYTHON") or str(ROOT / ".venv-environment/bin/python")
TASKSET = "tests.contract.environment.tasksets"
StartWorker = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with (
        Server(tmp_path_factory.mktemp("valkey")) as server,
        a_gateway(server, tmp_path_factory.mktemp("gateway")) as stack,
    ):
        yield stack


@pytest.fixture
def server(stack: Stack) -> Server:
    return stack.server


@pytest.fixture
def rollout(stack: Stack) -> Iterator[FakeRollout]:
    with a_rollout(stack) as rollout:
        yield rollout


@pytest.fixture
def worker_port() -> str:
    return str(next(free_ports()))


@pytest.fixture
def start_worker(
    stack: Stack, rollout: FakeRollout, worker_port: str, tmp_path: Path
) -> Iterator[StartWorker]:
    """Starts a worker; variables change its environment."""
    started = list[subprocess.Popen[bytes]]()

    def start(**variables: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            **{"WEIR_REDIS_URL": stack.server.url, "WEIR_DATA_DIR": str(tmp_path / "data")},
            **{
                "WEIR_PORT": worker_port,
                "WEIR_ENVIRONMENT_KEY": KEY,
                "WEIR_GATEWAY_URL": stack.url,
            },
            **{"WEIR_HEARTBEAT_S": "0.3", "WEIR_CLAIM_IDLE_S": "3", "WEIR_DRAIN_S": "0"},
            **{"WEIR_ENVIRONMENT_COMMANDS": "on", "PYTHONPATH": f"{ROOT / 'proto'}:{ROOT}"},
            **{"WEIR_ENVIRONMENT_TASKSETS": TASKSET, "WEIR_ENVIRONMENT_HOSTS": "127.0.0.1:*"},
            **variables,
        }
        started.append(subprocess.Popen([PYTHON, "-m", "services.environment"], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(timeout=60)
