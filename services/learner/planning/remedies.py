"""What makes a learner fit that does not: settings of the recipe, or more GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protocol.recipe import Recipe

from deploy.placement import MOST_OF_A_GPU
from services.learner.planning.footprint import learner_footprint
from services.learner.planning.machine import Machine
from services.learner.planning.plan import Plan

_MOST_GPUS = 1024
_SMALL_CHUNK = 256


def remedy(plan: Plan) -> str:
    """The fewest settings that make the learner fit, on more GPUs only if it must be."""
    for num_gpus, usable, words in _more_and_more(plan.machine):
        settings = fitting(plan, num_gpus, usable)
        if settings is not None:
            values = ", ".join(f"{name} = {str(value).lower()}" for name, value in settings.items())
            steps = [f"set {values}"] if settings else []
            return _sentence(" and ".join([*steps, *words]))
    return "Lower model.max_context, or take larger GPUs"


def fitting(plan: Plan, num_gpus: int, usable: int) -> dict[str, Any] | None:
    """The settings with which the learner fits on so many GPUs; None if it cannot.

    Args:
        plan: its footprints are known.
        num_gpus: GPUs of the learner.
        usable: bytes of each.
    """
    recipe, settings = plan.recipe, {}
    peak = _peak(plan, recipe, num_gpus)
    for name, value in _savings(plan.recipe):
        if peak <= usable:
            return settings
        changed = changed_recipe(recipe, name, value)
        if _peak(plan, changed, num_gpus) < peak:
            recipe, peak = changed, _peak(plan, changed, num_gpus)
            settings[name] = value
    return settings if peak <= usable else None


def _savings(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Settings that save memory, those that cost least first."""
    yield "optimizer.zero_stage", 3
    if recipe.critic is not None:
        yield "critic.optimizer.zero_stage", 3
    yield "training.recompute_activations", True
    yield "training.micro_batch_tokens", recipe.model.max_context
    yield "training.logprob_chunk_tokens", _SMALL_CHUNK


def changed_recipe(recipe: Recipe, name: str, value: Any) -> Recipe:
    """The recipe with the setting of this dotted name changed."""
    *tables, last = name.split(".")
    data = recipe.model_dump()
    table = data
    for part in tables:
        table = table[part]
    table[last] = value
    return Recipe.model_validate(data)


def _peak(plan: Plan, recipe: Recipe, num_gpus: int) -> int:
    policy, critic = plan.shapes
    assert policy is not None, "there is a footprint, so its shape is known"
    return learner_footprint(recipe, policy, critic, num_gpus).peak


def _more_and_more(machine: Machine) -> Iterator[tuple[int, int, list[str]]]:
    """GPUs of the learner, bytes of each, and how to have them: what there is, then more."""
    num_gpus, whole = machine.learner_gpus, int(machine.gpu_bytes * MOST_OF_A_GPU)
    yield num_gpus, machine.learner_bytes, []
    if machine.learner_bytes < whole:
        gpus = "its GPU" if num_gpus == 1 else "its GPUs"
        yield num_gpus, whole, [f"give the learner {gpus} alone (learner= in WEIR_GPUS)"]
    for power in range(num_gpus.bit_length(), _MOST_GPUS.bit_length()):
        yield 2**power, whole, [f"give the learner {2**power} GPUs (learner= in WEIR_GPUS)"]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
