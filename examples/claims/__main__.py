"""``make claims``: train every arm with every seed, test the claims, and write what came out.

Each run is a line of `results.jsonl`, whatever its seeds; the table and the pictures of the README
are those of all claims with the registered seeds.
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
from examples.claims.report import RESULTS, differences_of, draw, table, write_table
from examples.claims.training import train

# The longest first, so that no process is left with one at the end.
ORDER = sorted(TRIALS, key=lambda name: TRIALS[name].work, reverse=True)


def main(arguments: Sequence[str]) -> int:
    """Run the trials, two at a time."""
    parser = argparse.ArgumentParser(description="Test the papers' claims in miniature.")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, metavar="SEED")
    parser.add_argument("--seeds", type=int, metavar="NUMBER", help="default: each trial's own")
    parser.add_argument("--trials", nargs="+", choices=ORDER, default=ORDER, metavar="NAME")
    given = parser.parse_args(arguments)
    if given.seeds is not None and given.seeds < 2:
        parser.error("--seeds: an interval needs two or more")
    is_report = vars(given) == vars(parser.parse_args([]))
    date, began, differences = datetime.now(UTC), time.monotonic(), {}
    registered = registration()  # before the run
    with ProcessPoolExecutor(2, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        futures = {}
        for name in given.trials:
            trial, first = TRIALS[name], given.first_seed
            seeds = range(first, first + (given.seeds or trial.num_seeds))
            futures[pool.submit(train, trial.world, trial.arms, seeds)] = name
        for future in as_completed(futures):
            name, histories = futures[future], future.result()
            differences |= differences_of(TRIALS[name], histories)
            if is_report:
                draw(name, histories)
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    result = {
        "date": date.isoformat(timespec="minutes"),
        "registration": registered,
        "first_seed": given.first_seed,
        "seconds": round(time.monotonic() - began),
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
