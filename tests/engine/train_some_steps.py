"""Trains a small model on fixed samples, on as many ranks as torchrun starts, and exports it.

``train_some_steps.py MODEL OUT SETTINGS`` where SETTINGS is JSON: zero_stage, micro_batch_tokens,
steps, and perhaps ``save_at`` (save to OUT/checkpoint after so many steps) or ``load_from``.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from protocol.recipe import parse_recipe

from services.learner.engine import TrainingEngine, init_ranks
from services.learner.samples import Sample


def samples_of_step(step: int) -> list[Sample]:
    """Six groups of four responses of odd lengths, the same in every process."""
    random = np.random.default_rng(step)
    return [
        Sample(
            prompt_ids=random.integers(3, 40, 5 + index % 3).astype(np.int32),
            token_ids=random.integers(3, 40, length).astype(np.int32),
            behavior_logprobs=np.full(length, -3.7, dtype=np.float32),
            on_version=np.ones(length, dtype=np.int32),
            advantage=float(random.normal()),
            group=index // 4,
        )
        for index, length in enumerate(random.integers(1, 30, 24).tolist())
    ]


def main(model: str, out: str, settings: dict[str, int | str]) -> None:
    init_ranks()
    torch.use_deterministic_algorithms(True)
    recipe = parse_recipe(
        {
            "name": "ranks",
            "model": {"path": model, "dtype": "float32"},
            "tasks": {"train": "none"},
            "rollout": {"sampling": {"max_tokens": 64, "temperature": 0.9}},
            "algorithm": {"advantage": "grpo"},
            "training": {
                "steps": 10,
                "updates_per_batch": 2,
                "micro_batch_tokens": settings["micro_batch_tokens"],
            },
            "optimizer": {
                "learning_rate": 1e-3,
                "weight_decay": 0.01,
                "zero_stage": settings["zero_stage"],
                "warmup_steps": 3,
            },
        }
    )
    engine = TrainingEngine(Path(model), recipe)
    first = 0
    if "load_from" in settings:
        engine.load(Path(str(settings["load_from"])))
        first = engine.updates // 2
    metrics: list[dict[str, float]] = []
    for step in range(first, int(settings["steps"])):
        metrics.append(engine.train(samples_of_step(step)))
        if settings.get("save_at") == step + 1:
            engine.save(Path(out) / "checkpoint")
    engine.export(Path(out))
    if int(os.environ.get("RANK", "0")) == 0:
        (Path(out) / "metrics.json").write_text(json.dumps(metrics))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
