"""Environment workers, as processes of the Python that has what environments need."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.processes import free_ports
from tests.architecture.project import ROOT
from tests.contract.environment.fake_door import FakeDoor, a_door
from tests.contract.valkey_server import Server

PYTHON = os.environ.get("WEIR_ENVIRONMENT_PYTHON") or str(ROOT / ".venv-environment/bin/python")
StartWorker = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def door() -> Iterator[FakeDoor]:
    with a_door() as door:
        yield door


@pytest.fixture
def start_worker(server: Server, door: FakeDoor, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts a worker for the door; variables change its environment."""
    started = list[subprocess.Popen[bytes]]()

    def start(**variables: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            **{"WEIR_REDIS_URL": server.url, "WEIR_DATA_DIR": str(tmp_path)},
            **{"WEIR_PORT": str(next(free_ports())), "WEIR_API_KEYS": "key"},
            **{"WEIR_GATEWAY_URL": door.url, "WEIR_ENVIRONMENT_COMMANDS": "on"},
            **{"WEIR_HEARTBEAT_S": "0.3", "WEIR_CLAIM_IDLE_S": "3"},
            **{"PYTHONPATH": f"{ROOT / 'proto'}{os.pathsep}{ROOT}", **variables},
        }
        started.append(subprocess.Popen([PYTHON, "-m", "services.environment"], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
