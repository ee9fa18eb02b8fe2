"""Peak memory of log-probs, dense and in chunks: ``python -m benchmarks.logprob_memory``.

Each variant runs forward and backward in a process of its own, whose peak resident memory is read
from the operating system; what the process held before is taken off. glibc is told to return freed
blocks to the system: with its defaults it kept 1.5 GiB of freed blocks of 8 MiB.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time

import torch
from torch import nn

from services.learner.algorithms.logprobs import chunked_token_logprobs, token_logprobs

RETURN_FREED_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}  # of 1 MiB or more
DENSE = 0  # as a number of tokens per chunk


def main() -> None:
    """Measure every variant, and print a table; with ``--measure`` be one of them."""
    options = _options()
    if options.measure is not None:
        print(*_measured(options.measure, options))
        return
    size = f"{options.tokens:,} tokens x vocabulary {options.vocabulary:,}"
    print(f"{size} x hidden {options.hidden}, float32, forward and backward\n")
    print("| variant | peak memory (MiB) | of dense | seconds |\n|---|---|---|---|")
    dense = None
    for chunk in (DENSE, *options.chunks):
        memory, seconds = _in_a_process(chunk)
        dense = memory if dense is None else dense
        name = f"{chunk:,} tokens at once" if chunk else "dense"
        print(f"| {name} | {memory:,.0f} | {memory / dense:.2f} | {seconds:.1f} |", flush=True)


def _in_a_process(chunk: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.logprob_memory", *sys.argv[1:]]
    finished = subprocess.run(
        [*command, "--measure", str(chunk)],
        env={**os.environ, **RETURN_FREED_BLOCKS},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    memory, seconds = finished.stdout.split()
    return float(memory), float(seconds)


def _measured(chunk: int, options: argparse.Namespace) -> tuple[float, float]:
    """Peak memory in MiB above what the inputs need, and seconds."""
    torch.manual_seed(0)
    head = nn.Linear(options.hidden, options.vocabulary, bias=False)
    hidden = torch.randn(options.tokens, options.hidden, requires_grad=True)
    targets = torch.randint(options.vocabulary, (options.tokens,))
    head(hidden[:1]).sum().backward()  # the libraries are loaded, the gradients exist
    before, began = _peak_mib(), time.perf_counter()
    if chunk == DENSE:
        logprobs, entropies = token_logprobs(head(hidden), targets, 1.0)
    else:
        logprobs, entropies = chunked_token_logprobs(hidden, head.weight, None, targets, 1.0, chunk)
    (logprobs.sum() + 0.01 * entropies.sum()).backward()
    return _peak_mib() - before, time.perf_counter() - began


def _peak_mib() -> float:
    """Peak resident memory of this process; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--chunks", type=int, nargs="*", default=[2048, 1024, 256, 64])
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
