"""What makes a learner fit that does not: settings of the recipe, or more GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from json import dumps
from typing import Any

from protocol.recipe import Recipe

from deploy.placement import MOST_OF_A_GPU
from services.learner.planning.footprint import LearnerFootprint, learner_footprint
from services.learner.planning.machine import Machine
from services.learner.planning.plan import Plan

_MOST_GPUS = 1024
_SMALL_CHUNK = 256


def remedy(plan: Plan) -> str:
    """The fewest settings that make the learner fit, on more GPUs only if it must be."""
    for num_gpus, usable, words in _more_and_more(plan.machine):
        settings = fitting(plan, num_gpus, usable)
        if settings is not None:
            values = ", ".join(f"{name} = {dumps(value)}" for name, value in settings.items())
            steps = [f"set {values}"] if settings else []
            return _sentence(" and ".join([*steps, *words]))
    return "Lower model.max_context, or take larger GPUs or a larger host"


def fitting(plan: Plan, num_gpus: int, usable: int) -> dict[str, Any] | None:
    """The settings with which the learner fits on so many GPUs; None if it cannot.

    Args:
        plan: its footprints are known.
        num_gpus: GPUs of the learner.
        usable: bytes of each.
    """
    savings = list(_savings(plan.recipe))
    if _footprint(plan, _all_of(savings), num_gpus).peak > usable:
        return None
    for number in range(len(savings) + 1):
        for chosen in map(_all_of, combinations(savings, number)):
            footprint = _footprint(plan, chosen, num_gpus)
            on_host = footprint.host_bytes <= plan.machine.usable_host_bytes
            if footprint.peak <= usable and on_host:
                return chosen
    return None


def _savings(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Settings that save memory, those that cost least first."""
    optimizers = ["optimizer", *(["critic.optimizer"] if recipe.critic is not None else [])]
    savings = [
        *({f"{each}.zero_stage": 3} for each in optimizers),
        {"training.recompute_activations": True},
        {"training.micro_batch_tokens": recipe.model.max_context},
        {"training.logprob_chunk_tokens": _SMALL_CHUNK},
        *({f"{each}.zero_stage": 3, f"{each}.offload": "optimizer"} for each in optimizers),
        *({f"{each}.zero_stage": 3, f"{each}.offload": "all"} for each in optimizers),
    ]
    for saving in savings:
        changes = {name: value for name, value in saving.items() if value != _value(recipe, name)}
        if changes:
            yield changes


def _all_of(savings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for saving in savings for name, value in saving.items()}


def changed_recipe(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with the settings of these dotted names changed."""
    data = recipe.model_dump()
    for name, value in changes.items():
        *tables, last = name.split(".")
        table = data
        for part in tables:
            table = table[part]
        table[last] = value
    return Recipe.model_validate(data)


def _value(recipe: Recipe, name: str) -> Any:
    value: Any = recipe
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _footprint(plan: Plan, settings: Mapping[str, Any], num_gpus: int) -> LearnerFootprint:
    """Of the plan's recipe with other settings, on so many GPUs."""
    policy, critic = plan.shapes
    assert policy is not None, "there is a footprint, so its shape is known"
    on_node = min(num_gpus, plan.machine.ranks_of_node)
    recipe = changed_recipe(plan.recipe, settings)
    return learner_footprint(recipe, policy, critic, num_gpus, on_node)


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
