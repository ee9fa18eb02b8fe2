"""The outputs of `train_some_steps` in a folder: parameters, metrics, and numbers of tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    """The numbers of each step's tokens, by the step's place and their name."""
    return {path.stem: np.load(path) for path in folder.glob("*.npy")}


def assert_same_outputs(one: Path, other: Path) -> None:
    """Numbers of tokens, and metrics but for those that differ with the ranks."""
    assert_near(tokens_of(one), tokens_of(other), 1e-4)
    for step, twin in zip(
        metrics_of(one),
        metrics_of(other),
        strict=True,
    ):
        assert_near(step, twin, 2e-6)


def assert_near(one: Mapping[str, Any], other: Mapping[str, Any], most: float) -> None:
    names = one.keys() - OF_RANKS
    assert names == other.keys() - OF_RANKS
    for name in names:
        expected = pytest.approx(
            one[name],
            rel=1e-3,
            abs=most,
            nan_ok=True,
        )
        assert other[name] == expected, name
