"""SmolLM2-135M-Instruct through the whole stack, in all the ways in which a job can train it."""

import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.stack.conftest import ROOT, Stack

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(3600)]
EXAMPLE = ROOT / "examples/real-model"
MOST_PARITY = {"float32": 1e-3, "bfloat16": 5e-2}
WAYS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "an adapter": {"model": {"lora": {"rank": 4, "alpha": 8, "merge": True}}},
    "bfloat16": {"model": {"dtype": "bfloat16"}},
    "a critic": {"algorithm": {"advantage": "gae"}, "critic": {"pretrain_steps": 1}},
}
SMALL: dict[str, Any] = {
    "model": {"max_context": 96},
    "rollout": {"group_size": 4, "sampling": {"temperature": 1.0, "max_tokens": 12}},
    # Every response has a reward of its own, so both steps learn.
    "reward": {
        "outcome": [{"verifier": "text_similarity", "reference": "{{item.solution}}"}],
    },
    "training": {"steps": 2, "groups_per_step": 2, "checkpoint_every": 2},
    "optimizer": {"learning_rate": 1e-4},
}


def run(*command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, **options
    )


@pytest.fixture(scope="module")
def folder(stack: Stack) -> Path:
    """The model and, beside it, its tasks."""
    model = stack.home / "models/smollm2"
    model.parent.mkdir(exist_ok=True)
    ran = run(EXAMPLE / "base_model.py", model)
    if ran.returncode == os.EX_UNAVAILABLE:
        pytest.skip(ran.stderr)
    assert ran.returncode == 0, ran.stderr
    assert run(EXAMPLE / "tasks.py", model.parent).returncode == 0
    return model


def weir(stack: Stack, *words: str, **options: Any) -> str:
    address = {"WEIR_URL": stack.facts["url"], "WEIR_API_KEY": stack.facts["api_key"]}
    ran = run("-m", "weir", *words, env=os.environ | address, **options)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def submit(stack: Stack, folder: Path, changes: dict[str, Any]) -> str:
    recipe = tomllib.loads((EXAMPLE / "recipe.toml").read_text())
    del recipe["tasks"], recipe["evaluation"], recipe["model"]["path"], recipe["model"]["lora"]
    del recipe["model"]["prompt_template"]  # a pretrained model has its chat template
    for table in {*SMALL, *changes}:
        recipe[table] = {**recipe.get(table, {}), **SMALL.get(table, {}), **changes.get(table, {})}
    tasks = stack.weir.upload(folder.parent / "train.jsonl")
    body = {"model": str(folder), "training_file": tasks, "recipe": recipe}
    return stack.weir.submit(body)["id"]


@pytest.mark.parametrize("way", WAYS)
def test_a_pretrained_model_is_trained_asked_and_fetched(
    stack: Stack, folder: Path, way: str, tmp_path: Path
) -> None:
    changes = WAYS[way]
    job_id = submit(stack, folder, changes)
    job = stack.wait_for_end(job_id, timeout_s=1800)
    assert job["status"] == "succeeded", job["error"]
    steps = [data for data in stack.metrics(job_id) if "entropy" in data]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["grad_norm"] > 0 and math.isfinite(step["loss"]) for step in steps)
    assert all(("value_loss" in step) == ("critic" in changes) for step in steps)
    dtype = changes.get("model", {}).get("dtype", "float32")
    assert job["weir"]["result"]["parity_max_abs"] > 0
    assert max(step.get("probe_gap", 0.0) for step in steps) < MOST_PARITY[dtype]

    assert weir(stack, "chat", job_id, "--max-tokens", "8", input="What is the capital of France?")
    weir(stack, "fetch", job_id, str(tmp_path / "fetched"))
    before, after = map(state_of, (folder, tmp_path / "fetched"))
    assert before.keys() == after.keys()
    moved = max((before[name] - after[name]).abs().max().item() for name in before)
    assert 0 < moved < 0.1


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    state = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return {name: tensor.float() for name, tensor in state.items()}
