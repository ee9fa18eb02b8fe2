"""Where a job would run: what the options and the environment say of a box."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from protocol import recipe

from services.learner.planning.machine import (
    GIB,
    Here,
    Machine,
    Options,
    PlanError,
    machine_of,
)

EIGHT = [f"nvidia{index}" for index in range(8)] + ["nvidiactl"]
LAPTOP = 16 * GIB
NAMED = recipe.Machine(gpus="learner=0-3 rollout=4-7", gpu_memory=141, host_memory=2000)


def machine(gpus: str | None = None, devices: Sequence[str] = (), **variables: str) -> Machine:
    return machine_of(Options(gpus), None, variables, Here(tuple(devices), LAPTOP))


@pytest.mark.parametrize(
    ("gpus", "variables", "devices", "line", "how"),
    [
        ("8", {}, [], "learner=0-3 rollout=4 rollout=5 rollout=6 rollout=7", "--gpus 8"),
        ("1", {}, EIGHT, "learner=0 rollout=0@0.4", "--gpus 1"),
        ("learner=0,1 rollout=2-3", {}, EIGHT, "learner=0-1 rollout=2-3", "as --gpus says"),
        (None, {"WEIR_GPUS": "learner=a:0,b:0 rollout=b:1"}, EIGHT, None, "as WEIR_GPUS says"),
        (None, {}, EIGHT[:2], "learner=0 rollout=1", "half of the GPUs learn"),
        (None, {"CUDA_VISIBLE_DEVICES": "5"}, EIGHT, "learner=0 rollout=0@0.4", "is shared"),
    ],
)
def test_the_placement_is_the_options_the_environments_or_the_machines(
    gpus: str | None, variables: dict[str, str], devices: list[str], line: str | None, how: str
) -> None:
    found = machine(gpus, devices, **variables)
    assert str(found.placement) == (line or variables["WEIR_GPUS"])
    assert how in found.how


def test_without_gpus_and_unless_the_recipe_names_a_machine_it_is_about_the_cpus_here() -> None:
    found = machine(WEIR_LEARNER_RANKS="2")
    assert (found.on_cpus, found.learner_gpus, found.host_bytes) == (True, 2, LAPTOP)
    assert found.engine_cache_bytes == 512 * 2**20
    assert "shows no GPU" in found.how


@pytest.mark.parametrize(
    ("here", "gpu_bytes", "host_bytes"),
    [
        (Here(("nvidia0",), LAPTOP, 24 * GIB), 24 * GIB, LAPTOP),
        (Here(("nvidia0",), LAPTOP), 141 * GIB, LAPTOP),  # whose driver says nothing
        (Here((), LAPTOP), 141 * GIB, 2000 * GIB),
    ],
)
def test_gpus_that_are_here_come_before_those_that_the_recipe_names(
    here: Here, gpu_bytes: int, host_bytes: int
) -> None:
    found = machine_of(Options(), NAMED, {}, here)
    assert (found.gpu_bytes, found.host_bytes) == (gpu_bytes, host_bytes)
    assert ("recipe" in found.how) == (not here.device_files)


def test_an_option_comes_before_all_else() -> None:
    here = Here(("nvidia0",), LAPTOP, 24 * GIB)
    found = machine_of(Options("8", 40.0, 500.0), NAMED, {"WEIR_GPUS": "learner=0"}, here)
    assert (found.gpu_bytes, found.host_bytes) == (40 * GIB, 500 * GIB)
    assert found.how == "as divided for --gpus 8"
    asked_of_here = machine_of(Options(None, 40.0), None, {}, here)
    assert (asked_of_here.gpu_bytes, asked_of_here.host_bytes) == (40 * GIB, LAPTOP)
    asked_of_a_box = machine_of(Options("8"), None, {}, here)  # not of this machine
    assert (asked_of_a_box.gpu_bytes, asked_of_a_box.host_bytes) == (80 * GIB, None)


@pytest.mark.parametrize("gpus", ["0", "9" * 30, "eight", "learner=0", "learner=0 rollout=0"])
def test_gpus_that_cannot_be_are_named(gpus: str) -> None:
    with pytest.raises(PlanError, match=r"^--gpus"):
        machine(gpus)
    wrong = recipe.Machine(gpus="learner=0", gpu_memory=80, host_memory=80)
    with pytest.raises(PlanError, match=r"^machine\.gpus"):
        machine_of(Options(), wrong, {}, Here())


def test_a_shared_gpu_leaves_the_learner_what_its_engine_leaves() -> None:
    apart, shared = machine("2"), machine("1")
    assert (apart.learner_bytes, apart.engine_bytes) == (72 * GIB, 72 * GIB)
    assert (shared.learner_bytes, shared.engine_bytes) == (40 * GIB, 32 * GIB)
    assert (apart.shares_a_gpu, shared.shares_a_gpu) == (False, True)
    uneven = machine("learner=0-3 rollout=0@0.6 rollout=1@0.2")
    assert uneven.learner_bytes == pytest.approx(24 * GIB)  # of GPU 0
    assert str(uneven.engine) == "rollout=1@0.2"

    # A shared engine keeps to its share even if its cache has a size.
    alone = machine("2", WEIR_ROLLOUT_KV_CACHE_MIB="512")
    assert (alone.engine_bytes, alone.engine_cache_bytes) == (80 * GIB, GIB // 2)
    assert machine("1", WEIR_ROLLOUT_KV_CACHE_MIB="512").engine_bytes == 32 * GIB


def test_of_engines_of_different_sizes_the_smallest_is_planned_and_all_are_counted() -> None:
    found = machine("learner=0 rollout=1-4 rollout=5,6 rollout=7,8")
    assert (found.num_engines, found.gpus_per_engine, str(found.engine)) == (3, 2, "rollout=5-6")
    most = machine("learner=a:0-7,b:0-3 rollout=b:4-7")
    assert (most.learner_gpus, most.ranks_of_node) == (12, 8)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("WEIR_REDIS_MAXMEMORY", "much"),
        ("WEIR_ROLLOUT_GPU_MEMORY", "5"),
        ("WEIR_MODEL_HUB", "yes"),
        ("WEIR_GPUS", "all"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str) -> None:
    with pytest.raises(PlanError, match=f"^{variable}"):
        machine_of(Options(), None, {variable: value}, Here())
