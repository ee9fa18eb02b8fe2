"""The stack on a Ray cluster of three nodes, two of which die while a job runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.state import list_actors

from tests.contract.valkey_server import Server
from tests.stack.conftest import of_home, start, wait_for
from tests.stack.test_stack import ENDLESS, assert_every_group_is_accounted_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]
QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 5,
}
PLACEMENT = "learner=a:0,c:0 rollout=a:1 rollout=b:0 idle=b:1,c:1"


@dataclass
class Nodes:
    """A cluster of raylets on this machine, by name."""

    cluster: Cluster
    running: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, name: str, **settings: Any) -> None:
        self.running[name] = self.cluster.add_node(
            num_cpus=4, num_gpus=2, resources={f"node:{name}": 1}, **settings
        )

    def kill(self, name: str) -> None:
        """kill -9 of a raylet, with which its workers go."""
        self.cluster.remove_node(self.running.pop(name), allow_graceful=False)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Three nodes; their GPUs are declared and not there, so all compute on the CPU."""
    made = Nodes(Cluster())
    try:
        made.add("a", include_dashboard=True, _system_config=QUICK_TO_NOTICE)
        made.add("b")
        made.add("c")
        yield made
    finally:
        ray.shutdown()
        made.cluster.shutdown()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


def nodes_of(actors: str) -> set[str]:
    """The nodes on which the actors whose names begin so are alive."""
    alive: list[Any] = list_actors(filters=[("state", "=", "ALIVE")])
    return {actor.node_id for actor in alive if str(actor.name).startswith(actors)}


def test_a_job_survives_the_death_of_a_node_that_samples_and_of_one_that_learns(
    nodes: Nodes, server: Server, tmp_path: Path
) -> None:
    stack = start(
        tmp_path / "home",
        "deploy.ray_cluster",
        nodes.address,
        WEIR_GPUS=PLACEMENT,
        WEIR_GRADERS="2",
        WEIR_ENVIRONMENTS="1",
        WEIR_REDIS_URL=server.url,
        WEIR_DATA_DIR=str(tmp_path / "home" / "data"),
        DS_ACCELERATOR="cpu",
    )
    try:
        stack.wait_until_up(240)
        ray.init(address=nodes.address)
        assert len(nodes_of("weir-rollout")) == len(nodes_of("weir-learner")) == 2
        assert len(nodes_of("weir-grader")) == 2
        assert len(nodes_of("weir-environment")) == 1
        job_id = stack.submit(training=ENDLESS)
        stack.wait_for_step(job_id, 2)
        step = stack.job(job_id)["weir"]["step"]
        nodes.kill("b")
        stack.wait_for_step(job_id, step + 3)  # two steps' groups may have been there already
        nodes.kill("c")
        wait_for(lambda: len(nodes_of("weir-learner")) < 2, 240, "the death of a rank")
        step = stack.job(job_id)["weir"]["step"]
        nodes.add("c")
        stack.wait_for_step(job_id, step + 1)
        assert stack.job(job_id)["weir"]["attempt"] >= 2
        assert_every_group_is_accounted_for(stack, job_id)
    finally:
        os.kill(stack.supervisor.pid, signal.SIGTERM)
        assert stack.supervisor.wait(240) == 0
    wait_for(lambda: not of_home(stack.home), 240, "the processes of the stack to end")
    assert not (stack.home / "stack.json").exists()
