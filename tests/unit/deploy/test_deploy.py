"""Alerts speak of metrics that exist, and `weir up` starts what the environment says."""

import re
from pathlib import Path

from deploy.local import Process, describe_stack

ROOT = Path(__file__).parents[3]
SOURCE = "\n".join(
    path.read_text() for folder in ("services", "proto") for path in (ROOT / folder).rglob("*.py")
)


def test_rules_name_metrics_that_exist() -> None:
    rules = (ROOT / "deploy/prometheus/rules.yml").read_text()
    named = set(re.findall(r"\bweir_[a-z_]+", rules))
    assert len(named) >= 4
    defined = {name.removesuffix("_total") for name in re.findall(r'"(weir_[a-z_]+)"', SOURCE)}
    assert {name.removesuffix("_total") for name in named} <= defined


def test_two_stacks_side_by_side_share_no_port_and_no_secret(tmp_path: Path) -> None:
    one, other = (describe_stack({"WEIR_HOME": str(tmp_path / name)}) for name in "ab")
    ports = [process.port for stack in (one, other) for process in stack.processes]
    assert len(set(ports)) == len(ports)
    assert one.api_key != other.api_key
    assert one.api_key == describe_stack({"WEIR_HOME": str(tmp_path / "a")}).api_key


def test_a_stack_has_as_many_processes_as_the_environment_says(tmp_path: Path) -> None:
    counts = {"WEIR_HOME": str(tmp_path), "WEIR_ROLLOUTS": "2", "WEIR_GRADERS": "3"}
    ranks = {"WEIR_LEARNER_RANKS": "2"}
    names = [p.name for p in describe_stack({**counts, **ranks}).processes]
    assert names[:2] == ["valkey", "gateway"]
    assert sum(name.startswith("rollout") for name in names) == 2
    assert sum(name.startswith("grader") for name in names) == 3
    learner: Process = describe_stack({**counts, **ranks}).processes[-1]
    assert "torch.distributed.run" in learner.command
