"""Model FLOPs: the share of a GPU's peak that a training step uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from protocol.model_folder import read_config
from protocol.recipe import Recipe

from services.learner.planning.machine import peak_flops
from services.learner.planning.shapes import ModelShape, shape_from_config, trained_flops


@dataclass(frozen=True)
class Flops:
    """The FLOPs of a job's models; nothing is reported if the policy's shape is unknown."""

    policy: ModelShape | None
    critic: ModelShape | None
    num_gpus: int
    peak: float | None  # FLOP/s of one GPU in the dtype of the recipe
    adapter: bool = False  # only an adapter of the policy learns

    @classmethod
    def from_models(
        cls, recipe: Recipe, policy: Path, critic: Path | None, num_gpus: int, device: str
    ) -> Flops:
        peak = peak_flops(device) if recipe.model.dtype != "float32" else None
        adapter = recipe.model.lora is not None
        return cls(_shape(policy), _shape(critic) if critic else None, num_gpus, peak, adapter)

    def of(
        self, lengths: Sequence[int], seconds: float, trained_share: float = 1.0
    ) -> dict[str, float]:
        """Return FLOP/s of a GPU in training, and the share of its peak.

        ``lengths`` are the tokens of each sequence of the step, of which it trains on a share.
        """
        if self.policy is None or seconds <= 0:
            return {}
        flops = sum(
            trained_flops(self.policy, self.critic, length, adapter=self.adapter)
            for length in lengths
        )
        rate = flops * trained_share / seconds / self.num_gpus
        return {"flops_per_second": rate} | ({"mfu": rate / self.peak} if self.peak else {})


def estimate_work(policy: Path, critic: Path | None) -> Callable[[int], float]:
    """Return a function from the tokens of a sequence to FLOPs, or to tokens for unknown shapes."""
    shape = _shape(policy)
    if shape is None:
        return float
    return partial(trained_flops, shape, _shape(critic) if critic else None)


def _shape(folder: Path) -> ModelShape | None:
    try:
        return shape_from_config(read_config(folder))
    except (OSError, ValueError):
        return None
