"""What padding costs: ``python -m benchmarks.packing``.

Processor seconds of forward and backward of the demo's model in float32 on one core, for micro-
batches that are padded and masked, and for the same samples packed. Then how full micro-batches
are, and how far the work of ranks differs, for log-normal lengths to 20,000 tokens.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModel

from services.learner.planning.shapes import BUILT_IN, trained_flops
from services.learner.training.attention import PACKED
from services.learner.training.batching import collate, micro_batches
from services.learner.training.samples import Sample
from services.learner.training.sequence import ALONE, Slice

MODEL = Path(__file__).parents[1] / "examples/arithmetic/base-model"
BUDGET = 22_528


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    print("| samples | longest | tokens | padded (s) | packed (s) |\n|---|---|---|---|---|")
    for lengths in (
        random.integers(12, 40, 200),
        random.lognormal(5.5, 0.7, 40).astype(int),
        np.array([4000, 1500, 300, 200, 100, 50]),
        np.array([3000]),
    ):
        samples = [_sample(length) for length in lengths]
        seconds = [f"{_seconds(run(samples)):.2f}" for run in (_padded, _packed)]
        sizes = [f"{n:,}" for n in (len(lengths), lengths.max(), lengths.sum())]
        print("|", " | ".join(sizes + seconds), "|", flush=True)
    print("\n| samples | ranks | micro-batches of a rank | full | most work of a rank / least |")
    print("|---|---|---|---|---|")
    for count, ranks in ((512, 4), (512, 8), (1024, 8), (2048, 32), (8192, 32)):
        rounds, full, apart = zip(*(_shares(count, ranks, seed) for seed in range(5)), strict=True)
        print(
            f"| {count:,} | {ranks} | {min(rounds)} to {max(rounds)} | "
            f"{min(full):.1%} to {max(full):.1%} | at most {max(apart):.3f} |",
            flush=True,
        )


def _sample(length: int) -> Sample:
    ids = np.ones(length, dtype=np.int32)
    return Sample(ids[:1], ids[1:], ids[1:], ids[1:], 0.0, 0.0, correct=False, group=0)


def _model(attention: str) -> nn.Module:
    config = copy.copy(AutoConfig.from_pretrained(MODEL))
    return AutoModel.from_config(config, attn_implementation=attention, dtype=torch.float32)


def _padded(samples: list[Sample]) -> Callable[[], None]:
    model, lengths = _model("sdpa"), torch.tensor([len(s.token_ids) + 1 for s in samples])
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()

    def run() -> None:
        hidden = model(input_ids=mask, attention_mask=mask, use_cache=False).last_hidden_state
        hidden[mask.bool()].sum().backward()

    return run


def _packed(samples: list[Sample]) -> Callable[[], None]:
    model, batch = _model(PACKED), collate(samples)
    return lambda: Slice(ALONE, batch).hidden(model).sum().backward()


def _seconds(run: Callable[[], None]) -> float:
    """The least of five, after one that warms up."""
    found: list[float] = []
    for _ in range(6):
        begin = time.thread_time()
        run()
        found.append(time.thread_time() - begin)
    return min(found[1:])


def _shares(count: int, num_ranks: int, seed: int) -> tuple[int, float, float]:
    """Micro-batches of a rank, how full they are, and the most work of a rank by the least."""
    work_of = partial(trained_flops, BUILT_IN["Qwen/Qwen2.5-7B"], None)
    lengths = np.random.default_rng(seed).lognormal(8.3, 0.9, count).clip(30, 20_000).astype(int)
    parts = micro_batches([_sample(n) for n in lengths], BUDGET, num_ranks, work_of)
    work = [sum(work_of(len(s.token_ids) + 1) for s in part) for part in parts]
    shares = [sum(work[rank::num_ranks]) for rank in range(num_ranks)]
    full = lengths.sum() / len(parts) / BUDGET
    return len(parts) // num_ranks, full, max(shares) / min(shares)


if __name__ == "__main__":
    main()
