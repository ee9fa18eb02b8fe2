"""Seconds of a training step, by arithmetic. Pure. No GPU has been measured for it.

Every assumption is a constant of this module, beside where it comes from. Not counted: grading,
evaluation, checkpoints, communication between GPUs, and the optimizer's own arithmetic on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from protocol.recipe import Recipe

from services.learner.planning.footprint import DTYPE_BYTES, GIB, trained_models
from services.learner.planning.shape import ModelShape


@dataclass(frozen=True)
class GpuKind:
    """What a kind of GPU can do, from its data sheet."""

    name: str
    gib: int
    flops: float  # a second, dense bfloat16 with sums in float32
    bandwidth: float  # of its memory, bytes a second
    devices: tuple[str, ...]  # the names by which a driver calls it


KINDS = (
    GpuKind("RTX 4090", 24, 165e12, 1.008e12, ("NVIDIA GeForce RTX 4090",)),
    GpuKind(
        "A100 SXM 40", 40, 312e12, 1.555e12, ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB")
    ),
    GpuKind("H100 SXM", 80, 989e12, 3.35e12, ("NVIDIA H100 80GB HBM3",)),
    GpuKind("H200", 141, 989e12, 4.8e12, ("NVIDIA H200",)),
)
FLOPS_USED = 0.4  # Llama 3 was trained at 0.38 to 0.43 of H100s' peak (arXiv:2407.21783, table 4)
BANDWIDTH_USED = 0.6  # an assumption: decoding also waits for kernels, sampling and scheduling
LENGTH_USED = 0.5  # of max_tokens, by the mean response: an assumption, since a limit leaves room
PROMPT_USED = 0.25  # of the context beyond max_tokens, by the mean prompt: an assumption
GROUPS_KEPT = 0.5  # of those that dynamic sampling looks at: an assumption
# Bytes a second of each phase of publishing a version, one after the other: estimates.
LEARNER_WRITES = {
    "gather": 4e9,  # by rank 0 alone, into memory that is not pinned
    "write": 2.2e9,  # to one NVMe disk
    "fsync": 4e9,
    "sha256": 1.7e9,  # one thread
}
# Parameters a second of torch's fused AdamW on one core, as each rank has: 47 GB/s of host memory,
# measured on an AMD EPYC.
HOST_ADAMW = 1.6e9
LINK = 2e10  # bytes a second between a GPU and its host: an assumption, PCIe 4.0 x16 has 3.2e10
ROLLOUT_VERIFIES = 1.7e9  # sha256, one thread
ROLLOUT_LOADS = 4.3e9  # from files in the page cache
_OF_THE_LEARNER = ("training", "offloading", "publishing")
ASSUMED = (
    f"{FLOPS_USED:.0%} of a GPU's FLOP/s, {BANDWIDTH_USED:.0%} of its memory bandwidth; the mean "
    f"response has {LENGTH_USED:.0%} of max_tokens, the mean prompt {PROMPT_USED:.0%} of the rest "
    f"of the context; dynamic sampling keeps {GROUPS_KEPT:.0%} of the groups. Not counted: "
    "grading, evaluation, checkpoints, communication"
)


@dataclass(frozen=True)
class Sampler:
    """The engines of a rollout, each as large as the smallest."""

    num_engines: int
    gpus_per_engine: int
    max_sequences: int  # sampled at the same time by an engine
    room: int  # bytes of each GPU for keys and values
    bytes_per_token: int  # of keys and values, on each GPU


@dataclass(frozen=True)
class Span:
    """One part of a step."""

    what: str
    seconds: float
    formula: str


@dataclass(frozen=True)
class StepSeconds:
    """The seconds of a step, part by part."""

    gpu: str  # the kind whose data sheet was used
    parts: tuple[Span, ...]
    total: Span


def kind_of(gpu_bytes: int) -> GpuKind:
    """The kind of the table whose memory comes nearest."""
    return min(KINDS, key=lambda kind: abs(kind.gib * GIB - gpu_bytes))


def step_seconds(
    recipe: Recipe,
    policy: ModelShape,
    critic: ModelShape | None,
    *,
    gpu_bytes: int,
    learner_gpus: int,
    sampler: Sampler,
    apart: bool,
) -> StepSeconds | None:
    """The seconds of a step; None for a float32 model, of which the table says nothing.

    Args:
        recipe: how much is sampled and trained, and whether both overlap.
        policy: its shape.
        critic: its shape, if the recipe has one.
        gpu_bytes: the memory of a GPU, which tells its kind.
        learner_gpus: ranks of the learner.
        sampler: the engines.
        apart: whether no GPU is shared by the learner and an engine.
    """
    if recipe.model.dtype == "float32":
        return None
    kind = kind_of(gpu_bytes)
    sampling = _sampling(recipe, policy, sampler, kind)
    training = _training(recipe, policy, critic, learner_gpus, kind)
    lora = recipe.model.lora
    published = policy.parameters
    if lora is not None:
        published = policy.adapter_parameters(lora.rank, lora.targets)
    size = published * DTYPE_BYTES[recipe.model.dtype]
    publishing = Span(
        "publishing",
        sum(size / rate for rate in LEARNER_WRITES.values()),
        f"{size / 1e9:,.1f} GB: {', '.join(LEARNER_WRITES)}; the learner waits",
    )
    verifying = Span("verifying", size / ROLLOUT_VERIFIES, "sha256, in each rollout")
    loading = Span("loading", size / ROLLOUT_LOADS, "while an engine pauses")
    offloading = _offloading(recipe, policy, critic, learner_gpus)
    parts = (sampling, training, *offloading, publishing, verifying, loading)
    return StepSeconds(kind.name, parts, _total(parts, recipe.training.max_staleness, apart=apart))


def trained_flops(
    policy: ModelShape, critic: ModelShape | None, length: int, *, adapter: bool = False
) -> float:
    """FLOPs to learn from a sequence of so many tokens, once: a backward pass is two forward ones.

    It is one where only an adapter of the policy learns, whose own FLOPs are not counted. Nor is
    what is computed again, or for a reference: this is what model FLOPs are.
    """
    flops = (2 if adapter else 3) * _forward(policy, length)
    if critic is not None:
        flops += 3 * _forward_critic(critic, length)
    return length * flops


def peak_flops(device: str) -> float | None:
    """FLOPs a second in bfloat16 of the GPU that a driver calls so, if that is known."""
    return next((kind.flops for kind in KINDS if device in kind.devices), None)


def _total(parts: tuple[Span, ...], max_staleness: int, *, apart: bool) -> Span:
    if max_staleness and apart:
        of_rollout = [part.seconds for part in parts if part.what in {"sampling", "loading"}]
        of_learner = [part.seconds for part in parts if part.what in _OF_THE_LEARNER]
        seconds = max(sum(of_rollout), sum(of_learner))
        words = f"the larger of sampling + loading and {' + '.join(_OF_THE_LEARNER)}, which overlap"
    else:
        seconds = sum(part.seconds for part in parts)
        words = "one after the other: " + ("max_staleness 0" if apart else "they share a GPU")
    return Span("a step", seconds, words)


def _lengths(recipe: Recipe) -> tuple[float, float]:
    """Tokens of the mean prompt and of the mean response."""
    max_tokens = recipe.rollout.sampling.max_tokens
    return PROMPT_USED * (recipe.model.max_context - max_tokens), LENGTH_USED * max_tokens


def _sampling(recipe: Recipe, shape: ModelShape, sampler: Sampler, kind: GpuKind) -> Span:
    """Prompts, bound by arithmetic; then token after token, bound by what is slower."""
    prompt, response = _lengths(recipe)
    kept = GROUPS_KEPT if recipe.training.dynamic_sampling else 1.0
    groups = math.ceil(recipe.training.groups_per_step / kept / sampler.num_engines)
    responses = groups * recipe.rollout.group_size  # of one engine
    at_once = max(1, min(responses, sampler.max_sequences, _held(sampler, prompt + response)))
    # At the end the longest response goes on alone.
    rounds = max(responses * response / at_once, recipe.rollout.sampling.max_tokens)
    weights = shape.parameters * DTYPE_BYTES[recipe.model.dtype] / sampler.gpus_per_engine
    context = prompt + response / 2  # of the mean token
    keys = responses * response * context * sampler.bytes_per_token
    reading = (rounds * weights + keys) / (kind.bandwidth * BANDWIDTH_USED)
    flops = kind.flops * FLOPS_USED * sampler.gpus_per_engine
    computing = responses * response * _forward(shape, 2 * context) / flops
    prefill = groups * prompt * _forward(shape, prompt) / flops
    return Span(
        "sampling",
        prefill + max(reading, computing),
        f"{responses:,} responses of {response:,.0f} tokens an engine, {at_once:,} at once: "
        f"prompts {prefill:,.1f} s, then the larger of reading weights and cache {reading:,.1f} s "
        f"and computing {computing:,.1f} s",
    )


def _held(sampler: Sampler, tokens: float) -> int:
    """Responses of so many tokens that an engine has room for."""
    return int(sampler.room / (sampler.bytes_per_token * tokens))


def _training(
    recipe: Recipe, policy: ModelShape, critic: ModelShape | None, num_gpus: int, kind: GpuKind
) -> Span:
    prompt, response = _lengths(recipe)
    length = prompt + response
    responses = recipe.training.groups_per_step * recipe.rollout.group_size
    flops = _policy_passes(recipe) * _forward(policy, length)
    words = f"{_policy_passes(recipe)} passes of the policy"
    backward = "two" if recipe.model.lora is None else "one"
    if critic is not None:
        flops += _critic_passes(recipe) * _forward_critic(critic, length)
        words += f", {_critic_passes(recipe)} of the critic"
    return Span(
        "training",
        responses * length * flops / (num_gpus * kind.flops * FLOPS_USED),
        f"{responses * length / 1e6:,.1f} M tokens, {words}, a backward pass being {backward}; "
        f"{num_gpus} GPUs at {FLOPS_USED:.0%} of {kind.flops / 1e12:,.0f} TFLOP/s",
    )


def _offloading(
    recipe: Recipe, policy: ModelShape, critic: ModelShape | None, num_gpus: int
) -> Iterator[Span]:
    """What optimizers in host memory cost: gradients and weights on the link, AdamW on cores."""
    prompt, response = _lengths(recipe)
    training = recipe.training
    tokens = training.groups_per_step * recipe.rollout.group_size * (prompt + response)
    updates = training.updates_per_batch
    batches = math.ceil(tokens / updates / training.micro_batch_tokens / num_gpus)  # of a rank
    link = cores = 0.0
    for model in trained_models(recipe, policy, critic, num_gpus):
        if not model.offloads:
            continue
        numbers = 8 + 8 * batches if model.stage == 3 else 4 + model.size
        link += updates * numbers * model.parameters / num_gpus
        if model.settings.offload == "all":  # forward, recomputed and backward
            gathered = batches * (2 + training.recompute_activations) * model.weights
            link += updates * gathered * model.size / num_gpus
        cores += updates * model.parameters / num_gpus
    if cores:
        yield Span(
            "offloading",
            link / LINK + cores / HOST_ADAMW,
            f"{updates} updates of {batches} micro-batches a rank: {link / 1e9:,.1f} GB to and "
            f"from the host {link / LINK:,.1f} s, AdamW there {cores / HOST_ADAMW:,.1f} s",
        )


def _policy_passes(recipe: Recipe) -> int:
    """Forward passes, or as much; with an adapter the backward pass is one and not two of them."""
    algorithm, training = recipe.algorithm, recipe.training
    old_logprobs = algorithm.old_logprobs == "recompute" and training.updates_per_batch > 1
    reference = algorithm.divergence_weight > 0
    learning = 3 if recipe.model.lora is None else 2
    return learning + training.recompute_activations + old_logprobs + reference


def _critic_passes(recipe: Recipe) -> int:
    return 4 + recipe.training.recompute_activations  # values first, then it learns


def _forward_critic(shape: ModelShape, length: float) -> float:
    head = 2 * shape.vocabulary * shape.hidden  # which a critic has not
    return _forward(shape, length) - head


def _forward(shape: ModelShape, length: float) -> float:
    """FLOPs of a token of a sequence of so many, causal attention included.

    The embedding is looked up, not multiplied by; it is as large as the head, which is.
    """
    attention = 2 * length * shape.query_width * shape.layers
    return 2 * shape.body_parameters + attention
