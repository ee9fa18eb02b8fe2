"""Chaos for as long as you like: ``SEEDS=20 python -m tests.chaos``, or ``SEED=...`` to repeat one.

Each seed is a job of its own, with disturbances of its own. A run whose result is not that of an
undisturbed one is told with its journal, and leaves its files.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.disturbances import KINDS, draw
from tests.chaos.judgement import Outcome
from tests.chaos.run import Run

STEPS = 70
DISTURBANCES = 250


def main() -> int:
    """Run the seeds; the exit status is 1 if one of them failed."""
    if "SEED" in os.environ:
        seeds = [int(os.environ["SEED"])]
    else:
        seeds = [random.randrange(10**9) for _ in range(int(os.environ.get("SEEDS", "10")))]
    undisturbed = {critic: undisturbed_outcome(with_critic=critic) for critic in (False, True)}
    failed = [seed for seed in seeds if not _tell(seed, undisturbed)]
    print(f"{len(failed)} of {len(seeds)} seeds failed", *failed)
    return 1 if failed else 0


def undisturbed_outcome(*, with_critic: bool) -> Outcome:
    """What every disturbed run must come to."""
    with tempfile.TemporaryDirectory(prefix="weir-undisturbed-") as folder:
        run = Run(Path(folder), STEPS, with_critic)
        asyncio.run(run.go())
    assert run.outcome is not None, run.problems
    return run.outcome


def disturbed_run(seed: int, folder: Path) -> Run:
    """Run a job with the disturbances of a seed; every other seed has a critic."""
    kinds = os.environ.get("KINDS", "").split(",") if os.environ.get("KINDS") else tuple(KINDS)
    run = Run(
        folder, STEPS, with_critic=bool(seed % 2), disturbances=draw(seed, DISTURBANCES, kinds)
    )
    asyncio.run(run.go())
    return run


def _tell(seed: int, undisturbed: dict[bool, Outcome]) -> bool:
    folder, began = Path(tempfile.mkdtemp(prefix=f"weir-chaos-{seed}-")), time.monotonic()
    run = disturbed_run(seed, folder)
    verdict = run.verdict(undisturbed[run.with_critic])
    print(f"seed {seed}: {run.done} disturbances in {time.monotonic() - began:.0f} s,", end=" ")
    print("ok" if not verdict else "FAILED", flush=True)
    if verdict:
        print(*run.journal, *verdict[:20], f"SEED={seed}; logs: {folder}/logs", sep="\n")
    else:
        shutil.rmtree(folder)
    return not verdict


if __name__ == "__main__":
    sys.exit(main())
