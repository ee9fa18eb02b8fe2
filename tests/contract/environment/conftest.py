"""A gateway and a rollout whose model counts, and environment workers as processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from protocol.exchange import Exchange
from protocol.messages import Episode, RolloutGroup
from protocol.streams import ROLLOUTS, Stream

from deploy.processes import free_ports
from tests.architecture.project import ROOT
from tests.builders import a_request, a_task
from tests.contract.exchange_steps import activate, until
from tests.contract.gateway.fake_rollout import FakeRollout, a_rollout
from tests.contract.gateway.stack import KEY, Stack, a_gateway
from tests.contract.valkey_server import Server

PYTHON = os.environ.get("WEIR_ENVIRONMENT_PYTHON") or str(ROOT / ".venv-environment/bin/python")
TASKSET = "tests.contract.environment.tasksets"
JOBS = (f"ftjob-{number}" for number in count())


@dataclass
class Player:
    """Environment workers, and jobs whose episodes they play."""

    exchange: Exchange
    stack: Stack
    rollout: FakeRollout
    data_dir: Path
    port: str = field(default_factory=lambda: str(next(free_ports())))
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, **variables: str) -> subprocess.Popen[bytes]:
        """A worker; variables change its environment."""
        environment = os.environ | {
            "WEIR_REDIS_URL": self.stack.server.url,
            "WEIR_DATA_DIR": str(self.data_dir),
            "WEIR_PORT": self.port,
            "WEIR_ENVIRONMENT_KEY": KEY,
            "WEIR_GATEWAY_URL": self.stack.url,
            "WEIR_HEARTBEAT_S": "0.3",
            "WEIR_CLAIM_IDLE_S": "3",
            "WEIR_DRAIN_S": "0",
            "WEIR_ENVIRONMENT_COMMANDS": "on",
            "WEIR_ENVIRONMENT_TASKSETS": TASKSET,
            "WEIR_ENVIRONMENT_HOSTS": "127.0.0.1:*",
            "PYTHONPATH": f"{ROOT / 'proto'}:{ROOT}",
            **variables,
        }
        command = [PYTHON, "-m", "services.environment"]
        self.workers.append(subprocess.Popen(command, env=environment))
        return self.workers[-1]

    async def ask(
        self, *, groups: int = 1, size: int = 1, task: Any = None, **environment: Any
    ) -> str:
        """Request groups for a new job, where there is a worker; return its id."""
        if not self.workers:
            self.start()
        job_id = next(JOBS)
        rollout = {"group_size": max(2, size), "sampling": {"max_tokens": 8}}
        await activate(self.exchange, job_id, environment=environment, rollout=rollout)
        for number in range(groups):
            request = a_request(
                job_id=job_id,
                number=number,
                group_size=size,
                task=a_task(**(task or {})),
                in_environment=True,
                min_version=3,
            )
            await self.exchange.ask(request)
        return job_id

    async def receive(
        self, job_id: str, num: int = 1, stream: Stream = ROLLOUTS, within_s: float = 60
    ) -> list[Any]:
        messages = list[Any]()

        async def have_come() -> bool:
            for delivery in await self.exchange.claim([stream], job_id, count=16, wait_s=0.1):
                messages.append(delivery.message())
            return len(messages) >= num

        await until(have_come, within_s)
        return messages

    async def group(self, **environment: Any) -> RolloutGroup:
        (group,) = await self.receive(await self.ask(**environment))
        return group

    async def episode(self, **environment: Any) -> Episode:
        """The only one of the only group."""
        (episode,) = list_episodes(await self.group(**environment))
        return episode


def list_episodes(*groups: RolloutGroup) -> list[Episode]:
    responses = (response for group in groups for response in group.responses)
    return [response.episode for response in responses if response.episode is not None]


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
def player(exchange: Exchange, stack: Stack, tmp_path: Path) -> Iterator[Player]:
    with a_rollout(stack) as rollout:
        player = Player(exchange, stack, rollout, tmp_path / "data")
        yield player
        for worker in player.workers:
            worker.terminate()
            worker.wait(timeout=60)
