"""Updates of which some are rehearsed, or have a loss or a gradient that is not finite.

That is so in one part, on one rank.

And a last one whose gradient differs over ranks. Prints one JSON object, from dtype, ZeRO stage and
offload to what the updates left behind.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from protocol.recipe import Model, Optimizer
from torch import Tensor, nn

from services.learner.training.engine import DTYPES, Engine, init_ranks

SIZE, PARTS = 8, 3
SPLITS = [(stage, "none") for stage in range(4)] + [(stage, "optimizer") for stage in (1, 2, 3)]
SPLITS += [(3, "all")]
Loss = Callable[[Tensor], Tensor]
BAD: list[Loss] = [
    lambda out: out.sum() * math.nan,
    lambda out: out.sum() + math.inf,  # its gradient is finite
    lambda out: (out * 0).sum().sqrt(),  # is 0, its gradient is not finite
]


def an_engine(dtype: Any, stage: Any, offload: Any) -> Engine:
    torch.manual_seed(0)
    module = nn.Linear(SIZE, SIZE, bias=False, dtype=DTYPES[dtype])
    settings = Optimizer(zero_stage=stage, offload=offload, learning_rate=0.01, warmup_steps=3)
    return Engine(module, settings, Model(path="none", dtype=dtype))


def update(engine: Engine, dtype: str, seed: int, bad: Loss | None = None) -> bool:
    """Whether the norm was finite."""
    inputs = torch.randn(PARTS, 2, SIZE, generator=torch.Generator().manual_seed(seed))
    is_last = torch.distributed.get_rank() == torch.distributed.get_world_size() - 1

    def loss_of(part: int) -> Tensor:
        out = engine(inputs[part].to(DTYPES[dtype])).float()
        return bad(out) if bad and is_last and part == 1 else out.square().sum()

    return math.isfinite(engine.update(range(PARTS), loss_of))


def all_of(engine: Engine) -> list[Tensor]:
    """Copies of the parameters, and of whatever this rank's optimizer holds."""
    optimizer = engine._engine.optimizer.state_dict()
    return [tensor.clone() for tensor in tensors_in([engine.state_of(engine.module), optimizer])]


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def norm_over_ranks(engine: Engine, dtype: str) -> float:
    """Of a gradient that is 256 on one rank and 1 on the other: bfloat16 has no 257."""
    first = torch.eye(1, SIZE, dtype=DTYPES[dtype])
    size = 256.0 if torch.distributed.get_rank() == 0 else 1.0
    return engine.update([first], lambda part: engine(part)[0, 0].float() * size)


def left_behind(dtype: str, stage: int, offload: str) -> dict[str, Any]:
    engine, undisturbed = (an_engine(dtype, stage, offload) for _ in range(2))
    with engine.rehearsing():
        finite = [update(engine, dtype, 2)]
    for each in (engine, undisturbed):
        assert update(each, dtype, seed=1)
    states = [all_of(engine)]
    for bad in BAD:
        finite.append(update(engine, dtype, 2, bad))
        states.append(all_of(engine))
    for each in (engine, undisturbed):
        assert update(each, dtype, seed=3)
    first, *others = states
    return {
        "finite": finite,
        "changed": [not all(map(torch.equal, first, state)) for state in others],
        "learned": not all(map(torch.equal, first, all_of(engine))),
        "as undisturbed": all(map(torch.equal, all_of(undisturbed), all_of(engine))),
        "updates": engine.updates,
        "norm over ranks": norm_over_ranks(engine, dtype),
    }


if __name__ == "__main__":
    init_ranks()
    found = {
        f"{dtype} {stage} {offload}": left_behind(dtype, stage, offload)
        for dtype in ("float32", "bfloat16")
        for stage, offload in SPLITS
    }
    everywhere: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everywhere, found)
    if torch.distributed.get_rank() == 0:
        print(json.dumps(everywhere), flush=True)
    os._exit(0)  # a thread of torch may abort a process that ends in good order beside another
