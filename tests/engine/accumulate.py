"""Accumulates 256 micro-batches in bfloat16; prints how far each gradient is from the exact one.

One JSON object from ZeRO stage and offload to relative error, in the Frobenius norm.
"""

import json
from typing import Any

import torch
from deepspeed.utils import safe_get_full_grad
from protocol.recipe import Model, Optimizer
from torch import Tensor, nn

from services.learner.training.engine import Engine, init_ranks

SIZE, PARTS = 64, 256


def error_at(stage: Any, offload: Any) -> float:
    torch.manual_seed(0)
    module = nn.Linear(SIZE, SIZE, bias=False, dtype=torch.bfloat16)
    inputs = torch.randn(PARTS, SIZE).to(torch.bfloat16)
    wanted = torch.rand(PARTS, SIZE).to(torch.bfloat16)
    exact = wanted.double().T @ inputs.double()
    settings = Optimizer(zero_stage=stage, offload=offload)
    engine = Engine(module, settings, Model(path="none", dtype="bfloat16"))
    found: list[Tensor] = []
    step = engine._engine.step

    def look_and_step() -> None:
        gradient = safe_get_full_grad(module.weight)
        assert gradient is not None
        found.append(gradient.double())
        step()

    engine._engine.step = look_and_step
    engine.update(range(PARTS), lambda i: (engine(inputs[i : i + 1]) * wanted[i]).float().sum())
    return ((found[0] - exact).norm() / exact.norm()).item()


if __name__ == "__main__":
    init_ranks()
    splits = [(1, "none"), (2, "none"), (3, "none"), (1, "optimizer"), (2, "optimizer"), (3, "all")]
    print(json.dumps({f"{stage} {offload}": error_at(stage, offload) for stage, offload in splits}))
