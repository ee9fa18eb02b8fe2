"""What a placement asks of the nodes of a Ray cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deploy.launches import Launch, model_roots
from deploy.placement import (
    Placement,
    PlacementError,
    divide_nodes,
    on_cpus,
    parse,
)

_FORWARDED = ("WEIR_", "DS_", "GLOO_", "HF_", "NCCL_", "OMP_", "VLLM_")  # variables of the driver


def is_of_team(launch: Launch, placement: Placement) -> bool:
    """Whether it is one of the launchers of a learner on several nodes."""
    return launch.role == "learner" and len(placement.learner) > 1


def followers_of(placement: Placement) -> set[str]:
    """Of a learner on several nodes all launchers but the first, the only one that serves."""
    return {f"learner-{node}" for node in range(1, len(placement.learner))}


def shared_variables(
    environment: Mapping[str, str], keys: str, placement: Placement
) -> dict[str, str]:
    """What every process gets, wherever it runs: what the driver has, and its API keys."""
    forwarded = {
        name: text
        for name, text in environment.items()
        if name.startswith(_FORWARDED) and name != "WEIR_API_KEYS_FILE"
    }
    return {
        "WEIR_HOST": "0.0.0.0",
        "OMP_NUM_THREADS": "1",
        "WEIR_WEIGHTS": "delta",
        "PYTHONUNBUFFERED": "1",
        **forwarded,
        "WEIR_MODEL_ROOTS": model_roots(environment),
        "WEIR_API_KEYS": keys,
        "WEIR_GPUS": str(placement) if placement.uses_gpus else "",
    }


def bundle_of(launch: Launch) -> dict[str, float]:
    """What a process takes of its node; Ray gives each node a resource that bears its name."""
    assigned = launch.bundle
    bundle: dict[str, float] = {"CPU": assigned.ranks if assigned else 1}
    if assigned and assigned.gpus:
        bundle["GPU"] = len(assigned.gpus)
    if assigned and assigned.node:
        bundle[f"node:{assigned.node}"] = 0.001
    return bundle


def choose_on(nodes: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> Placement:
    """The placement that WEIR_GPUS asks for on a cluster's nodes, else a sensible one.

    Args:
        nodes: as `ray.nodes` lists them. A node's names are its address, and ``x`` if it was
            started with the resource ``node:x``.
        environment: with WEIR_GPUS, or the counts of processes where there is no GPU.

    Raises:
        PlacementError: naming every problem.
    """
    alive = [node for node in nodes if node["Alive"]]
    line = environment.get("WEIR_GPUS", "")
    if not line:
        gpus = {names_of(node)[-1]: _gpus(node) for node in alive}
        if any(gpus.values()):
            return _divided(gpus)
        return on_cpus(environment)
    by_any_name = {name: _gpus(node) for node in alive for name in names_of(node)}
    placement = parse(line, by_any_name if ":" in line else None)
    if any(bundle.share is not None for bundle in placement.bundles):
        raise PlacementError(f"WEIR_GPUS={line!r}: on a cluster no GPU can be shared")
    return placement


def _divided(gpus: Mapping[str, int]) -> Placement:
    if sum(gpus.values()) == 1:
        raise PlacementError("the cluster has one GPU, and on a cluster no GPU can be shared")
    return divide_nodes(gpus)


def names_of(node: Mapping[str, Any]) -> list[str]:
    """The address of a node, then the names it was given."""
    given = [
        name.removeprefix("node:")
        for name in node["Resources"]
        if name.startswith("node:") and not name.startswith("node:__")
    ]
    return sorted(given, key=lambda name: name != node["NodeManagerAddress"])


def _gpus(node: Mapping[str, Any]) -> int:
    return int(node["Resources"].get("GPU", 0))


def in_words(bundles: Sequence[Mapping[str, float]]) -> str:
    """Resources for people: ``1 CPUs 4 GPUs on node a``."""

    def words(bundle: Mapping[str, float]) -> Iterator[str]:
        for name, amount in sorted(bundle.items()):
            if name in {"CPU", "GPU"}:
                yield f"{amount:g} {name}s"
            elif name.startswith("node:") and amount < 1:
                yield f"on node {name.removeprefix('node:')}"

    return "; ".join(" ".join(words(bundle)) for bundle in bundles)
