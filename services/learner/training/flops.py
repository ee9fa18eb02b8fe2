"""Model FLOPs: how much of a GPU's arithmetic a training step has used."""

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
    """What a job's models compute; nothing is reported of a policy whose shape is not known."""

    policy: ModelShape | None
    critic: ModelShape | None
    num_gpus: int
    peak: float | None  # a second, of one GPU in the dtype of the recipe
    adapter: bool = False  # only one of the policy's learns

    @classmethod
    def of_models(
        cls, recipe: Recipe, policy: Path, critic: Path | None, num_gpus: int, device: str
    ) -> Flops:
        peak = peak_flops(device) if recipe.model.dtype != "float32" else None
        adapter = recipe.model.lora is not None
        return cls(_shape(policy), _shape(critic) if critic else None, num_gpus, peak, adapter)

    def of(self, lengths: Sequence[int], seconds: float) -> dict[str, float]:
        """A step's metrics: model FLOPs a second of one GPU while it trains, the share of its peak.

        ``lengths`` are tokens of the sequences that the step has learned from, once each.
        """
        if self.policy is None or seconds <= 0:
            return {}
        flops = sum(
            trained_flops(self.policy, self.critic, length, adapter=self.adapter)
            for length in lengths
        )
        rate = flops / seconds / self.num_gpus
        return {"flops_per_second": rate} | ({"mfu": rate / self.peak} if self.peak else {})


def work_of(policy: Path, critic: Path | None) -> Callable[[int], float]:
    """FLOPs to learn from a sequence of so many tokens; if no shape is known, its tokens."""
    shape = _shape(policy)
    if shape is None:
        return float
    return partial(trained_flops, shape, _shape(critic) if critic else None)


def _shape(folder: Path) -> ModelShape | None:
    try:
        return shape_from_config(read_config(folder))
    except (OSError, ValueError):
        return None
