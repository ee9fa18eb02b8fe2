"""What a placement asks of a cluster's nodes, and how a cluster without a line is divided."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.cluster_nodes import bundle_of, choose_on, in_words, names_of
from deploy.launches import Launch, launches
from deploy.placement import PlacementError, parse


def a_node(address: str, gpus: int, *names: str, alive: bool = True) -> dict[str, Any]:
    """As `ray.nodes` tells of one."""
    named = {f"node:{name}": 1.0 for name in (*names, address, "__internal_head__")}
    return {
        "Alive": alive,
        "NodeManagerAddress": address,
        "Resources": {"CPU": 8.0, **({"GPU": float(gpus)} if gpus else {}), **named},
    }


BOX = [a_node("10.0.0.1", 4), a_node("10.0.0.2", 4, "b"), a_node("10.0.0.9", 8, alive=False)]


def test_a_node_goes_by_its_address_and_by_its_given_names() -> None:
    assert names_of(BOX[1]) == ["10.0.0.2", "b"]
    for name in names_of(BOX[1]):
        placement = choose_on(BOX, {"WEIR_GPUS": f"learner=10.0.0.1:0-3 rollout={name}:0-3"})
        assert placement.rollouts[0].node == name


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("learner=b:0-3 rollout=10.0.0.9:0", "there is no node '10.0.0.9', only 10.0.0.1"),
        ("learner=b:0-3 rollout=10.0.0.1:0-5", "GPU 10.0.0.1:4 is not there"),
        ("learner=b:0-3 rollout=10.0.0.1:0,1", "nobody has 10.0.0.1:2-3"),
        ("learner=0 rollout=0@0.4", "on a cluster no GPU can be shared"),
    ],
)
def test_what_a_cluster_does_not_have_is_told(line: str, words: str) -> None:
    with pytest.raises(PlacementError, match=words):
        choose_on(BOX, {"WEIR_GPUS": line})


def test_a_cluster_without_a_line_is_divided() -> None:
    assert str(choose_on(BOX, {})).startswith("learner=10.0.0.1:0-3 rollout=b:0 rollout=b:1")
    with pytest.raises(PlacementError, match="no GPU can be shared"):
        choose_on([a_node("10.0.0.1", 1)], {})
    on_cpus = choose_on([a_node("10.0.0.1", 0)], {"WEIR_ROLLOUTS": "2"})
    assert (on_cpus.uses_gpus, len(on_cpus.rollouts)) == (False, 2)


def test_a_process_takes_its_gpus_of_its_node_and_graders_take_none() -> None:
    placement = parse("learner=a:0-3,b:0-3 rollout=b:4,5")
    made = {each.name: each for each in launches(placement, {}, {"WEIR_GRADERS": "2"})}
    assert set(made) == {"gateway", "grader-0", "grader-1", "rollout-0", "learner-0", "learner-1"}
    assert bundle_of(made["learner-1"]) == {"CPU": 4, "GPU": 4, "node:b": 0.001}
    assert bundle_of(made["grader-0"]) == {"CPU": 1}
    assert in_words([bundle_of(made["rollout-0"])]) == "1 CPUs 2 GPUs on node b"
    assert "CUDA_VISIBLE_DEVICES" not in made["rollout-0"].environment, "Ray chooses"


def test_a_launch_runs_by_the_python_of_its_node() -> None:
    launch = Launch("judge", "judge", ("{python}", "-m", "x", "--port", "{port}"))
    python, *rest = launch.command_at(7)
    assert python.endswith(("python", "python3", "python3.11", "python3.12"))
    assert rest == ["-m", "x", "--port", "7"]
