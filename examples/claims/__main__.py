"""``make claims``: train every arm with every seed, test the claims, and write the results.

Each run is a line of `results.jsonl`. A run of all claims with the registered seeds also writes the
table and the pictures of the README.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from multiprocessing import get_context

import torch

from examples.claims.registered import CLAIMS, FIRST_SEED, TRIALS, registration
from examples.claims.report import RESULTS, compute_differences, draw, table, write_table
from examples.claims.training import Histories, train

# The longest come first, so that both processes end at nearly the same time.
ORDER = sorted(TRIALS, key=lambda name: TRIALS[name].work, reverse=True)


def _train(name: str, seeds: Sequence[int]) -> Histories:
    return train(TRIALS[name].world, TRIALS[name].arms, seeds)


def main(arguments: Sequence[str]) -> int:
    """Run the trials, two at a time."""
    parser = argparse.ArgumentParser(description="Test the papers' claims in miniature.")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, metavar="SEED")
    parser.add_argument("--seeds", type=int, metavar="NUMBER", help="default: each trial's own")
    parser.add_argument("--trials", nargs="+", choices=ORDER, default=ORDER, metavar="NAME")
    options = parser.parse_args(arguments)
    if options.seeds is not None and options.seeds < 2:
        parser.error("--seeds: an interval needs two or more")
    is_report = vars(options) == vars(parser.parse_args([]))
    date = datetime.now(UTC)
    start = time.monotonic()
    registered = registration()
    differences: dict[str, list[float]] = {}
    with ProcessPoolExecutor(2, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        futures = {}
        for name in options.trials:
            num_seeds = options.seeds or TRIALS[name].num_seeds
            seeds = range(options.first_seed, options.first_seed + num_seeds)
            futures[pool.submit(_train, name, seeds)] = name
        for future in as_completed(futures):
            name = futures[future]
            histories = future.result()
            differences |= compute_differences(TRIALS[name], histories)
            if is_report:
                draw(name, histories)
            print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    result = {
        "date": date.isoformat(timespec="minutes"),
        "registration": registered,
        "first_seed": options.first_seed,
        "seconds": round(time.monotonic() - start),
        "differences": {name: differences[name] for name in CLAIMS if name in differences},
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")
    if is_report:
        write_table(result)
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
