"""The learner on a GPU: the same numbers as on a CPU, in the memory that the plan says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.gpu.conftest import REHEARSES, Machine, run_module, write_model

pytestmark = pytest.mark.gpu
Measure = Callable[..., dict[str, Any]]


def trained(model: Path, out: Path, **environment: str) -> dict[str, torch.Tensor]:
    """The parameters after three steps in float32, TF32 off, as it is by default."""
    settings = json.dumps({"zero_stage": 1, "micro_batch_tokens": 4096, "steps": 3})
    run_module("tests.engine.train_some_steps", str(model), str(out), settings, **environment)
    return load_file(out / "model.safetensors")


def test_updates_are_those_of_a_cpu(machine: Machine, tmp_path: Path) -> None:
    write_model(machine.tiny, tmp_path / "model")
    gpu = trained(tmp_path / "model", tmp_path / "gpu")
    hidden = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    cpu = trained(tmp_path / "model", tmp_path / "cpu", **hidden)
    gap = max((gpu[name] - cpu[name]).abs().max().item() for name in cpu)
    print(f"largest gap {gap:.1e}")
    assert gap <= 2e-6


@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("stage", [1, 3])
def test_a_3b_takes_the_memory_that_the_plan_says(
    machine: Machine, measure: Measure, stage: int, *, recomputed: bool
) -> None:
    tokens = machine.tokens(22528 if recomputed else 8192)
    recipe = {
        "context": tokens,
        "training": {"micro_batch_tokens": tokens, "recompute_activations": recomputed},
        "optimizer": {"zero_stage": stage},
    }
    found = measure("step", model="Qwen/Qwen2.5-3B", recipe=recipe)
    if not REHEARSES:
        assert found["peak"] == pytest.approx(found["planned"], rel=0.1)


def test_a_7b_with_its_optimizer_in_host_memory_takes_what_the_plan_says(
    machine: Machine, measure: Measure
) -> None:
    tokens = machine.tokens(8192)
    recipe = {
        "context": tokens,
        "training": {"micro_batch_tokens": tokens, "recompute_activations": True},
        "optimizer": {"zero_stage": 2, "offload": "optimizer"},
    }
    found = measure("step", model="Qwen/Qwen2.5-7B", recipe=recipe)
    if not REHEARSES:
        assert found["peak"] <= 80 * 2**30
        assert found["peak"] == pytest.approx(found["planned"], rel=0.1)


@pytest.mark.parametrize("tokens", [2048, 8192, 20480])
def test_packed_attention_learns_the_same_and_takes_no_more_memory_than_none_without_a_mask(
    machine: Machine, measure: Measure, tokens: int
) -> None:
    found = measure("attention", model="Qwen/Qwen2.5-3B", tokens=machine.tokens(tokens))
    assert found["gap"] <= 0.02  # of gradients in bfloat16
    if not REHEARSES:
        assert found["packed"]["peak"] <= 1.1 * found["no mask"]["peak"]
