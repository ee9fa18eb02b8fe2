"""Problems of a plan, and warnings about it, each with the setting that helps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from itertools import combinations
from operator import or_
from typing import Any

from protocol import limits
from protocol.placement import MAX_GPU_SHARE
from protocol.recipe import Recipe

from services.learner.ordering import order_warnings
from services.learner.planning.footprint import LearnerFootprint, learner_footprint, total
from services.learner.planning.machine import MAX_GPUS, Machine
from services.learner.planning.plan import Plan
from services.learner.planning.shapes import GPUS_PER_NODE, sequence_problem
from services.learner.planning.units import GIB, format_bytes

_SMALL_CHUNK_TOKENS = 256  # a chunk of log-probs whose memory hardly counts
Settings = dict[str, Any]


def find_problems(plan: Plan) -> list[str]:
    """List the reasons why the job would not run."""
    checks = (_check_limits, _check_files, _check_learner, _check_heads, _check_engine)
    texts = (text for check in checks for text in check(plan))
    return [*plan.problems, *limits.find_problems(plan.recipe), *texts]


def warnings(plan: Plan) -> list[str]:
    """List what may not work as one expects."""
    checks = (_warn_of_staleness, _warn_of_unknown_memory)
    texts = (text for check in checks for text in check(plan))
    return [*order_warnings(plan.recipe), *plan.remarks, *texts]


def _warn_of_staleness(plan: Plan) -> Iterator[str]:
    algorithm = plan.recipe.algorithm
    staleness = plan.recipe.training.max_staleness
    if staleness and algorithm.old_logprobs == "recompute" and algorithm.correction == "none":
        yield (
            f"training.max_staleness = {staleness}, but nothing corrects for it: with old_logprobs "
            "= 'recompute' the ratio is taken against the policy as each step begins. Set "
            "algorithm.correction = 'token_tis', or old_logprobs = 'rollout'"
        )


def _warn_of_unknown_memory(plan: Plan) -> Iterator[str]:
    for model in plan.models:
        if model.shape is None:
            yield f"the memory of {model.path!r} ({model.role}) is unknown: {model.shape_source}"


def _check_limits(plan: Plan) -> Iterator[str]:
    shape = plan.models[0].shape
    max_context = plan.recipe.model.max_context
    if shape is not None and max_context > shape.max_positions:
        yield (
            f"model.max_context = {max_context}, but the model has {shape.max_positions} "
            "positions; lower it"
        )
    limit = plan.machine.redis_bytes
    if plan.redis_bytes > limit // 2:
        yield (
            f"the job can hold {plan.redis_bytes / GIB:.1f} GiB in Redis at once and is refused "
            f"where that is more than half of maxmemory, {limit / GIB:.1f} GiB here; set "
            f"WEIR_REDIS_MAXMEMORY to {2 * plan.redis_bytes:,} or more"
        )


def _check_files(plan: Plan) -> Iterator[str]:
    for model in plan.models:
        if model.problem is not None:
            yield f"the job would refuse the model of the {model.role}: {model.problem}"
        elif model.folder is None and not plan.machine.model_hub:
            roots = ":".join(map(str, plan.machine.model_roots))
            yield (
                f"the model {model.path!r} ({model.role}) is not under {roots} (WEIR_MODEL_ROOTS); "
                "to take it from a model hub set WEIR_MODEL_HUB=on"
            )
    for tasks in plan.tasks:
        if tasks.problem is not None:
            yield f"{tasks.field} = {tasks.path!r}: {tasks.problem}"


def _check_learner(plan: Plan) -> Iterator[str]:
    machine = plan.machine
    if plan.learner is not None and not plan.learner_fits and not machine.on_cpus:
        usable = f"{machine.learner_bytes / GIB:.1f} GiB are usable"
        if machine.takes_turns:
            resident = total(plan.learner.resident) / GIB
            at_rest = machine.learner_bytes_at_rest / GIB
            usable += f"; between its turns {resident:.1f} of {at_rest:.1f} GiB"
        yield (
            f"the learner does not fit: {plan.learner.peak / GIB:.1f} GiB at its peak, of each of "
            f"its GPUs {usable}. {remedy(plan)}"
        )
    if not plan.host_fits:
        advice = "offload less (optimizer.offload), or take nodes with more memory"
        if machine.on_cpus:
            advice = "lower training.logprob_chunk_tokens, or plan for GPUs: --gpus 8"
        needed = total(plan.host) / GIB
        usable = machine.usable_host_bytes / GIB
        yield f"a node's memory is not enough: {needed:.1f} of {usable:.1f} usable GiB; {advice}"


def _check_heads(plan: Plan) -> Iterator[str]:
    for problem in plan.split_problems:
        yield f"the job would refuse the model {plan.recipe.model.path!r} on {problem}"
    num_ranks = plan.machine.placement.num_ranks
    yield from _sequence_problems(plan, plan.recipe.training.sequence_parallel, num_ranks)


def _sequence_problems(plan: Plan, size: int, num_ranks: int) -> Iterator[str]:
    for shape in filter(None, plan.shapes):
        if problem := sequence_problem(size, shape.heads, shape.key_value_heads, num_ranks):
            yield problem


def _check_engine(plan: Plan) -> Iterator[str]:
    rollout = plan.rollout
    machine = plan.machine
    if rollout is None:
        return
    needed = min(plan.recipe.rollout.group_size, rollout.responses_asked)
    if plan.engine_fits and rollout.responses_held >= needed:
        return
    advice = f"in WEIR_GPUS split it over more GPUs than {machine.engine}"
    if machine.on_cpus:
        advice = "sample on GPUs (WEIR_GPUS)"
    elif machine.engine.share is not None:
        advice = f"in WEIR_GPUS give it a larger share than {machine.engine}, or a GPU of its own"
    if machine.engine_cache_bytes:
        change = "raise" if plan.engine_fits else "lower"
        advice += f", or {change} WEIR_ROLLOUT_KV_CACHE_MIB"
    yield (
        f"an engine of the rollout holds {rollout.responses_held} responses of "
        f"{plan.recipe.model.max_context} tokens at once beside "
        f"{format_bytes(rollout.weights.bytes)} of weights, in "
        f"{format_bytes(machine.engine_bytes)}; a group has {needed}: {advice}"
    )


def remedy(plan: Plan) -> str:
    """Return the fewest settings that make the learner fit, on more GPUs only if necessary."""
    for num_gpus, usable, steps in _gpu_options(plan.machine):
        for sharing in ({}, *_sharing_settings(plan, num_gpus)):
            recipe = change_recipe(plan.recipe, sharing)
            settings = _fitting_settings(replace(plan, recipe=recipe), num_gpus, *usable)
            if settings is None:
                continue
            settings = sharing | settings
            values = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
            if values:
                steps = [f"set {', '.join(values)}", *steps]
            text = " and ".join(steps)
            return text[:1].upper() + text[1:]
    return "Lower model.max_context, or take larger GPUs or a larger host"


def _gpu_options(machine: Machine) -> Iterator[tuple[int, tuple[int, int], list[str]]]:
    """Yield the learner's GPUs, bytes of each in and between its turns, and how to get them."""
    num_gpus = machine.placement.num_ranks
    whole = int(machine.gpu_bytes * MAX_GPU_SHARE)
    yield num_gpus, (machine.learner_bytes, machine.learner_bytes_at_rest), []
    if machine.learner_bytes < whole:
        yield num_gpus, (whole, whole), ["give the learner its GPUs alone (learner= in WEIR_GPUS)"]
    for power in range(num_gpus.bit_length(), MAX_GPUS.bit_length()):
        larger = 2**power
        text = f"give the learner {larger} GPUs (learner= in WEIR_GPUS)"
        yield larger, (whole, whole), [text]


def _sharing_settings(plan: Plan, num_gpus: int) -> Iterator[Settings]:
    for size in range(plan.recipe.training.sequence_parallel + 1, GPUS_PER_NODE + 1):
        if not any(_sequence_problems(plan, size, num_gpus)):
            yield {"training.sequence_parallel": size}


def _fitting_settings(plan: Plan, num_gpus: int, usable: int, at_rest: int) -> Settings | None:
    """Return the fewest settings with which the learner fits, or None."""
    policy, critic = plan.shapes
    assert policy is not None, "there is a footprint, so its shape is known"
    ranks_on_node = min(num_gpus, plan.machine.ranks_of_node)
    savings = list(_savings(plan.recipe))

    def footprint(settings: Mapping[str, Any]) -> LearnerFootprint:
        recipe = change_recipe(plan.recipe, settings)
        return learner_footprint(recipe, policy, critic, num_gpus, ranks_on_node)

    if not footprint(reduce(or_, savings, {})).fits(usable, at_rest):
        return None
    for number in range(len(savings) + 1):
        for chosen in combinations(savings, number):
            settings = reduce(or_, chosen, {})
            learner = footprint(settings)
            host_fits = total(learner.host) <= plan.machine.usable_host_bytes
            if host_fits and learner.fits(usable, at_rest):
                return settings
    return None


def _savings(recipe: Recipe) -> Iterator[Settings]:
    """Yield settings that save memory, the cheapest first."""
    optimizers = ["optimizer"] if recipe.critic is None else ["optimizer", "critic.optimizer"]
    shortest = math.ceil(recipe.model.max_context / recipe.training.sequence_parallel)
    savings: list[Settings] = [
        *({f"{optimizer}.zero_stage": 3} for optimizer in optimizers),
        {"training.recompute_activations": True},
        {"training.micro_batch_tokens": shortest},
        {"training.logprob_chunk_tokens": _SMALL_CHUNK_TOKENS},
    ]
    for offload in ("optimizer", "all"):
        for optimizer in optimizers:
            savings.append({f"{optimizer}.zero_stage": 3, f"{optimizer}.offload": offload})
    for saving in savings:
        changes = {
            name: value
            for name, value in saving.items()
            if value != reduce(getattr, name.split("."), recipe)
        }
        if changes:
            yield changes


def change_recipe(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe with these settings, by dotted name."""
    tables = recipe.model_dump()
    for name, value in changes.items():
        *path, field = name.split(".")
        reduce(dict.__getitem__, path, tables)[field] = value
    return Recipe.model_validate(tables)
