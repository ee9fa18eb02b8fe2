"""What a training engine told of its steps, as `train_some_steps.py` leaves it in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

OF_RANKS = {"slowest_rank", "slowest_rank_seconds", "rank_seconds"}


def metrics_of(folder: Path) -> list[dict[str, float]]:
    return json.loads((folder / "metrics.json").read_text())


def tokens_of(folder: Path) -> dict[str, np.ndarray]:
    """What each step told of its tokens, by the step's place and the name."""
    return {path.stem: np.load(path) for path in folder.glob("*.npy")}


def same_tokens(one: Path, other: Path) -> None:
    here, there = tokens_of(one), tokens_of(other)
    assert here.keys() == there.keys()
    for name in here:
        assert there[name] == pytest.approx(here[name], rel=1e-3, abs=1e-4, nan_ok=True), name


def same_metrics(one: Path, other: Path) -> None:
    for here, there in zip(metrics_of(one), metrics_of(other), strict=True):
        names = here.keys() - OF_RANKS
        assert names == there.keys() - OF_RANKS
        for name in names:
            assert there[name] == pytest.approx(here[name], rel=1e-3, abs=2e-6), name
