"""GPU and host memory of the learner and of an engine, from the shapes of the models. Pure.

The learner's memory follows the DeepSpeed 0.19 setup of `services/learner/training/engine.py`:
bfloat16 gradients summed in float32 under ZeRO and over ranks, and torch's fused AdamW on float32
copies. It was measured at each ZeRO stage, with and without offload, on one CPU rank. Buffers of
CUDA, NCCL and the allocator are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from protocol.capacity import responses_in_flight
from protocol.recipe import Optimizer, Recipe

from services.learner.planning.machine import Machine
from services.learner.planning.shapes import ModelShape
from services.learner.planning.units import GIB

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Values in the bucket of gradients to reduce: DeepSpeed's default, or the model if it is smaller.
REDUCE_BUCKET = 500_000_000
REDUCED_BYTES = 4  # a value is reduced in float32
LIVE_PARAMETERS = 1_000_000_000  # ZeRO-3 gathers this many at once: DeepSpeed's default
SUB_GROUP = 1_000_000_000  # ZeRO-3 updates this many values of a rank's shard at a time
# `chunked_token_logprobs` and its backward pass held 3.5 (bfloat16) and 4.0 (float32) at the peak.
LOGIT_COPIES = 4


@dataclass(frozen=True)
class Item:
    """A part of the memory of a GPU, or of a node."""

    what: str
    bytes: int
    formula: str


Place = Literal["resident", "backward", "step", "host"]
Row = tuple[Place, bool, Item]  # the item exists only if the flag is true


@dataclass(frozen=True)
class LearnerFootprint:
    """The memory of one GPU of the learner, at the largest possible micro-batch."""

    resident: tuple[Item, ...]
    backward: tuple[Item, ...]  # during a pass of the policy or the critic, the larger one
    step: tuple[Item, ...]  # during an optimizer step, after the backward pass
    host: tuple[Item, ...]  # of all ranks on a node

    @property
    def peak(self) -> int:
        return total(self.resident) + max(total(self.backward), total(self.step))

    def fits(self, usable: int, usable_at_rest: int) -> bool:
        """Whether a GPU has room for it, during the learner's turns and between them."""
        return self.peak <= usable and total(self.resident) <= usable_at_rest


@dataclass(frozen=True)
class RolloutFootprint:
    """The memory of one GPU of the smallest engine, and the responses that fit into it."""

    weights: Item
    cache: Item  # keys and values of all responses that are sampled at the same time
    room: int  # bytes for keys and values
    bytes_per_token: int
    responses_asked: int  # of one engine, at the same time
    responses_held: int  # of full length, at the same time


def total(items: Iterable[Item]) -> int:
    return sum(item.bytes for item in items)


def _make_item(what: str, numbers: int, size: int, shards: int) -> Item:
    split = f" / {shards} GPUs" if shards > 1 else ""
    formula = f"{_count(numbers)} x {size} bytes{split}"
    return Item(what, math.ceil(numbers * size / shards), formula)


def _count(number: int) -> str:
    for size, letter in ((10**9, "B"), (10**6, "M")):
        if number >= size:
            return f"{number / size:.2f} {letter}"
    return f"{number:,}"


def longest_micro_batch(recipe: Recipe) -> int:
    """Return the tokens of the largest micro-batch; a sample over the budget is alone in one.

    Each of the ranks that share a micro-batch has a budget.
    """
    training = recipe.training
    groups = math.ceil(training.groups_per_step / training.updates_per_batch)
    mini_batch = groups * recipe.rollout.group_size * recipe.model.max_context
    budget = training.micro_batch_tokens * training.sequence_parallel
    return max(recipe.model.max_context, min(budget, mini_batch))


def limit_micro_batches(recipe: Recipe, micro_batch_tokens: int | None) -> Recipe:
    if micro_batch_tokens is None:
        return recipe
    return _change_training(recipe, micro_batch_tokens=micro_batch_tokens)


def decide_recomputation(recipe: Recipe, fits: Callable[[Recipe], bool]) -> Recipe:
    """Replace `auto`: activations are recomputed if the recipe does not fit otherwise."""
    if recipe.training.recompute_activations != "auto":
        return recipe
    return _change_training(recipe, recompute_activations=not fits(recipe))


def _change_training(recipe: Recipe, **update: Any) -> Recipe:
    return recipe.model_copy(update={"training": recipe.training.model_copy(update=update)})


def smaller_token_budget(recipe: Recipe) -> int | None:
    """Halve the largest micro-batch; return a rank's part, or None at one sample of full length."""
    largest = longest_micro_batch(recipe)
    longest = recipe.model.max_context
    if largest <= longest:
        return None
    return math.ceil(max(largest // 2, longest) / recipe.training.sequence_parallel)


def fit_to_cpus(
    recipe: Recipe, policy: ModelShape, critic: ModelShape | None, machine: Machine
) -> Recipe:
    """Halve micro-batches until the ranks fit into the memory of the CPUs, then recompute.

    The kernel kills a process that takes too much memory, so it raises no error to react to.
    """
    num_ranks = machine.placement.num_ranks
    engine = rollout_footprint(recipe, policy, machine).weights.bytes + machine.engine_cache_bytes
    usable_bytes = machine.usable_host_bytes - len(machine.placement.rollouts) * engine

    def fits(recipe: Recipe) -> bool:
        footprint = learner_footprint(recipe, policy, critic, num_ranks)
        return num_ranks * footprint.peak + total(footprint.host) <= usable_bytes

    while not fits(recipe) and (tokens := smaller_token_budget(recipe)) is not None:
        recipe = limit_micro_batches(recipe, tokens)
    return decide_recomputation(recipe, fits)


def rollout_footprint(recipe: Recipe, shape: ModelShape, machine: Machine) -> RolloutFootprint:
    """Compute a GPU of the smallest engine; all engines have an equal share of the responses."""
    num_gpus = machine.gpus_per_engine
    size = DTYPE_BYTES[recipe.model.dtype]
    max_context = recipe.model.max_context
    share = math.ceil(responses_in_flight(recipe) / len(machine.placement.rollouts))
    responses = min(machine.engine_sequences, share)
    weights = _make_item("weights", shape.parameters, size, num_gpus)
    # A key-value head is never split: more GPUs than heads hold copies.
    heads = math.ceil(shape.key_value_heads / num_gpus)
    token_bytes = 2 * shape.layers * heads * shape.head_size * size
    response_bytes = token_bytes * max_context
    cache = Item(
        "keys and values",
        responses * response_bytes,
        f"{responses} responses x {max_context} tokens x {token_bytes:,} bytes "
        f"(2 x {shape.layers} layers x {heads} heads x {shape.head_size} x {size})",
    )
    room = max(0, machine.engine_bytes - weights.bytes)
    if machine.engine_cache_bytes:
        room = min(machine.engine_cache_bytes, room)
    fitting = min(responses, room // response_bytes)
    return RolloutFootprint(weights, cache, room, token_bytes, responses, fitting)


def learner_footprint(
    recipe: Recipe,
    policy: ModelShape,
    critic: ModelShape | None,
    num_ranks: int,
    ranks_on_node: int = 0,
) -> LearnerFootprint:
    """Compute the memory of a rank, and of a node with ``ranks_on_node`` ranks; 0: with all."""
    models = trained_models(recipe, policy, critic, num_ranks, ranks_on_node or num_ranks)
    tables = [
        [
            *_weight_rows(model),
            *_sample_rows(model, recipe),
            *_optimizer_rows(model),
            *_offload_rows(model),
        ]
        for model in models
    ]
    rows = [*_shared_rows(models, recipe), *chain(*tables)]
    if recipe.algorithm.divergence_weight > 0 and recipe.model.lora is None:
        # With an adapter the reference is the policy's own base.
        rows += _weight_rows(replace(models[0], name="reference"))
    return LearnerFootprint(
        resident=_select(rows, "resident"),
        backward=max((_select(table, "backward") for table in tables), key=total),
        step=max((_select(table, "step") for table in tables), key=total),
        host=_select(rows, "host"),
    )


def _select(rows: Sequence[Row], place: Place) -> tuple[Item, ...]:
    return tuple(item for row_place, exists, item in rows if exists and row_place == place)


@dataclass(frozen=True)
class TrainedModel:
    """A policy or critic, in numbers."""

    name: str
    shape: ModelShape
    weights: int
    parameters: int  # weights that learn
    adapted: int  # values that a layer's adapters keep per token
    settings: Optimizer
    dtype: str
    num_gpus: int
    ranks_on_node: int

    @property
    def size(self) -> int:
        """Bytes of a weight."""
        return DTYPE_BYTES[self.dtype]

    @property
    def stage(self) -> int:
        return self.settings.zero_stage

    @property
    def offloads(self) -> bool:
        return self.settings.offload != "none"

    @property
    def sums_in_float32(self) -> bool:
        """Whether gradients are summed in another dtype than their own."""
        return self.dtype == "bfloat16"

    @property
    def has_sum_buffer(self) -> bool:
        """Whether DeepSpeed replaces ZeRO-1 by its BF16_Optimizer, which sums in a full buffer."""
        return self.sums_in_float32 and self.stage == 1 and not self.offloads

    def shards(self, from_stage: int) -> int:
        """Return over how many GPUs values are split that ZeRO splits from this stage on."""
        return self.num_gpus if self.stage >= from_stage else 1

    def item(self, what: str, size: int, shards: int = 1, *, numbers: int = 0) -> Item:
        """Return values of ``size`` bytes over ``shards`` GPUs; default: one per parameter."""
        return _make_item(f"{self.name}: {what}", numbers or self.parameters, size, shards)

    def host_item(self, what: str, size: int, numbers: int = 0, *, pinned: bool = True) -> Item:
        """Return the shards of a node's ranks; torch pins memory in blocks of a power of two."""
        whole = self.item(what, size, numbers=numbers)
        share = math.ceil(whole.bytes / self.num_gpus)
        formula = whole.formula
        if self.ranks_on_node != self.num_gpus:
            formula += f", {self.ranks_on_node} of {self.num_gpus} ranks"
        if pinned:
            share = 1 << (share - 1).bit_length()
            formula += f", pinned in blocks of {share / GIB:,.3g} GiB"
        return Item(whole.what, self.ranks_on_node * share, formula)


def trained_models(
    recipe: Recipe,
    policy: ModelShape,
    critic: ModelShape | None,
    num_gpus: int,
    ranks_on_node: int,
) -> list[TrainedModel]:
    """Return the policy, and the critic if the recipe has one."""
    lora = recipe.model.lora
    ranks = (recipe.model.dtype, num_gpus, ranks_on_node)
    weights = policy.parameters
    learned = weights
    adapted = 0
    if lora is not None:
        learned = policy.adapter_parameters(lora.rank, lora.targets)
        weights += learned
        adapted = lora.rank * len(policy.adapted_widths(lora.targets))
    models = [TrainedModel("policy", policy, weights, learned, adapted, recipe.optimizer, *ranks)]
    if recipe.critic is not None and critic is not None:
        weights = critic.critic_parameters
        settings = recipe.critic.optimizer
        models.append(TrainedModel("critic", critic, weights, weights, 0, settings, *ranks))
    return models


def _shared_rows(models: Sequence[TrainedModel], recipe: Recipe) -> list[Row]:
    policy = models[0]
    largest = max(models, key=lambda model: model.weights)
    loaded = largest.item("", largest.size, numbers=largest.weights)
    # The two newest, the one that a checkpoint copies, and the one that is evaluated.
    evaluates = recipe.evaluation is not None
    versions = 4 if evaluates else 3
    published = policy.item("", policy.size, numbers=versions * policy.weights)
    copies = policy.ranks_on_node * policy.parameters
    compared = policy.item("", policy.size, policy.shards(3), numbers=copies)
    rows = (
        (True, loaded, "a whole model, to load and to export"),
        (recipe.model.lora is None, published, f"{versions} published versions"),
        (evaluates or recipe.training.max_staleness > 0, compared, "what parity compares, a rank"),
    )
    return [("host", exists, replace(item, what=what)) for exists, item, what in rows]


def _weight_rows(model: TrainedModel) -> list[Row]:
    """Return the weights; under ZeRO-3 with those that a layer gathers."""
    size = model.size
    offloads_weights = model.settings.offload == "all"
    item = model.item("weights", size, model.shards(3), numbers=model.weights)
    if model.stage == 3:
        gathered = min(model.weights, LIVE_PARAMETERS)
        formula = f"{_count(gathered)} gathered x {size} bytes"
        sharded_bytes = 0
        if not offloads_weights:
            formula = f"{item.formula} + {formula}"
            sharded_bytes = item.bytes
        item = Item(item.what, sharded_bytes + gathered * size, formula)
    host = model.host_item("weights", size, model.weights)
    return [("resident", True, item), ("host", offloads_weights, host)]


def _optimizer_rows(model: TrainedModel) -> list[Row]:
    """Return gradients and the state of ZeRO and AdamW on a GPU."""
    stage = model.stage
    float32 = model.sums_in_float32
    buffered = model.has_sum_buffer
    on_gpu = not model.offloads
    summed = model.item("float32 sum of gradients", 4)
    summed = replace(summed, formula=f"{summed.formula} on every GPU: ZeRO-1 does not split it")
    reduced = min(REDUCE_BUCKET, model.parameters)
    bucket = model.item("bucket to reduce gradients", REDUCED_BYTES, numbers=reduced)
    bucket_copy = model.item("copy of the bucket", REDUCED_BYTES, numbers=reduced)
    gradients = _gradients(model)
    shard = model.item("gradients", model.size, model.shards(2))
    weights = model.item("float32 copy of the weights", 4, model.shards(1))
    return [
        ("resident", on_gpu, model.item("Adam's moments", 8, model.shards(1))),
        ("resident", stage == 0 or (stage == 3 and on_gpu), gradients),
        ("resident", buffered, summed),
        # Below stage 3 the bucket is freed after the backward pass.
        ("resident", stage == 3, bucket),
        ("resident", on_gpu and (stage >= 1 or model.size < 4), weights),
        ("backward", stage == 1 or (stage == 2 and (float32 or on_gpu)), gradients),
        ("backward", stage in {1, 2} and not buffered, bucket),
        ("backward", stage == 3 or (stage == 2 and float32), bucket_copy),
        ("step", buffered or (model.offloads and float32 and stage < 3), gradients),
        ("step", on_gpu and not float32 and stage in {1, 2}, shard),
        ("step", on_gpu and not buffered, _step_item(model, reduced)),
    ]


def _gradients(model: TrainedModel) -> Item:
    """Return gradients, and their sum over earlier micro-batches."""
    if model.stage == 1 and model.offloads and model.sums_in_float32:
        whole = model.item("gradients and their sum", 4)
        share = model.item("", 4, model.num_gpus)
        return Item(whole.what, whole.bytes + share.bytes, f"{whole.formula} + {share.formula}")
    if model.stage >= 2 and model.sums_in_float32:  # each is added to the sum when it is reduced
        return model.item("gradients", 4, model.shards(2))
    if model.stage == 2:
        return model.item("gradients and their sum", 2 * model.size, model.num_gpus)
    return model.item("gradients", model.size, model.shards(2))


def _step_item(model: TrainedModel, reduced: int) -> Item:
    """Return the gradients as fused AdamW reads them; without ZeRO the bucket, if it is larger."""
    if model.stage == 0:
        if model.size == 4:
            return model.item("copy of the bucket", REDUCED_BYTES, numbers=reduced)
        bucket = model.item("copy of the bucket", REDUCED_BYTES + model.size, numbers=reduced)
        return max(bucket, model.item("float32 gradients", 4), key=lambda item: item.bytes)
    share = model.item("float32 gradients", 4, model.num_gpus)
    if model.stage == 3 and share.bytes > 4 * SUB_GROUP:
        return model.item("float32 gradients", 4, numbers=SUB_GROUP)
    return share


def _sample_rows(model: TrainedModel, recipe: Recipe) -> list[Row]:
    """Return activations, within 4 % of a CPU with SDPA, and the logits of a chunk."""
    shape = model.shape
    size = model.size
    positions = math.ceil(longest_micro_batch(recipe) / recipe.training.sequence_parallel)
    upcast = 1 if size < 4 else 0  # a norm in float32 keeps its input in float32 too
    wide = shape.hidden + shape.query_width
    narrow = shape.key_width
    # Per position: norms, projections, attention, feed-forward, adapters.
    layer = (5 + upcast) * wide + 2 * narrow + 4 * shape.intermediate + model.adapted
    if shape.query_key_norm:
        layer += (1 + upcast) * shape.query_width + (2 + upcast) * narrow
    numbers = shape.layers * layer
    formula = f"{shape.layers} layers x {layer:,}"
    if recipe.training.recompute_activations is True:
        numbers = shape.layers * shape.hidden + layer
        formula = f"({shape.layers} layers x {shape.hidden:,} + one layer's {layer:,})"
    activations = Item(
        f"{model.name}: activations",
        numbers * positions * size,
        f"{positions:,} positions x {formula} x {size} bytes",
    )
    tokens = min(recipe.training.logprob_chunk_tokens, positions)
    logits = Item(
        f"{model.name}: log-probs of a chunk",
        tokens * shape.vocabulary * 4 * LOGIT_COPIES,
        f"{tokens:,} tokens x {shape.vocabulary:,} x 4 bytes x {LOGIT_COPIES} copies",
    )
    return [("backward", True, activations), ("backward", model.name == "policy", logits)]


def _offload_rows(model: TrainedModel) -> list[Row]:
    float32 = model.sums_in_float32
    size = model.size
    below_3 = model.stage < 3
    rows = [
        (True, "Adam's moments", 8, False),
        (True, "float32 copy of the weights", 4, below_3),
        (True, "float32 gradients", 4, True),
        (not (below_3 and float32), "sum of gradients", 4 if float32 else size, True),
        (below_3, "weights on their way to the GPU", size, True),
    ]
    return [
        ("host", model.offloads and exists, model.host_item(what, value_size, pinned=pinned))
        for exists, what, value_size, pinned in rows
    ]
