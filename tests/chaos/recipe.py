"""The job of a run: what it learns from which tasks, and where the result lies."""

from __future__ import annotations

import json
from pathlib import Path

from protocol.recipe import Recipe

from tests.builders import a_recipe

BASE_MODEL = Path(__file__).parents[2] / "examples" / "arithmetic" / "base-model"
WEIGHTS = "model.safetensors"


def a_chaos_recipe(
    *,
    steps: int,
    with_critic: bool = False,
    checkpoint_every: int = 3,
    evaluate_every: int = 10,
) -> Recipe:
    """Dynamic sampling, evaluation and checkpoints; with a critic also value pretraining."""
    critic = {"critic": {"pretrain_steps": 6}, "algorithm": {"advantage": "gae"}}
    return a_recipe(
        model={"path": BASE_MODEL.name},
        tasks={"train": "train", "held_out": "held_out"},
        rollout={"group_size": 4, "sampling": {"max_tokens": 12}},
        training={
            "steps": steps,
            "groups_per_step": 4,
            "dynamic_sampling": True,
            "max_oversampling": 4,
            "max_staleness": 3,
            "checkpoint_every": checkpoint_every,
        },
        evaluation={"samples": 2, "tasks": 5, "every": evaluate_every},
        **(critic if with_critic else {}),
    )


def write_tasks(files: Path) -> None:
    """The task files of the recipe."""
    files.mkdir(parents=True)
    for name, count in (("train", 50), ("held_out", 5)):
        tasks = [{"id": f"{name}-{n}", "prompt": f"{n}+1=", "answer": "1"} for n in range(count)]
        (files / f"{name}.jsonl").write_text("\n".join(map(json.dumps, tasks)))


def exported_hash(folder: Path) -> str:
    """The hash in a folder that the team has exported."""
    return (folder / WEIGHTS).read_bytes()[-32:].hex()
