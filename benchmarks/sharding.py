"""How far the ways to split an update are from one rank: ``python -m benchmarks.sharding``.

VAPO with every term of the loss, policy, critic and reference, in float32: the largest gap of any
parameter to one rank after a step of the critic alone and three of both. With ``--load MODEL``
instead what loading that model in bfloat16 takes on 1, 2 and 4 ranks.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.engine.ranks import Ranks
from tests.engine.told import largest_gap, parameters_in
from tests.engine.train_some_steps import train
from tests.engine.trouble import load_model

RANKS = Ranks()
SPLITS = [(0, "none"), (1, "none"), (2, "none"), (3, "none")]
SPLITS += [(1, "optimizer"), (2, "optimizer"), (3, "optimizer"), (3, "all")]
EVERYTHING = {"vapo": True, "pretrain": 1}


def main() -> None:
    """Print a table of gaps, or of memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", type=Path, metavar="MODEL")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.load is None:
            print_gaps(Path(folder), options.ranks)
        else:
            print_memory(options.load)


def print_gaps(folder: Path, num_ranks: list[int]) -> None:
    """One row per number of ranks, ZeRO stage, offload and recomputation."""
    model = _model(folder / "model")
    alone = trained_in(model, folder / "alone")
    print("| ranks | ZeRO | offload | recomputed | largest gap |\n|---|---|---|---|---|")
    for ranks in num_ranks:
        for stage, offload in SPLITS:
            again = {"zero_stage": stage, "offload": offload, "recompute_activations": stage == 3}
            gap = largest_gap(alone, trained_in(model, folder / "out", ranks=ranks, **again))
            print(f"| {ranks} | {stage} | {offload} | {stage == 3} | {gap:.1e} |", flush=True)


def trained_in(model: Path, out: Path, ranks: int = 1, **settings: Any) -> dict[str, torch.Tensor]:
    """The parameters that the settings lead to."""
    settings = {"micro_batch_tokens": 120, **EVERYTHING, **settings}
    RANKS.run(train, ranks=ranks, model=model, out=out, **settings)
    return parameters_in(out)


def print_memory(model: Path) -> None:
    """One row per number of ranks: the most memory of their own that they held at once."""
    print(
        "| ranks | ZeRO | peak of each rank (MiB) | of all | left of all |\n|---|---|---|---|---|"
    )
    for ranks in (1, 2, 4):
        found = RANKS.run(load_model, ranks=ranks, folder=model, dtype="bfloat16")["ranks"]
        peaks, left = ([rank[name] / 2**20 for rank in found] for name in ("peak", "left"))
        each = ", ".join(f"{peak:.0f}" for peak in peaks)
        print(f"| {ranks} | 3 | {each} | {sum(peaks):.0f} | {sum(left):.0f} |", flush=True)


def _model(folder: Path) -> Path:
    """Small, but with weights that ZeRO-3 splits: of 100,000 numbers and more."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=3200,
        hidden_size=32,
        intermediate_size=3200,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
