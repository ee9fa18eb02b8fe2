"""Train in a lean way and in a whole way, on as many ranks as call it.

The lean way leaves out samples without a signal, and computes a group's prompt once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from protocol.recipe import Recipe
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from services.learner.training import trainer
from services.learner.training.batching import MicroBatch
from services.learner.training.engine import init_ranks, leave_ranks
from services.learner.training.models import Models, Policy, read_model
from services.learner.training.samples import Measured, Sample
from services.learner.training.sequence import RankGroup
from services.learner.training.trainer import Part, Trainer
from tests.engine.train_some_steps import recipe_of, samples_of_step


class PlainEngine:
    """A policy in float64 without DeepSpeed, which keeps the gradients of its updates."""

    device = torch.device("cpu")
    updates = 0

    def __init__(self, module: Policy) -> None:
        self.module = module.double()
        self.positions = 0
        self.gradients: list[Tensor] = []

    def __call__(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        self.positions += len(batch.input_ids)
        return self.module(batch, temperature)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        with torch.no_grad():
            yield

    def update(self, parts: Sequence[Part], compute_loss: Callable[[Part], Tensor]) -> float:
        for part in parts:
            compute_loss(part).backward()
        gradient = nn.utils.parameters_to_vector(
            [cast(Tensor, weight.grad) for weight in self.module.parameters()]
        )
        torch.distributed.all_reduce(gradient)
        self.module.zero_grad()
        self.gradients.append(gradient)
        return float(gradient.norm())


def samples_with_idle_groups(step: int, *, idle_groups: Sequence[int]) -> list[Sample]:
    """The samples of a step with a prompt per group, where groups and one more lack a signal."""
    samples = samples_of_step(step)
    prompts = {sample.group: sample.prompt_ids for sample in samples}
    samples = [replace(sample, prompt_ids=prompts[sample.group]) for sample in samples]
    idle = [sample.group in idle_groups or index == 1 for index, sample in enumerate(samples)]
    return [replace(s, advantage=0.0) if i else s for s, i in zip(samples, idle, strict=True)]


def compare_gradients(model: str, cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compute a step's gradients in float64 both ways, and compare them."""
    init_ranks()
    results = [_compare(model, case) for case in cases]
    leave_ranks()
    return results


def _compare(model: str, case: dict[str, Any]) -> dict[str, Any]:
    idle_groups = case.pop("idle_groups", (0, 2, 3, 5))
    trainer.SPOT_CHECK_EVERY = case.pop("spot_check_every", 8)
    samples = samples_with_idle_groups(0, idle_groups=idle_groups)
    recipe = _recipe(model, **case)
    engine, measured = _step(recipe, model, samples, is_whole=False)
    whole_engine, whole = _step(recipe, model, samples, is_whole=True)
    gaps = [
        float((lean - full).norm() / full.norm().clamp(min=1e-30))
        for lean, full in zip(engine.gradients, whole_engine.gradients, strict=True)
    ]
    return {
        "gap": max(gaps),
        "norms": [float(gradient.norm()) for gradient in whole_engine.gradients],
        "positions": engine.positions / whole_engine.positions,
        "metrics": measured.metrics,
        "whole metrics": whole.metrics,
        "without log-prob": int(measured.tokens["entropies"].size)
        - int((measured.tokens["entropies"] > 0).sum()),
    }


def _recipe(model: str, **settings: Any) -> Recipe:
    training = ("updates_per_batch", "micro_batch_tokens", "sequence_parallel")
    recipe = recipe_of(model, {})
    algorithm = {name: value for name, value in settings.items() if name not in training}
    step = {name: value for name, value in settings.items() if name in training}
    return recipe.model_copy(
        update={
            "algorithm": recipe.algorithm.model_copy(update=algorithm),
            "training": recipe.training.model_copy(update=step),
        }
    )


def _step(
    recipe: Recipe, model: str, samples: list[Sample], *, is_whole: bool
) -> tuple[PlainEngine, Measured]:
    models = _PlainModels(recipe, Path(model))
    models.shares_prompts = not is_whole
    either = Trainer(recipe, cast(Models, models))
    assert not either.needs_all
    either.needs_all = is_whole
    return models.policy, either.train(samples)


class _PlainModels:
    critic = None
    reference = None
    shares_prompts: bool

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.policy_folder = folder
        self.group = RankGroup.create(recipe.training.sequence_parallel)
        model = read_model(AutoModelForCausalLM, folder, self.group, torch.float64)
        self.policy = PlainEngine(Policy(model, recipe.training.logprob_chunk_tokens, self.group))


def train_both_ways(model: str, out: str, **settings: Any) -> list[float]:
    """Train three steps under DeepSpeed both ways, the last without a signal, and export each.

    Returns:
        the norms of the gradients of the last step.
    """
    init_ranks()
    norms = []
    for name, is_whole in (("lean", False), ("whole", True)):
        recipe = recipe_of(model, settings)
        models = Models(recipe, Path(model), Path(model))
        assert models.shares_prompts
        models.shares_prompts = not is_whole
        either = Trainer(recipe, models)
        either.needs_all = is_whole
        for step, idle_groups in enumerate([(0, 2, 3, 5), (1, 4), range(6)]):
            samples = samples_with_idle_groups(step, idle_groups=idle_groups)
            samples = [replace(s, advantage=0.0) if step == 2 else s for s in samples]
            norms.append(either.train(samples).metrics["grad_norm"])
            models.export(Path(out) / f"{name} {step}")
    leave_ranks()
    return norms
