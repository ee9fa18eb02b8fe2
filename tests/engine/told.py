"""What `train_some_steps` leaves in a folder: parameters, metrics, and what is told of tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

TOLERANCE = 2e-6  # of parameters: float32, three steps of learning rate 1e-3
OF_RANKS = {"slowest_rank", "slowest_rank_seconds", "rank_seconds"}


def parameters_in(folder: Path) -> dict[str, torch.Tensor]:
    """All that was exported, the critic's under its folder's name; not what is in a checkpoint."""
    return {
        f"{file.relative_to(folder)}:{name}": value
        for file in sorted(folder.glob("**/*.safetensors"))
        for name, value in load_file(file).items()
        if "checkpoint" not in file.parts
    }


def largest_gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def metrics_of(folder: Path) -> list[dict[str, float]]:
    return json.loads((folder / "metrics.json").read_text())


def tokens_of(folder: Path) -> dict[str, np.ndarray]:
    """What each step told of its tokens, by the step's place and the name."""
    return {path.stem: np.load(path) for path in folder.glob("*.npy")}


def assert_told_the_same(one: Path, other: Path) -> None:
    """Of tokens, and in metrics, but for those that differ with the ranks."""
    here, there = tokens_of(one), tokens_of(other)
    assert here.keys() == there.keys()
    for name in here:
        assert there[name] == pytest.approx(here[name], rel=1e-3, abs=1e-4, nan_ok=True), name
    for step, twin in zip(metrics_of(one), metrics_of(other), strict=True):
        names = step.keys() - OF_RANKS
        assert names == twin.keys() - OF_RANKS
        for name in names:
            assert twin[name] == pytest.approx(step[name], rel=1e-3, abs=2e-6), name
