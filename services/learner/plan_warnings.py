"""What a plan warns of, each with the setting that helps. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from protocol.recipe import Recipe

from services.learner.footprint import GIB, learner_footprint
from services.learner.ordering import order_warnings

if TYPE_CHECKING:
    from services.learner.plan import Plan

_MOST_GPUS = 1024
_SMALL_CHUNK = 256


def warnings(plan: Plan) -> list[str]:
    """Everything that will not work, or not as one may expect."""
    parts = (_order, _staleness, _context, _files, _redis, _learner, _rollout)
    return [text for part in parts for text in part(plan)]


def _order(plan: Plan) -> Iterator[str]:
    yield from order_warnings(plan.recipe)


def _staleness(plan: Plan) -> Iterator[str]:
    algorithm, staleness = plan.recipe.algorithm, plan.recipe.training.max_staleness
    if staleness and algorithm.old_logprobs == "recompute" and algorithm.correction == "none":
        yield (
            f"training.max_staleness = {staleness}, but nothing corrects for it: with old_logprobs "
            "= 'recompute' the ratio is taken against the policy as each step begins. Set "
            "algorithm.correction = 'token_tis', or old_logprobs = 'rollout'"
        )


def _context(plan: Plan) -> Iterator[str]:
    shape, wanted = plan.models[0].shape, plan.recipe.model.max_context
    if shape is not None and wanted > shape.max_positions:
        yield (
            f"model.max_context = {wanted}, but the model knows {shape.max_positions} positions; "
            "lower it"
        )


def _files(plan: Plan) -> Iterator[str]:
    for model in plan.models:
        if model.problem is not None:
            yield f"the job would refuse the model of the {model.role}: {model.problem}"
        elif model.folder is None and not plan.machine.model_hub:
            yield (
                f"the model {model.path!r} ({model.role}) is not under "
                f"{':'.join(map(str, plan.machine.model_roots))} (WEIR_MODEL_ROOTS); to take it "
                "from a model hub set WEIR_MODEL_HUB=on"
            )
        if model.shape is None:
            yield f"the memory of {model.path!r} ({model.role}) is not known: {model.shape_source}"
    for tasks in plan.tasks:
        if tasks.problem is not None:
            yield f"tasks.{tasks.role} = {tasks.path!r}: {tasks.problem}"


def _redis(plan: Plan) -> Iterator[str]:
    limit = plan.machine.redis_bytes
    if plan.redis_bytes > limit // 2:
        yield (
            f"the job can hold {plan.redis_bytes / GIB:.1f} GiB in Redis at once and is refused "
            f"where that is more than half of maxmemory, {limit / GIB:.1f} GiB here; set "
            f"WEIR_REDIS_MAXMEMORY to {2 * plan.redis_bytes:,} or more"
        )


def _learner(plan: Plan) -> Iterator[str]:
    footprint, usable = plan.learner, plan.machine.learner_bytes
    if footprint is None or footprint.peak <= usable:
        return
    num_gpus = plan.machine.learner_gpus
    gpus = "its GPU" if num_gpus == 1 else f"each of its {num_gpus} GPUs"
    yield (
        f"the learner does not fit: {footprint.peak / GIB:.1f} GiB at its peak, of {gpus} "
        f"{usable / GIB:.1f} GiB are usable. {_remedy(plan)}"
    )


def _remedy(plan: Plan) -> str:
    """The fewest settings that make the learner fit, on more GPUs only if it must be."""
    for num_gpus in _more_and_more(plan.machine.learner_gpus):
        settings = _fitting(plan, num_gpus)
        if settings is not None:
            steps = [f"set {', '.join(settings)}"] if settings else []
            if num_gpus != plan.machine.learner_gpus:
                steps.append(f"take {num_gpus} GPUs (--learner-gpus, WEIR_LEARNER_RANKS)")
            return _sentence(" and ".join(steps))
    return "Lower model.max_context, or take larger GPUs"


def _fitting(plan: Plan, num_gpus: int) -> list[str] | None:
    """The settings with which the learner fits on so many GPUs; none if it cannot."""
    recipe, settings = plan.recipe, []
    peak = _peak(plan, recipe, num_gpus)
    for name, value in _savings(plan.recipe):
        if peak <= plan.machine.learner_bytes:
            return settings
        changed = _with(recipe, name, value)
        if _peak(plan, changed, num_gpus) < peak:
            recipe, peak = changed, _peak(plan, changed, num_gpus)
            settings.append(f"{name} = {str(value).lower()}")
    return settings if peak <= plan.machine.learner_bytes else None


def _savings(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Settings that save memory, those that cost least first."""
    yield "optimizer.zero_stage", 3
    if recipe.critic is not None:
        yield "critic.optimizer.zero_stage", 3
    yield "training.recompute_activations", True
    yield "training.micro_batch_tokens", recipe.model.max_context
    yield "training.logprob_chunk_tokens", _SMALL_CHUNK


def _with(recipe: Recipe, name: str, value: Any) -> Recipe:
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


def _more_and_more(num_gpus: int) -> Iterator[int]:
    """What there is, then the powers of two above it."""
    yield num_gpus
    yield from (2**n for n in range(num_gpus.bit_length(), _MOST_GPUS.bit_length()))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _rollout(plan: Plan) -> Iterator[str]:
    rollout, recipe = plan.rollout, plan.recipe
    if rollout is None:
        return
    cache, gpu_bytes = plan.machine.engine_cache_bytes, plan.machine.gpu_bytes
    if cache and rollout.weights.bytes + cache > gpu_bytes:
        yield (
            f"an engine of the rollout does not fit: its weights take "
            f"{rollout.weights.bytes / GIB:.1f} GiB and its keys and values {cache / GIB:.1f} GiB "
            f"(WEIR_ROLLOUT_KV_CACHE_MIB), of a GPU of {gpu_bytes / GIB:.1f} GiB; lower that, or "
            "split the model over more GPUs (WEIR_ROLLOUT_GPUS)"
        )
        return
    wanted = min(recipe.rollout.group_size, rollout.responses_asked)
    if rollout.responses_held < wanted:
        yield (
            f"of responses of {recipe.model.max_context} tokens an engine of the rollout holds "
            f"{rollout.responses_held} at once, less than a group of {wanted}; "
            + ("raise WEIR_ROLLOUT_KV_CACHE_MIB, or " if cache else "")
            + f"split the model over more GPUs than {plan.machine.gpus_per_engine} "
            "(WEIR_ROLLOUT_GPUS)"
        )
