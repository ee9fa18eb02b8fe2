"""Limits of jobs beyond a recipe's own: a gateway refuses what `find_problems` names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from protocol.recipe import Purpose, Recipe, Sampling

# vLLM refuses a higher temperature, and silently raises a lower one.
MIN_TEMPERATURE = 0.01
MAX_TEMPERATURE = 2.0
MIN_LEARNING_RATE = 1e-12
MAX_LEARNING_RATE = 1.0
MAX_TOKENS = 2**53  # scripts in Redis, metrics and browsers count no further
_OTHER_MEANINGS = {
    "a group of samples": rf"({'|'.join(Purpose)}):",
    "an id": r"ft(job|ckpt)-",
    "a checkpoint": r"(?s).*@\d+$",
    "an option": r"-",
    "a recipe file": r"(?s).*\.toml$",
}


def find_problems(recipe: Recipe) -> Iterator[str]:
    """Yield the problems of a recipe that depend on no model and no deployment, by field."""
    yield from _name_problems(recipe.name)
    yield from _number_problems(recipe)


def _name_problems(name: str) -> Iterator[str]:
    for meaning, pattern in _OTHER_MEANINGS.items():
        if re.match(pattern, name):
            yield f"name: `weir` would take {name!r} for {meaning}; choose another name"


def _number_problems(recipe: Recipe) -> Iterator[str]:
    yield from _total_problems("training.steps", recipe.training.steps, recipe)
    yield from _total_problems("critic.pretrain_steps", recipe.num_pretrain_steps, recipe)
    yield from _sampling_problems("rollout", recipe.rollout.sampling)
    for name, evaluation in recipe.evaluations.items():
        field = f"evaluation.others.{name}" if name else "evaluation"
        if evaluation.sampling is not None:
            yield from _sampling_problems(field, evaluation.sampling)
    optimizers = {"optimizer": recipe.optimizer}
    if recipe.critic is not None:
        optimizers["critic.optimizer"] = recipe.critic.optimizer
    for field, optimizer in optimizers.items():
        if not MIN_LEARNING_RATE <= optimizer.learning_rate <= MAX_LEARNING_RATE:
            yield (
                f"{field}.learning_rate: must be {MIN_LEARNING_RATE:g} to {MAX_LEARNING_RATE:g}, "
                f"got {optimizer.learning_rate:g}; start with 1e-6"
            )


def _total_problems(field: str, steps: int, recipe: Recipe) -> Iterator[str]:
    factors = {
        field: steps,
        "training.groups_per_step": recipe.training.groups_per_step,
        "rollout.group_size": recipe.rollout.group_size,
        "model.max_context": recipe.model.max_context,
    }
    if math.prod(factors.values()) > MAX_TOKENS:
        largest = max(factors, key=factors.__getitem__)
        product = " x ".join(f"{name} {number:,}" for name, number in factors.items())
        yield f"{largest}: lower it; {product} may be at most {MAX_TOKENS:,} tokens"


def _sampling_problems(field: str, sampling: Sampling) -> Iterator[str]:
    if not MIN_TEMPERATURE <= sampling.temperature <= MAX_TEMPERATURE:
        yield (
            f"{field}.sampling.temperature: must be {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}, "
            f"got {sampling.temperature:g}"
        )
