"""How often the 90 % interval of a forecast holds the last evaluation.

The curves are those of the [papers' claims in miniature](../examples/claims/README.md), trained
anew: every arm of every trial, with two seeds. An evaluation is a step's 64 responses. A forecast
is by the first half of the evaluations, and only those with an interval that would be shown count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch

from examples.claims.registered import FIRST_SEED, TRIALS
from examples.claims.training import train
from services.gateway.core.watch.forecast import Forecast, forecast

_SEEDS = range(FIRST_SEED, FIRST_SEED + 2)
_EVERY = (2, 5, 10)  # steps between evaluations


def main() -> None:
    """Train the curves, and print the table."""
    with ProcessPoolExecutor(2, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        curves = [curve for part in pool.map(_curves, TRIALS) for curve in part]
    print("| steps between evaluations | curves | forecasts shown | held | half-width | error |")
    print("|---|---|---|---|---|---|")
    for every in _EVERY:
        told = [pair for samples, curve in curves for pair in _forecasts(samples, curve[::every])]
        shown = [(result, last) for result, last in told if result is not None]
        held = np.mean([result.low <= last <= result.high for result, last in shown])
        width = np.mean([(result.high - result.low) / 2 for result, _ in shown])
        error = np.mean([abs(result.accuracy - last) for result, last in shown])
        print(
            f"| {every} | {len(told)} | {len(shown)} | {held:.1%} | {width:.3f} | {error:.3f} |",
        )


def _curves(name: str) -> list[tuple[int, np.ndarray]]:
    """Return the accuracy at each step of every run of a trial, with the responses of a step."""
    trial = TRIALS[name]
    histories = train(trial.world, trial.arms, _SEEDS)
    runs = (run for arm in histories.values() for run in arm["accuracy"].T)
    return [(trial.world.responses, run) for run in runs]


def _forecasts(samples: int, curve: Sequence[float]) -> Iterator[tuple[Forecast | None, float]]:
    last = len(curve) - 1
    half = len(curve) // 2
    yield forecast(range(half), curve[:half], [samples] * half, last), curve[-1]


if __name__ == "__main__":
    main()
