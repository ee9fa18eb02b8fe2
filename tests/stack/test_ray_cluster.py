"""The stack on a Ray cluster of three nodes, two of which die while a job runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.state import list_actors

from tests.contract.valkey_server import Server
from tests.stack.conftest import of_home, start, wait_for
from tests.stack.test_stack import ENDLESS, assert_every_group_is_accounted_for, wait_for_more_steps

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]
QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 5,
}
PLACEMENT = "learner=a:0,c:0 rollout=a:1 rollout=b:0 idle=b:1,c:1"


def add_node(cluster: Cluster, name: str, **settings: Any) -> Any:
    """A raylet whose GPUs are declared and not there, so all compute on the CPU."""
    return cluster.add_node(
        num_cpus=4,
        num_gpus=2,
        resources={f"node:{name}": 1},
        **settings,
    )


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        add_node(cluster, "a", include_dashboard=True, _system_config=QUICK_TO_NOTICE)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def nodes_of(actors: str) -> set[str]:
    """The nodes on which the actors whose names begin so are alive."""
    alive: list[Any] = list_actors(filters=[("state", "=", "ALIVE")])
    return {actor.node_id for actor in alive if str(actor.name).startswith(actors)}


def test_a_job_survives_the_death_of_a_node_that_samples_and_of_one_that_learns(
    cluster: Cluster, tmp_path: Path
) -> None:
    nodes = {name: add_node(cluster, name) for name in "bc"}
    address = str(cluster.address)
    with Server(tmp_path) as server:
        stack = start(
            tmp_path / "home",
            "deploy.ray_cluster",
            address,
            WEIR_GPUS=PLACEMENT,
            WEIR_GRADERS="2",
            WEIR_ENVIRONMENTS="1",
            WEIR_REDIS_URL=server.url,
            WEIR_DATA_DIR=str(tmp_path / "home" / "data"),
            DS_ACCELERATOR="cpu",
        )
        try:
            stack.wait_until_up(600)
            ray.init(address=address)
            services = {"rollout": 2, "learner": 2, "grader": 2, "environment": 1}
            assert {name: len(nodes_of(f"weir-{name}")) for name in services} == services
            job_id = stack.submit(training=ENDLESS)
            stack.wait_for_step(job_id, 2)
            step = stack.step(job_id)
            cluster.remove_node(nodes["b"], allow_graceful=False)  # kill -9 of it and its workers
            wait_for_more_steps(stack, job_id, step, "the death of b")
            cluster.remove_node(nodes["c"], allow_graceful=False)
            wait_for(lambda: len(nodes_of("weir-learner")) < 2, 240, "the death of a rank")
            step = stack.step(job_id)
            add_node(cluster, "c")
            stack.wait_for_step(job_id, step + 1)
            assert stack.weir.job(job_id)["weir"]["attempt"] >= 2
            assert_every_group_is_accounted_for(stack, job_id)
        finally:
            stack.supervisor.terminate()
            assert stack.supervisor.wait(240) == 0
    wait_for(lambda: not of_home(stack.home), 240, "the processes of the stack to end")
    assert not (stack.home / "stack.json").exists()
