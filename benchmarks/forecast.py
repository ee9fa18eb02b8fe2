"""How often the 90 % interval of a forecast holds the last evaluation.

The curves are those of the [claims in miniature](../examples/claims/README.md), trained here: every
arm of the shorter trials, with two seeds. An evaluation is a step's 64 responses. A forecast is by
the first half of the evaluations, and only those with an interval that would be shown count.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch

from examples.claims.registered import FIRST_SEED, TRIALS
from examples.claims.training import train
from services.gateway.core.watch.forecast import Forecast, forecast

_SEEDS = range(FIRST_SEED, FIRST_SEED + 2)
_MAX_WORK = 3e7  # of a trial; the others take many minutes
_EVERY = (2, 5, 10)  # steps between evaluations


def main() -> None:
    """Train the curves, and print the table."""
    names = [name for name, trial in TRIALS.items() if trial.work < _MAX_WORK]
    with ProcessPoolExecutor(2, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        curves = [curve for part in pool.map(_curves, names) for curve in part]
    print("| steps between evaluations | curves | forecasts shown | held | half-width | error |")
    print("|---|---|---|---|---|---|")
    for every in _EVERY:
        pairs = [_forecast(samples, curve[::every].tolist()) for samples, curve in curves]
        sure = [(result, last) for result, last in pairs if result is not None]
        share = np.mean([result.low <= last <= result.high for result, last in sure])
        width = np.mean([(result.high - result.low) / 2 for result, _ in sure])
        error = np.mean([abs(result.accuracy - last) for result, last in sure])
        print(f"| {every} | {len(pairs)} | {len(sure)} | {share:.1%} | {width:.3f} | {error:.3f} |")


def _curves(name: str) -> list[tuple[int, np.ndarray]]:
    """Return the accuracy at each step of every run of a trial, with the responses of a step."""
    trial = TRIALS[name]
    histories = train(trial.world, trial.arms, _SEEDS)
    runs = (run for arm in histories.values() for run in arm["accuracy"].T)
    return [(trial.world.responses, run) for run in runs]


def _forecast(samples: int, curve: Sequence[float]) -> tuple[Forecast | None, float]:
    """Return the forecast of the last accuracy by the first half, and that accuracy."""
    half = len(curve) // 2
    result = forecast(range(half), curve[:half], [samples] * half, len(curve) - 1)
    return result, curve[-1]


if __name__ == "__main__":
    main()
