"""What a plan warns of, each with the setting that helps. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from services.learner.formulas import order_warnings
from services.learner.planning.footprint import total
from services.learner.planning.machine import GIB
from services.learner.planning.plan import Plan
from services.learner.planning.remedies import remedy
from services.learner.planning.shape import sequence_problem


def warnings(plan: Plan) -> list[str]:
    """Everything that will not work, or not as one may expect."""
    checks = (_staleness, _context, _files, _redis, _learner, _host, _heads, _rollout)
    return [*order_warnings(plan.recipe), *(text for check in checks for text in check(plan))]


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
            yield f"{tasks.field} = {tasks.path!r}: {tasks.problem}"


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
    if footprint is None or plan.learner_fits or plan.machine.on_cpus:
        return
    num_gpus = plan.machine.learner_gpus
    gpus = "its GPU" if num_gpus == 1 else f"each of its {num_gpus} GPUs"
    yield (
        f"the learner does not fit: {footprint.peak / GIB:.1f} GiB at its peak, of {gpus} "
        f"{usable / GIB:.1f} GiB are usable. {remedy(plan)}"
    )


def _host(plan: Plan) -> Iterator[str]:
    if plan.host_fits:
        return
    whose, advice = "a node's", "offload less (optimizer.offload), or take nodes with more memory"
    if plan.machine.on_cpus:
        whose = "this machine's"
        advice = "lower training.micro_batch_tokens, or see what it takes on GPUs: --gpus 8"
    needed, usable = total(plan.host) / GIB, plan.machine.usable_host_bytes / GIB
    yield (
        f"{whose} memory is not enough: {needed:.1f} GiB of {usable:.1f} GiB that are usable; "
        + advice
    )


def _heads(plan: Plan) -> Iterator[str]:
    for text in plan.split_problems:
        yield f"the job would refuse the model {plan.recipe.model.path!r} on {text}"
    size, num_ranks = plan.recipe.training.sequence_parallel, plan.machine.learner_gpus
    for shape in plan.shapes:
        if shape and (
            problem := sequence_problem(size, shape.heads, shape.key_value_heads, num_ranks)
        ):
            yield problem


def _rollout(plan: Plan) -> Iterator[str]:
    rollout, machine = plan.rollout, plan.machine
    if rollout is None:
        return
    cache, usable = machine.engine_cache_bytes, machine.engine_bytes
    if cache and rollout.weights.bytes + cache > usable:
        yield (
            f"an engine of the rollout does not fit: its weights take "
            f"{rollout.weights.bytes / GIB:.1f} GiB and its keys and values {cache / GIB:.1f} GiB "
            f"(WEIR_ROLLOUT_KV_CACHE_MIB), of a GPU {usable / GIB:.1f} GiB are usable; lower "
            f"that, or {_more_for_an_engine(plan)}"
        )
        return
    wanted = min(plan.recipe.rollout.group_size, rollout.responses_asked)
    if rollout.responses_held < wanted:
        yield (
            f"of responses of {plan.recipe.model.max_context} tokens an engine of the rollout "
            f"holds {rollout.responses_held} at once, less than a group of {wanted}; "
            + ("raise WEIR_ROLLOUT_KV_CACHE_MIB, or " if cache else "")
            + _more_for_an_engine(plan)
        )


def _more_for_an_engine(plan: Plan) -> str:
    """What gives the smallest engine more memory."""
    machine = plan.machine
    if machine.on_cpus:
        return "sample on GPUs (WEIR_GPUS)"
    if machine.engine.share is not None:
        return f"in WEIR_GPUS give it a larger share than {machine.engine}, or a GPU of its own"
    return f"in WEIR_GPUS split it over more GPUs than {machine.engine}"
