"""What makes a learner fit that does not: settings of the recipe, or more GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    recipe = plan.recipe
    for changes in _savings(recipe):
        if _peak(plan, recipe, num_gpus) <= usable:
            break
        changed = changed_recipe(recipe, changes)
        if _peak(plan, changed, num_gpus) < _peak(plan, recipe, num_gpus):
            recipe = changed if _host_holds(plan, changed, num_gpus) else recipe
    if _peak(plan, recipe, num_gpus) > usable:
        return None
    return _needed(plan, recipe, num_gpus, usable)


def _needed(plan: Plan, fitting: Recipe, num_gpus: int, usable: int) -> dict[str, Any]:
    """What has to be changed, and nothing that is not needed once the rest is."""
    names = dict.fromkeys(name for changes in _savings(plan.recipe) for name in changes)
    settings = {name: _value(fitting, name) for name in names}
    settings = {n: value for n, value in settings.items() if value != _value(plan.recipe, n)}
    for name in list(settings):
        fewer = {n: value for n, value in settings.items() if n != name}
        try:
            changed = changed_recipe(plan.recipe, fewer)
        except ValueError:  # an offload without its stage
            continue
        if _peak(plan, changed, num_gpus) <= usable and _host_holds(plan, changed, num_gpus):
            settings = fewer
    return settings


def _savings(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Settings that save memory, those that cost least first."""
    optimizers = ["optimizer", *(["critic.optimizer"] if recipe.critic is not None else [])]
    yield from ({f"{each}.zero_stage": 3} for each in optimizers)
    yield {"training.recompute_activations": True}
    yield {"training.micro_batch_tokens": recipe.model.max_context}
    yield {"training.logprob_chunk_tokens": _SMALL_CHUNK}
    for offload in ("optimizer", "all"):
        for each in optimizers:
            yield {f"{each}.zero_stage": 3, f"{each}.offload": offload}


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


def _peak(plan: Plan, recipe: Recipe, num_gpus: int) -> int:
    return _footprint(plan, recipe, num_gpus).peak


def _host_holds(plan: Plan, recipe: Recipe, num_gpus: int) -> bool:
    return _footprint(plan, recipe, num_gpus).host_bytes <= plan.machine.usable_host_bytes


def _footprint(plan: Plan, recipe: Recipe, num_gpus: int) -> LearnerFootprint:
    policy, critic = plan.shapes
    assert policy is not None, "there is a footprint, so its shape is known"
    on_node = min(num_gpus, plan.machine.ranks_of_node)
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
