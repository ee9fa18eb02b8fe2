"""The curves of one or more runs, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

PANELS = {
    "reward": "reward",
    "accuracy": "accuracy of the sampled responses",
    "process": "process score of correct responses",
    "entropy": "entropy per token (nats)",
    "response_length": "response length (tokens)",
    "staleness": "staleness (policy versions)",
}
_COLOURS = ("#1f6f8b", "#c8553d", "#6a994e")
_SMOOTHING = 0.8


def draw(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw every panel for every run, over the training steps, into a PNG file."""
    figure, axes = plt.subplots(2, 3, figsize=(12, 6.2), layout="constrained")
    for axis, (name, title) in zip(axes.flat, PANELS.items(), strict=True):
        for colour, (run, steps) in zip(_COLOURS, runs.items(), strict=False):
            reported = [step for step in steps if name in step]
            numbers = [step["step"] for step in reported]
            values = [step[name] for step in reported]
            axis.plot(numbers, values, color=colour, alpha=0.25, linewidth=1)
            axis.plot(numbers, smooth(values), color=colour, linewidth=2, label=run)
        axis.set_title(title, fontsize=11, loc="left")
        axis.set_xlabel("training step", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2)
    axes.flat[0].legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def smooth(values: Sequence[float]) -> list[float]:
    """Return an exponential moving average without a bias at the start."""
    average = 0.0
    weight = 0.0
    averages: list[float] = []
    for value in values:
        average = _SMOOTHING * average + (1 - _SMOOTHING) * value
        weight = _SMOOTHING * weight + (1 - _SMOOTHING)
        averages.append(average / weight)
    return averages
