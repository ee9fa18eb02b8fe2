"""Memory of training, planned and measured: ``python -m benchmarks.training_memory``.

Each row trains a stack of linear layers on one CPU rank by the learner's own engine, while torch's
profiler counts every allocation. Numbers are bytes per parameter, a GPU's and the host's together,
at the fullest moment of three updates. AdamW is fused, as it is on a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from protocol.recipe import Model, Optimizer, Recipe, parse_recipe
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from services.learner.planning.footprint import Item, learner_footprint, total
from services.learner.planning.shapes import ModelShape
from services.learner.training import engine as engines

# Engines stay, so that none is freed while the next one is measured.
_ENGINES: list[engines.Engine] = []
_ADAMW = torch.optim.AdamW
WIDTH = 256
LAYERS = 16
PARAMETERS = LAYERS * WIDTH * WIDTH
COMBINATIONS = [
    *((stage, "none", dtype) for stage in (0, 1, 2, 3) for dtype in ("bfloat16", "float32")),
    *((stage, "optimizer", "bfloat16") for stage in (1, 2, 3)),
    (3, "all", "bfloat16"),
]
GLOO_BYTES = 4  # per parameter: a copy that only gloo makes to scatter a bucket, under ZeRO-3


def main() -> None:
    """Print a row per combination, as a table or as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", type=int, nargs="*", help="these rows, counted from 0")
    options = parser.parse_args()
    chosen = range(len(COMBINATIONS)) if options.only is None else options.only
    torch.optim.AdamW = _fused  # type: ignore[misc]
    engines.init_ranks()
    rows = [make_row(*COMBINATIONS[number]) for number in chosen]
    engines.leave_ranks()
    if options.json:
        print(json.dumps(rows))
        return
    print("| ZeRO | offload | dtype | planned | measured |\n|---|---|---|---|---|")
    for row in rows:
        print("| {stage} | {offload} | {dtype} | {planned:.1f} | {measured:.1f} |".format(**row))


def _fused(*parameters: Any, **settings: Any) -> torch.optim.Optimizer:
    return _ADAMW(*parameters, **settings | {"fused": True})


def make_row(stage: int, offload: str, dtype: str) -> dict[str, str | float]:
    """Return planned and measured bytes per parameter."""
    recipe = _recipe(stage, offload, dtype)
    measured = _peak_bytes(recipe.optimizer, recipe.model) / PARAMETERS
    return {
        "stage": stage,
        "offload": offload,
        "dtype": dtype,
        "planned": _planned_bytes(recipe) / PARAMETERS,
        "measured": measured - (GLOO_BYTES if stage == 3 else 0),
    }


def _recipe(stage: int, offload: str, dtype: str) -> Recipe:
    return parse_recipe(
        {
            "name": "memory",
            "model": {"path": "layers", "dtype": dtype},
            "tasks": {"train": "none"},
            "rollout": {"sampling": {"max_tokens": 1}},
            "algorithm": {"advantage": "grpo"},
            "training": {"steps": 1, "max_staleness": 0},
            "optimizer": {"zero_stage": stage, "offload": offload},
        }
    )


def _planned_bytes(recipe: Recipe) -> int:
    """Return the plan's bytes without those of samples, loading and publishing."""
    shape = ModelShape(1, 0, 1, 1, 1, 1, PARAMETERS - 1, 1, tied=True)
    footprint = learner_footprint(recipe, shape, None, 1)
    used = max(total(_exclude_samples(footprint.backward)), total(footprint.step))
    _, _, *host = footprint.host  # a whole model, and the published versions
    gathered = PARAMETERS * 2 if recipe.optimizer.zero_stage == 3 else 0
    if recipe.model.dtype == "float32":
        gathered *= 2
    return total(footprint.resident) + used + total(host) - gathered


def _exclude_samples(items: tuple[Item, ...]) -> list[Item]:
    sample_items = ("policy: activations", "policy: log-probs of a chunk")
    return [item for item in items if item.what not in sample_items]


def _peak_bytes(settings: Optimizer, model: Model) -> int:
    """Return the peak of three updates of two micro-batches each."""
    gc.collect()  # garbage of the previous row would be freed during the measurement
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        _train(settings, model)
    events: Any = profiled.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    current = 0
    peak = 0
    for _, change in changes:
        current += change
        peak = max(peak, current)
    return peak


def _train(settings: Optimizer, model: Model) -> None:
    dtype = engines.DTYPES[model.dtype]
    with engines.loading(settings, model):
        layers = [nn.Linear(WIDTH, WIDTH, bias=False, dtype=dtype) for _ in range(LAYERS)]
    engine = engines.Engine(nn.Sequential(*layers), settings, model)
    part = torch.ones(1, WIDTH, dtype=dtype)

    def compute_loss(part: Tensor) -> Tensor:
        gc.collect()  # DeepSpeed's reference cycles would be counted until Python finds them
        return engine(part).float().sum()

    _ENGINES.append(engine)
    for _ in range(3):
        engine.update([part, part], compute_loss)


if __name__ == "__main__":
    sys.exit(main())
