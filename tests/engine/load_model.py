"""Loads a reference model on as many ranks as torchrun starts.

``load_model.py MODEL ZERO_STAGE DTYPE`` prints one JSON object: for each rank how many bytes of its
own memory loading took at its peak, and how many are left of them (pages of the file, which ranks
share, are not counted), and the largest gap between its log-probs and those of a model that
transformers loads by itself.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from protocol.recipe import Model, Optimizer
from transformers import AutoModelForCausalLM

from services.learner.training.attention import PACKED
from services.learner.training.batching import collate
from services.learner.training.engine import DTYPES, FrozenModel, init_ranks, loading
from services.learner.training.models import Policy
from tests.engine.train_some_steps import samples_of_step


def own_memory() -> int:
    status = Path("/proc/self/status").read_text()
    (kilobytes,) = (line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))
    return int(kilobytes) * 1024


@contextmanager
def growth() -> Iterator[dict[str, int]]:
    """Of this process's own memory while the context lasts, filled in at its end."""
    before, found, done = own_memory(), {"peak": 0, "left": 0}, threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            found["peak"] = max(found["peak"], own_memory() - before)

    watching = threading.Thread(target=watch)
    watching.start()
    yield found
    done.set()
    watching.join()
    found["left"] = own_memory() - before


def policy_in(folder: Path, dtype: str) -> Policy:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=DTYPES[dtype], attn_implementation=PACKED
    )
    return Policy(model, chunk_tokens=50)


def main(folder: Path, stage: Any, dtype: Any) -> None:
    init_ranks()
    optimizer, model = Optimizer(zero_stage=stage), Model(path=str(folder), dtype=dtype)
    with growth() as memory:
        with loading(optimizer, model):
            policy = policy_in(folder, dtype)
        reference = FrozenModel(policy, optimizer, model)
    batch = collate(samples_of_step(0))
    logprobs, _ = reference(batch, 1.0)
    ranks = [memory] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, memory)
    if torch.distributed.get_rank() == 0:
        with torch.no_grad():
            expected, _ = policy_in(folder, dtype)(batch, 1.0)
        gap = (logprobs - expected).abs().max().item()
        print(json.dumps({"ranks": ranks, "gap": gap}), flush=True)
    torch.distributed.barrier()
    os._exit(0)  # a thread of torch may abort a process that ends in good order beside another


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
