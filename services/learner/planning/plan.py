"""A plan: a recipe, where it would run, what it takes there, and what will not work.

The seconds are arithmetic: every assumption is a constant here, beside where it comes from.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from protocol.capacity import tasks_of, worst_case_bytes
from protocol.model_folder import CONFIG, has_config, has_weights, read_config
from protocol.placement import MOST_OF_A_GPU
from protocol.recipe import Recipe, Rollout
from protocol.rewards import AskedOfAJudge
from protocol.tasks import TaskFileError, read_tasks

from services.learner.model_source import folder_under_roots
from services.learner.ordering import order_warnings
from services.learner.planning.footprint import (
    BUILT_IN,
    DTYPE_BYTES,
    GPUS_OF_A_BOX,
    Item,
    LearnerFootprint,
    ModelShape,
    RolloutFootprint,
    Trained,
    UnknownModel,
    fitted_to_cpus,
    learner_footprint,
    rollout_footprint,
    sequence_problem,
    shape_from_config,
    split_problems,
    total,
    trained_models,
)
from services.learner.planning.machine import GIB, MOST_GPUS, Machine

FLOPS_USED = 0.25  # trainers for RL publish 0.14 to 0.27 of an H100's peak at 16k tokens
PREFILL_USED = 0.5  # of a GPU's peak, by an engine that reads prompts: an assumption
BANDWIDTH_USED = 0.6  # an assumption: decoding also waits for kernels, sampling and scheduling
LENGTH_USED = 0.5  # of the longest response, by the mean one: an assumption, a limit leaves room
PROMPT_USED = 0.25  # of the context beyond that, by prompts and an environment: an assumption
GROUPS_KEPT = 0.5  # of those that dynamic sampling looks at: an assumption
LEARNER_COPIES = 4e9  # bytes a second that a rank copies into memory not pinned: an estimate
# Parameters a second of torch's fused AdamW on one core, as each rank has: 47 GB/s of host memory,
# measured on an AMD EPYC.
HOST_ADAMW = 1.6e9
# Of a judge such as gpt-oss-20b: estimates, since none has been measured. Tokens that it writes in
# a call, by effort, and in a second on one H100 that answers 128 calls at once (8,000 to 10,000).
JUDGE_TOKENS = {"low": 600, "medium": 1200, "high": 3600}
JUDGE_SPEED = 9e3
CORRECT = 0.5  # of the responses, where a judge sees only those: an assumption
LINK = 2e10  # bytes a second between a GPU and its host: an assumption, PCIe 4.0 x16 has 3.2e10
ROLLOUT_VERIFIES = 1.7e9  # bytes a second, sha256 by one thread
ROLLOUT_LOADS = 4.3e9  # bytes a second, from files in the page cache
ASSUMED = (
    f"{FLOPS_USED:.0%} of a GPU's FLOP/s, {PREFILL_USED:.0%} to read prompts, {BANDWIDTH_USED:.0%} "
    f"of its memory bandwidth; the mean response has {LENGTH_USED:.0%} of the longest, "
    f"the mean prompt {PROMPT_USED:.0%} of the rest of the context; dynamic sampling keeps "
    f"{GROUPS_KEPT:.0%} of the groups; {CORRECT:.0%} of the responses are correct. Not counted: "
    "rules and what a judge reads, the judging of evaluations, checkpoints, communication between "
    "GPUs"
)
_SMALL_CHUNK = 256

# ------------------------------------------------------------------------------ what it takes


@dataclass(frozen=True)
class ModelFiles:
    role: str  # policy or critic
    path: str  # as the recipe has it
    folder: Path | None = None  # none: the job would not find it on this machine
    shape: ModelShape | None = None
    shape_source: str = "from the built-in table"  # or why the shape is not known
    problem: str | None = None  # why the job would refuse what is there


@dataclass(frozen=True)
class TaskFile:
    field: str  # of the recipe
    path: str
    num_tasks: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Span:
    what: str
    seconds: float
    formula: str


@dataclass(frozen=True)
class Plan:
    """What a recipe takes on a machine.

    Footprints are missing where a model's shape is not known, seconds also where it does not fit,
    on CPUs, and for a float32 model, of which the table of GPUs says nothing.
    """

    recipe: Recipe
    machine: Machine
    models: tuple[ModelFiles, ...]
    tasks: tuple[TaskFile, ...]
    learner: LearnerFootprint | None = None
    rollout: RolloutFootprint | None = None
    seconds: tuple[Span, ...] = ()  # the parts of a step, the step, the run
    remarks: tuple[str, ...] = ()  # of the models, their prompts and the memory

    @property
    def shapes(self) -> tuple[ModelShape | None, ModelShape | None]:
        """The policy's and the critic's."""
        return self.models[0].shape, self.models[1].shape if len(self.models) > 1 else None

    @property
    def learner_fits(self) -> bool:
        machine = self.machine
        usable = machine.learner_bytes, machine.learner_bytes_at_rest
        return self.learner is not None and self.learner.fits(*usable)

    @property
    def host(self) -> tuple[Item, ...]:
        """What the job takes of a node's own memory."""
        learner, rollout, machine = self.learner, self.rollout, self.machine
        ranks, engines = machine.placement.num_ranks, len(machine.placement.rollouts)
        if learner is None or rollout is None:
            return () if learner is None else learner.host
        if machine.takes_turns:
            asleep = engines * machine.gpus_per_engine * rollout.weights.bytes
            return *learner.host, Item("engines asleep", asleep, f"weights of {engines}")
        if not machine.on_cpus:
            return learner.host
        engine = rollout.weights.bytes + machine.engine_cache_bytes
        return (
            *learner.host,
            Item("ranks of the learner", ranks * learner.peak, f"{ranks} x its peak"),
            Item("engines", engines * engine, f"{engines} x weights, keys and values"),
        )

    @property
    def host_fits(self) -> bool:
        return total(self.host) <= self.machine.usable_host_bytes

    @property
    def engine_fits(self) -> bool:
        """Whether the smallest engine holds its weights and one response of full length."""
        if self.rollout is None or not self.rollout.responses_held:
            return False
        taken = self.rollout.weights.bytes + self.machine.engine_cache_bytes
        return taken <= self.machine.engine_bytes

    @property
    def split_problems(self) -> list[str]:
        policy, placement = self.shapes[0], self.machine.placement
        if policy is None:
            return []
        return list(split_problems(placement, policy.heads, policy.key_value_heads))

    @property
    def works(self) -> bool:
        fits = self.learner_fits and self.host_fits and self.engine_fits
        return fits and not self.split_problems

    @property
    def held_out(self) -> dict[str, int]:
        """Tasks of each evaluation's file; where it is missing, as many as the recipe wants."""
        found = {tasks.path: tasks.num_tasks for tasks in self.tasks}
        return {
            name: found.get(self.recipe.held_out_files[name]) or evaluation.tasks or 0
            for name, evaluation in self.recipe.evaluations.items()
        }

    @property
    def redis_bytes(self) -> int:
        return worst_case_bytes(self.recipe, self.held_out)


def make_plan(
    recipe: Recipe, machine: Machine, measure: Callable[[Path], ModelShape] | None = None
) -> Plan:
    """Look for what the recipe needs, and compute what it takes.

    Args:
        measure: for models of another family than Llama and Qwen; raises ValueError.
    """
    models = tuple(_models(recipe, machine, measure))
    plan = Plan(recipe, machine, models, tuple(_tasks(recipe)))
    policy, critic = plan.shapes
    if policy is None or (recipe.critic is not None and critic is None):
        return plan
    if machine.on_cpus and (fitting := fitted_to_cpus(recipe, policy, critic, machine)) != recipe:
        most = fitting.training.micro_batch_tokens
        text = f"micro-batches will have at most {most:,} tokens: more do not fit into the memory"
        recipe, plan = fitting, replace(plan, recipe=fitting, remarks=(text,))
    gpus, on_node = machine.placement.num_ranks, machine.ranks_of_node
    rollout = rollout_footprint(recipe, policy, machine)
    learner = learner_footprint(recipe, policy, critic, gpus, on_node)
    plan = replace(plan, learner=learner, rollout=rollout)
    is_counted = any(shape is not None and shape.counted for shape in plan.shapes)
    if machine.on_cpus or recipe.model.dtype == "float32" or not plan.works or is_counted:
        return plan
    models = trained_models(recipe, policy, critic, gpus, on_node)
    return replace(plan, seconds=seconds_of(recipe, models, machine, rollout, plan.held_out))


def _models(
    recipe: Recipe, machine: Machine, measure: Callable[[Path], ModelShape] | None
) -> Iterator[ModelFiles]:
    """The policy's model, and the critic's if the recipe has one, as the job would find them."""
    wanted = [("policy", "model.path", recipe.model.path)]
    if recipe.critic is not None:
        own, shared = recipe.critic.path, ("critic", "model.path", recipe.model.path)
        wanted.append(shared if own is None else ("critic", "critic.path", own))
    for role, field, path in wanted:
        folder = problem = None
        try:
            folder = folder_under_roots(path, machine.model_roots, field)
            folder = folder or (_downloaded(path) if machine.model_hub else None)
        except (OSError, ValueError) as error:
            problem = str(error)
        if folder is not None:
            yield ModelFiles(role, path, folder, *_shape_in(folder, measure))
        elif path in BUILT_IN:
            yield ModelFiles(role, path, shape=BUILT_IN[path], problem=problem)
        else:
            why = f"not on this machine, and not in the built-in table ({', '.join(BUILT_IN)})"
            yield ModelFiles(role, path, shape_source=why, problem=problem)


def _shape_in(
    folder: Path, measure: Callable[[Path], ModelShape] | None
) -> tuple[ModelShape | None, str]:
    """The shape and where it comes from, or why it is not known."""
    config = folder / CONFIG
    try:
        return shape_from_config(read_config(folder)), "its config.json"
    except UnknownModel as error:
        if measure is None:
            return None, f"{config}: {error}"
        try:
            return measure(folder), "its parameters, counted; all else as of a Llama of its size"
        except ValueError as problem:
            return None, f"{config}: {problem}"
    except (OSError, ValueError) as error:
        return None, f"{config} cannot be read: {error}"


def _downloaded(path: str) -> Path | None:
    """Where `huggingface_hub` keeps a model that it has downloaded, weights included."""
    cache = Path(constants.HF_HUB_CACHE) / f"models--{path.replace('/', '--')}"
    for folder in sorted(cache.glob("snapshots/*")):
        if has_config(folder) and has_weights(folder):
            return folder
    return None


def _tasks(recipe: Recipe) -> Iterator[TaskFile]:
    """The task files, read and checked; paths are relative to the current directory."""
    files = {"tasks.train": recipe.tasks.train, "tasks.held_out": recipe.tasks.held_out}
    others = recipe.evaluation.others if recipe.evaluation is not None else {}
    files |= {f"evaluation.others.{name}.held_out": o.held_out for name, o in others.items()}
    for field, path in files.items():
        if path is None:
            continue
        try:
            yield TaskFile(field, path, len(read_tasks(Path(path))))
        except TaskFileError as error:
            cause = error.__cause__
            problem = cause.strerror if isinstance(cause, OSError) else error.problems[0]
            yield TaskFile(field, path, problem=problem)


# ------------------------------------------------------------------------------ seconds


def seconds_of(
    recipe: Recipe,
    models: Sequence[Trained],
    machine: Machine,
    rollout: RolloutFootprint,
    held_out: Mapping[str, int],
) -> tuple[Span, ...]:
    """The parts of a step, each evaluation, a step, and the run."""
    published = models[0].parameters * models[0].size
    copied = f"{published / 1e9:,.1f} GB into memory, side by side; the learner waits"
    sampling = _sampling(recipe, models[0].shape, machine, rollout)
    judging = tuple(_judging(recipe, machine))
    verifying = Span("verifying", published / ROLLOUT_VERIFIES, "sha256, while the rollout samples")
    keeps = "; unfinished responses keep their KV, which costs nothing"
    pauses = "while an engine pauses" + keeps * (recipe.rollout.kv_after_sync == "keep")
    loading = Span("loading", published / ROLLOUT_LOADS, pauses)
    recomputing = tuple(_recomputing(recipe, models[0].shape, machine, rollout))
    learning = (
        _training(recipe, models, machine),
        *_offloading(recipe, models),
        Span("publishing", published / machine.ranks_of_node / LEARNER_COPIES, copied),
        *_turns(models[0], machine),
    )
    syncing = (verifying, loading, *recomputing)
    parts = (sampling, *judging, *syncing, *learning)
    if recipe.training.max_staleness and not machine.shares_a_gpu:
        stages = list(filter(None, [(sampling, loading, *recomputing), judging, learning]))
        names = "; ".join(" + ".join(part.what for part in stage) for stage in stages)
        step = Span("a step", max(map(_sum, stages)), f"the longest of {names}")
    else:
        why = "they share a GPU" if machine.shares_a_gpu else "max_staleness 0"
        why += "; judging goes on beside sampling" * bool(judging)
        beside = max(sampling.seconds, _sum(judging))
        step = Span("a step", beside + _sum((*syncing, *learning)), f"one after the other: {why}")
    evaluating = tuple(_evaluating(recipe, models[0].shape, machine, rollout, held_out))
    free = 0.0 if machine.shares_a_gpu else step.seconds - _sum((sampling, loading, *recomputing))
    run = _run(recipe, step, free, evaluating)
    return (*parts, *(span for _, span in evaluating), step, run)


def _run(recipe: Recipe, step: Span, free: float, evaluating: Sequence[tuple[int, Span]]) -> Span:
    """All steps, and the time that evaluations need beyond what engines have free in them.

    Args:
        recipe: what is run.
        step: a step.
        free: seconds of it in which no engine samples.
        evaluating: after how many steps each evaluation is due, and its sampling.
    """
    steps, first = recipe.training.steps, recipe.num_pretrain_steps
    before = f" + {recipe.pretrain_steps_in_words} of the critic alone" if first else ""
    words = f"({steps:,} steps{before}) x {step.seconds:,.1f} s"
    seconds = (steps + first) * step.seconds
    if evaluating:
        times = [math.ceil(steps / every) + 1 for every, _ in evaluating]
        total = sum(n * span.seconds for n, (_, span) in zip(times, evaluating, strict=True))
        waiting = max(0.0, total - steps * free)
        seconds += waiting
        words += f" + {waiting:,.0f} s of waiting for {sum(times):,} evaluations"
    return Span("the run", seconds, words)


def _turns(policy: Trained, machine: Machine) -> Iterator[Span]:
    """What an engine that sleeps in the learner's turn costs: its weights, to the host and back."""
    if machine.takes_turns:
        weights = policy.shape.parameters * policy.size / machine.gpus_per_engine
        words = f"weights to the host and back at {LINK:.1g} bytes/s"
        yield Span("sleeping", 2 * weights / LINK, words)


def _sum(spans: Sequence[Span]) -> float:
    return sum(span.seconds for span in spans)


def _lengths(recipe: Recipe) -> tuple[float, float]:
    """Tokens of the mean prompt, with an environment's words, and of the mean response."""
    longest = recipe.longest_response
    return PROMPT_USED * (recipe.model.max_context - longest), LENGTH_USED * longest


def _tokens(recipe: Recipe) -> float:
    """Of a step, prompts included."""
    return recipe.training.groups_per_step * recipe.rollout.group_size * sum(_lengths(recipe))


def _sampling(
    recipe: Recipe, shape: ModelShape, machine: Machine, rollout: RolloutFootprint
) -> Span:
    """Prompts, bound by arithmetic; then token after token, bound by what is slower."""
    prompt, response = _lengths(recipe)
    groups = math.ceil(_groups(recipe) / len(machine.placement.rollouts))
    responses = groups * recipe.rollout.group_size  # of one engine
    at_once = _at_once(recipe, machine, rollout)
    # At the end the longest response goes on alone.
    rounds = max(responses * response / at_once, recipe.longest_response)
    context = prompt + response / 2  # of the mean token
    keys = responses * response * context * rollout.bytes_per_token
    weights = shape.parameters * DTYPE_BYTES[recipe.model.dtype] / machine.gpus_per_engine
    reading = (rounds * weights + keys) / (machine.kind.bandwidth * BANDWIDTH_USED)
    flops = machine.kind.flops * FLOPS_USED * machine.gpus_per_engine
    computing = responses * response * shape.forward_flops(2 * context) / flops
    prefill = groups * prompt * shape.forward_flops(prompt) / _prefill_flops(machine)
    return Span(
        "sampling",
        prefill + max(reading, computing),
        f"{responses:,} responses of {response:,.0f} tokens an engine, {at_once:,} at once: "
        f"prompts {prefill:,.1f} s, then the larger of reading weights and cache {reading:,.1f} s "
        f"and computing {computing:,.1f} s",
    )


def _evaluating(
    recipe: Recipe,
    shape: ModelShape,
    machine: Machine,
    rollout: RolloutFootprint,
    held_out: Mapping[str, int],
) -> Iterator[tuple[int, Span]]:
    """After how many steps each evaluation is due, and its sampling, which engines do when free."""
    for name, evaluation in recipe.evaluations.items():
        if tasks := tasks_of(evaluation, held_out.get(name, 0)):
            settings = {"groups_per_step": tasks, "dynamic_sampling": False}
            sampled = {
                "training": recipe.training.model_copy(update=settings),
                "rollout": Rollout(
                    group_size=evaluation.samples, sampling=recipe.sampling_of(evaluation)
                ),
            }
            span = _sampling(recipe.model_copy(update=sampled), shape, machine, rollout)
            what = f"evaluating {name}".strip()
            yield evaluation.every or recipe.training.steps, replace(span, what=what)


def _groups(recipe: Recipe) -> float:
    """That are sampled and graded for a step."""
    kept = GROUPS_KEPT if recipe.training.dynamic_sampling else 1.0
    return recipe.training.groups_per_step / kept


def _at_once(recipe: Recipe, machine: Machine, rollout: RolloutFootprint) -> int:
    """Responses that an engine samples at the same time."""
    groups = math.ceil(_groups(recipe) / len(machine.placement.rollouts))
    held = int(rollout.room / (rollout.bytes_per_token * sum(_lengths(recipe))))
    return max(1, min(groups * recipe.rollout.group_size, machine.engine_sequences, held))


def _prefill_flops(machine: Machine) -> float:
    return machine.kind.flops * PREFILL_USED * machine.gpus_per_engine


def _recomputing(
    recipe: Recipe, shape: ModelShape, machine: Machine, rollout: RolloutFootprint
) -> Iterator[Span]:
    """What new weights, or a turn of the learner, cost the responses that are half done then."""
    prompt, response = _lengths(recipe)
    length, at_once = prompt + response / 2, _at_once(recipe, machine, rollout)
    keeps = recipe.rollout.kv_after_sync == "keep" and not machine.takes_turns
    if recipe.training.max_staleness and not keeps:
        yield Span(
            "recomputing",
            at_once * length * shape.forward_flops(length) / _prefill_flops(machine),
            f"up to {at_once:,} unfinished responses of {length:,.0f} tokens an engine, read again "
            "under new weights"
            + "; rollout.kv_after_sync = 'keep' costs nothing"
            * (not machine.takes_turns),
        )


def _judging(recipe: Recipe, machine: Machine) -> Iterator[Span]:
    """What judges write about a step, but for answers that rules alone could not decide."""
    reward, asked, tokens = recipe.reward, 0.0, 0.0
    responses = _groups(recipe) * recipe.rollout.group_size
    for checks, which in ((reward.outcome, "all"), (reward.process, reward.process_for)):
        for check in checks:
            if isinstance(check, AskedOfAJudge):
                seen = CORRECT if "correct" in (check.sees, which) else 1.0
                calls = responses * seen * check.samples
                asked += calls
                tokens += calls * min(JUDGE_TOKENS[check.reasoning_effort], check.max_tokens)
    judge = machine.placement.judge
    gpus = len(judge.gpus) if judge else 1
    if asked:
        yield Span(
            "judging",
            tokens / gpus / JUDGE_SPEED,
            f"{asked:,.0f} calls of {tokens / asked:,.0f} tokens, at {JUDGE_SPEED:,.0f} a second "
            f"on each of {gpus} GPUs{'' if judge else ' elsewhere, an assumption'}",
        )


def _training(recipe: Recipe, models: Sequence[Trained], machine: Machine) -> Span:
    """Forward passes, and backward ones, which count as two, or one of an adapter."""
    algorithm, training, length = recipe.algorithm, recipe.training, sum(_lengths(recipe))
    old_logprobs = algorithm.old_logprobs == "recompute" and training.updates_per_batch > 1
    backward, words = (2, "two") if recipe.model.lora is None else (1, "one")
    passes = 1 + backward + training.recompute_activations + old_logprobs
    passes += algorithm.divergence_weight > 0
    flops, of_critic = passes * models[0].shape.forward_flops(length), ""
    for critic in models[1:]:
        of_values = 4 + training.recompute_activations  # values first, then it learns
        flops += of_values * critic.shape.critic_flops(length)
        of_critic = f", {of_values} of the critic"
    num_gpus, peak, tokens = models[0].num_gpus, machine.kind.flops, _tokens(recipe)
    return Span(
        "training",
        tokens * flops / (num_gpus * peak * FLOPS_USED),
        f"{tokens / 1e6:,.1f} M tokens, {passes} passes of the policy{of_critic}, a backward pass "
        f"being {words}; {num_gpus} GPUs at {FLOPS_USED:.0%} of {peak / 1e12:,.0f} TFLOP/s",
    )


def _offloading(recipe: Recipe, models: Sequence[Trained]) -> Iterator[Span]:
    """What optimizers in host memory cost: gradients and weights on the link, AdamW on cores."""
    training, updates = recipe.training, recipe.training.updates_per_batch
    # Micro-batches of a rank in an update.
    tokens = _tokens(recipe) / updates
    batches = math.ceil(tokens / training.micro_batch_tokens / models[0].num_gpus)
    link = cores = 0.0
    for model in models:
        if not model.offloads:
            continue
        numbers = 8 + 8 * batches if model.stage == 3 else 4 + model.size
        link += updates * numbers * model.parameters / model.num_gpus
        if model.settings.offload == "all":  # forward, recomputed and backward
            gathered = batches * (2 + training.recompute_activations) * model.weights
            link += updates * gathered * model.size / model.num_gpus
        cores += updates * model.parameters / model.num_gpus
    if cores:
        yield Span(
            "offloading",
            link / LINK + cores / HOST_ADAMW,
            f"{updates} updates of {batches} micro-batches a rank: {link / 1e9:,.1f} GB to and "
            f"from the host {link / LINK:,.1f} s, AdamW there {cores / HOST_ADAMW:,.1f} s",
        )


# ------------------------------------------------------------------------------ warnings, remedies


def warnings(plan: Plan) -> list[str]:
    """What will not work, or not as one may expect, each with the setting that helps."""
    checks = (_of_settings, _of_files, _of_learner, _of_heads, _of_engine)
    found = (text for check in checks for text in check(plan))
    return [*order_warnings(plan.recipe), *plan.remarks, *found]


def _of_settings(plan: Plan) -> Iterator[str]:
    recipe, shape, limit = plan.recipe, plan.models[0].shape, plan.machine.redis_bytes
    algorithm, staleness = recipe.algorithm, recipe.training.max_staleness
    if staleness and algorithm.old_logprobs == "recompute" and algorithm.correction == "none":
        yield (
            f"training.max_staleness = {staleness}, but nothing corrects for it: with old_logprobs "
            "= 'recompute' the ratio is taken against the policy as each step begins. Set "
            "algorithm.correction = 'token_tis', or old_logprobs = 'rollout'"
        )
    if shape is not None and recipe.model.max_context > shape.max_positions:
        yield (
            f"model.max_context = {recipe.model.max_context}, but the model knows "
            f"{shape.max_positions} positions; lower it"
        )
    if plan.redis_bytes > limit // 2:
        yield (
            f"the job can hold {plan.redis_bytes / GIB:.1f} GiB in Redis at once and is refused "
            f"where that is more than half of maxmemory, {limit / GIB:.1f} GiB here; set "
            f"WEIR_REDIS_MAXMEMORY to {2 * plan.redis_bytes:,} or more"
        )


def _of_files(plan: Plan) -> Iterator[str]:
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


def _of_learner(plan: Plan) -> Iterator[str]:
    machine = plan.machine
    if plan.learner is not None and not plan.learner_fits and not machine.on_cpus:
        held, at_rest = total(plan.learner.held) / GIB, machine.learner_bytes_at_rest / GIB
        between = f"; between its turns {held:.1f} of {at_rest:.1f} GiB" * machine.takes_turns
        yield (
            f"the learner does not fit: {plan.learner.peak / GIB:.1f} GiB at its peak, of each of "
            f"its GPUs {machine.learner_bytes / GIB:.1f} GiB are usable{between}. {remedy(plan)}"
        )
    if not plan.host_fits:
        advice = "offload less (optimizer.offload), or take nodes with more memory"
        if machine.on_cpus:
            advice = "lower training.logprob_chunk_tokens, or see what it takes on GPUs: --gpus 8"
        needed, usable = total(plan.host) / GIB, machine.usable_host_bytes / GIB
        yield f"a node's memory is not enough: {needed:.1f} of {usable:.1f} usable GiB; {advice}"


def _of_heads(plan: Plan) -> Iterator[str]:
    for text in plan.split_problems:
        yield f"the job would refuse the model {plan.recipe.model.path!r} on {text}"
    size, ranks = plan.recipe.training.sequence_parallel, plan.machine.placement.num_ranks
    for shape in filter(None, plan.shapes):
        if problem := sequence_problem(size, shape.heads, shape.key_value_heads, ranks):
            yield problem


def _of_engine(plan: Plan) -> Iterator[str]:
    rollout, machine = plan.rollout, plan.machine
    if rollout is None:
        return
    advice = f"in WEIR_GPUS split it over more GPUs than {machine.engine}"
    if machine.on_cpus:
        advice = "sample on GPUs (WEIR_GPUS)"
    elif machine.engine.share is not None:
        advice = f"in WEIR_GPUS give it a larger share than {machine.engine}, or a GPU of its own"
    wanted = min(plan.recipe.rollout.group_size, rollout.responses_asked)
    if not plan.engine_fits or rollout.responses_held < wanted:
        change = "raise" if plan.engine_fits else "lower"
        fixed = f", or {change} WEIR_ROLLOUT_KV_CACHE_MIB" * bool(machine.engine_cache_bytes)
        yield (
            f"an engine of the rollout holds {rollout.responses_held} responses of "
            f"{plan.recipe.model.max_context} tokens at once beside {size(rollout.weights.bytes)} "
            f"of weights, in {size(machine.engine_bytes)}; a group has {wanted}: {advice}{fixed}"
        )


def remedy(plan: Plan) -> str:
    """The fewest settings that make the learner fit, on more GPUs only if it must be."""
    for num_gpus, usable, words in _more_and_more(plan.machine):
        for shared in ({}, *_shared_samples(plan, num_gpus)):
            recipe = changed_recipe(plan.recipe, shared)
            settings = _fitting(replace(plan, recipe=recipe), num_gpus, *usable)
            if settings is None:
                continue
            settings = shared | settings
            values = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
            text = " and ".join([*([f"set {', '.join(values)}"] if values else []), *words])
            return text[:1].upper() + text[1:]
    return "Lower model.max_context, or take larger GPUs or a larger host"


def _more_and_more(machine: Machine) -> Iterator[tuple[int, tuple[int, int], list[str]]]:
    """GPUs of the learner, bytes of each (also between turns), and how to have them."""
    num_gpus, whole = machine.placement.num_ranks, int(machine.gpu_bytes * MOST_OF_A_GPU)
    yield num_gpus, (machine.learner_bytes, machine.learner_bytes_at_rest), []
    if machine.learner_bytes < whole:
        yield num_gpus, (whole, whole), ["give the learner its GPUs alone (learner= in WEIR_GPUS)"]
    for power in range(num_gpus.bit_length(), MOST_GPUS.bit_length()):
        yield (
            2**power,
            (whole, whole),
            [f"give the learner {2**power} GPUs (learner= in WEIR_GPUS)"],
        )


def _shared_samples(plan: Plan, num_gpus: int) -> Iterator[dict[str, Any]]:
    for size in range(plan.recipe.training.sequence_parallel + 1, GPUS_OF_A_BOX + 1):
        shapes = filter(None, plan.shapes)
        if not any(sequence_problem(size, s.heads, s.key_value_heads, num_gpus) for s in shapes):
            yield {"training.sequence_parallel": size}


def _fitting(plan: Plan, num_gpus: int, usable: int, at_rest: int) -> dict[str, Any] | None:
    """The fewest settings with which the learner fits, if it can."""
    policy, critic = plan.shapes
    assert policy is not None, "there is a footprint, so its shape is known"
    on_node, savings = min(num_gpus, plan.machine.ranks_of_node), list(_savings(plan.recipe))

    def footprint(settings: Mapping[str, Any]) -> LearnerFootprint:
        recipe = changed_recipe(plan.recipe, settings)
        return learner_footprint(recipe, policy, critic, num_gpus, on_node)

    if not footprint(reduce(operator.or_, savings, {})).fits(usable, at_rest):
        return None
    for number in range(len(savings) + 1):
        for chosen in combinations(savings, number):
            settings = reduce(operator.or_, chosen, {})
            taken = footprint(settings)
            if taken.fits(usable, at_rest) and total(taken.host) <= plan.machine.usable_host_bytes:
                return settings
    return None


def _savings(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Settings that save memory, those that cost least first."""
    optimizers = ["optimizer", *(["critic.optimizer"] if recipe.critic is not None else [])]
    shortest = math.ceil(recipe.model.max_context / recipe.training.sequence_parallel)
    savings = [
        *({f"{each}.zero_stage": 3} for each in optimizers),
        {"training.recompute_activations": True},
        {"training.micro_batch_tokens": shortest},
        {"training.logprob_chunk_tokens": _SMALL_CHUNK},
        *(
            {f"{each}.zero_stage": 3, f"{each}.offload": offload}
            for offload in ("optimizer", "all")
            for each in optimizers
        ),
    ]
    for saving in savings:
        present = {name: reduce(getattr, name.split("."), recipe) for name in saving}
        if changes := {name: saving[name] for name in saving if saving[name] != present[name]}:
            yield changes


def changed_recipe(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with the settings of these dotted names changed."""
    data = recipe.model_dump()
    for name, value in changes.items():
        *tables, last = name.split(".")
        reduce(dict.__getitem__, tables, data)[last] = value
    return Recipe.model_validate(data)


def size(number: float) -> str:
    """Bytes for people.

    >>> size(3 * 2**30), size(5)
    ('3.0 GiB', '5 bytes')
    """
    for name, unit in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= unit:
            return f"{number / unit:,.1f} {name}"
    return f"{number:,.0f} bytes"
