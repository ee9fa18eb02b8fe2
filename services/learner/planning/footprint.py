"""A model's shape and what follows from it: parameters, FLOPs, GPU and host memory. Pure.

The learner's memory follows what `services/learner/training/engine.py` asks of DeepSpeed 0.19:
gradients of bfloat16 summed in float32 under ZeRO and over ranks, torch's fused AdamW on float32
copies. It was measured at each ZeRO stage, with offload and without, on one CPU rank. Buffers of
CUDA, NCCL and the allocator are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from protocol.capacity import responses_in_flight
from protocol.model_folder import max_positions
from protocol.placement import Placement, split_problem
from protocol.recipe import Optimizer, Recipe

from services.learner.planning.machine import GIB, Machine

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
REDUCE_BUCKET = 500_000_000  # DeepSpeed's default, in numbers; a smaller model has a smaller one
REDUCED_SIZE = 4  # bytes of a number that is reduced
LIVE_PARAMETERS = 1_000_000_000  # so many are gathered at once under ZeRO-3, by default
SUB_GROUP = 1_000_000_000  # ZeRO-3 steps through so many numbers of a rank's share at a time
# `chunked_token_logprobs` with its backward pass held 3.5 (bfloat16) and 4.0 (float32) at its peak.
LOGIT_COPIES = 4
_LARGEST_COUNT = 10**9
GPUS_OF_A_BOX = 8


class UnknownModel(ValueError):
    """A ``config.json`` whose memory cannot be computed; the text names the field and says why."""


@dataclass(frozen=True)
class ModelShape:
    """A decoder as the Llama and Qwen families build it."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    intermediate: int  # of the gated feed-forward network
    vocabulary: int
    max_positions: int
    tied: bool = False  # the head is the embedding
    attention_bias: bool = False  # of queries, keys and values
    query_key_norm: bool = False
    counted: int | None = None  # parameters but the head's, of a model of another family

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        """Numbers in the keys of a token, and in its values."""
        return self.key_value_heads * self.head_size

    @property
    def body_parameters(self) -> int:
        """All but the head's."""
        if self.counted is not None:
            return self.counted
        inputs = self.query_width + 2 * self.key_width
        attention = self.hidden * (inputs + self.query_width) + inputs * self.attention_bias
        norms = 2 * self.hidden + 2 * self.head_size * self.query_key_norm
        layer = attention + 3 * self.hidden * self.intermediate + norms
        return self.vocabulary * self.hidden + self.layers * layer + self.hidden

    @property
    def parameters(self) -> int:
        return self.body_parameters + (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def critic_parameters(self) -> int:
        """With a head of one output."""
        return self.body_parameters + self.hidden + 1

    def adapted(self, targets: Sequence[str] = ()) -> list[int]:
        """Inputs + outputs of each linear map of a layer that has an adapter; default: all."""
        query, key, inner, hidden = self.query_width, self.key_width, self.intermediate, self.hidden
        widths = {"q_proj": query, "k_proj": key, "v_proj": key, "o_proj": query}
        widths |= {"gate_proj": inner, "up_proj": inner, "down_proj": inner}
        return [hidden + width for name, width in widths.items() if not targets or name in targets]

    def adapter_parameters(self, rank: int, targets: Sequence[str] = ()) -> int:
        return self.layers * rank * sum(self.adapted(targets))

    def forward_flops(self, length: float) -> float:
        """FLOPs per token of a sequence of this length, causal attention included."""
        # The embedding is looked up, not multiplied by; the head is, and is as large.
        return 2 * self.body_parameters + 2 * length * self.query_width * self.layers

    def critic_flops(self, length: float) -> float:
        """`forward_flops` of a critic, which has no such head."""
        return self.forward_flops(length) - 2 * self.vocabulary * self.hidden


def trained_flops(
    policy: ModelShape, critic: ModelShape | None, length: int, *, adapter: bool = False
) -> float:
    """Model FLOPs to learn from a sequence once: a backward pass counts as two forward ones.

    As one where only an adapter learns, whose own FLOPs are not counted; nor are those of
    recomputed activations and of a reference.
    """
    flops = (2 if adapter else 3) * policy.forward_flops(length)
    if critic is not None:
        flops += 3 * critic.critic_flops(length)
    return length * flops


def shape_from_config(config: Mapping[str, Any]) -> ModelShape:
    """The shape that a Hugging Face ``config.json`` describes.

    Raises:
        UnknownModel: for another family than Llama and Qwen, or a damaged field.
    """
    family = config.get("model_type")
    if family not in ("llama", "qwen2", "qwen3"):
        raise UnknownModel(f"model_type {family!r} is none of llama, qwen2, qwen3")
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
    key_value_heads = _whole(config, "num_key_value_heads", default=heads)
    if heads % key_value_heads:
        raise UnknownModel(f"field num_key_value_heads must divide num_attention_heads = {heads}")
    tied = config.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise UnknownModel(f"field tie_word_embeddings must be true or false, not {str(tied)[:40]}")
    return ModelShape(
        hidden=hidden,
        layers=_whole(config, "num_hidden_layers"),
        heads=heads,
        key_value_heads=key_value_heads,
        head_size=_whole(config, "head_dim", default=hidden // heads or None),
        intermediate=_whole(config, "intermediate_size"),
        vocabulary=_whole(config, "vocab_size"),
        max_positions=max_positions(config) or _whole(config, "max_position_embeddings"),
        tied=tied,
        attention_bias=family == "qwen2",
        query_key_norm=family == "qwen3",
    )


def _whole(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _LARGEST_COUNT:
        raise UnknownModel(f"field {field} must be a whole number, not {str(value)[:40]}")
    return value


def sequence_problem(size: int, heads: int, key_value_heads: int, num_ranks: int) -> str | None:
    """Why ``size`` of the ranks cannot share each sample, with the remedy; None: they can."""
    possible = [
        each
        for each in range(1, num_ranks + 1)
        if num_ranks % each == 0 and split_problem(each, heads, key_value_heads) is None
    ]
    if size in possible:
        return None
    problem = split_problem(size, heads, key_value_heads)
    return (
        f"training.sequence_parallel = {size}: "
        + (problem or f"it does not divide the learner's {num_ranks} ranks")
        + f"; choose {' or '.join(map(str, possible))}, or give the learner other GPUs"
    )


def split_problems(placement: Placement, heads: int, key_value_heads: int) -> Iterator[str]:
    """The engines over whose GPUs the heads cannot be split, with the reason and the remedy."""
    sizes = range(1, GPUS_OF_A_BOX + 1)
    possible = [str(size) for size in sizes if not split_problem(size, heads, key_value_heads)]
    choice = f"in WEIR_GPUS write rollout= with {' or '.join(possible)} GPUs"
    for engine in placement.rollouts:
        if problem := split_problem(max(1, len(engine.gpus)), heads, key_value_heads):
            yield f"{engine}: {problem}; {choice}"


_QWEN25 = partial(ModelShape, attention_bias=True)
# From the models' published config.json: hidden, layers, heads, key-value heads, size of a head,
# intermediate, vocabulary, positions.
BUILT_IN: Mapping[str, ModelShape] = {
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN25(896, 24, 14, 2, 64, 4864, 151936, 32768, tied=True),
    "Qwen/Qwen2.5-1.5B-Instruct": _QWEN25(1536, 28, 12, 2, 128, 8960, 151936, 32768, tied=True),
    "Qwen/Qwen2.5-3B": _QWEN25(2048, 36, 16, 2, 128, 11008, 151936, 32768, tied=True),
    "Qwen/Qwen2.5-7B": _QWEN25(3584, 28, 28, 4, 128, 18944, 152064, 131072),
    "Qwen/Qwen2.5-14B": _QWEN25(5120, 48, 40, 8, 128, 13824, 152064, 131072),
    "Qwen/Qwen2.5-32B": _QWEN25(5120, 64, 40, 8, 128, 27648, 152064, 131072),
    "Qwen/Qwen2.5-Math-7B": _QWEN25(3584, 28, 28, 4, 128, 18944, 152064, 4096),
    "Qwen/Qwen3-4B-Base": ModelShape(
        2560, 36, 32, 8, 128, 9728, 151936, 32768, tied=True, query_key_norm=True
    ),
    "Qwen/Qwen3-4B-Instruct-2507": ModelShape(
        2560, 36, 32, 8, 128, 9728, 151936, 262144, tied=True, query_key_norm=True
    ),
    "deepseek-ai/deepseek-math-7b-instruct": ModelShape(4096, 30, 32, 32, 128, 11008, 102400, 4096),
}


@dataclass(frozen=True)
class Item:
    """One part of the memory of one GPU, or of a host."""

    what: str
    bytes: int
    formula: str


# When it is on a GPU, or that it is in host memory; and whether there is such an item at all.
Row = tuple[Literal["held", "backward", "step", "host"], bool, Item]


@dataclass(frozen=True)
class LearnerFootprint:
    """The memory of one GPU of the learner, at the largest micro-batch that may come."""

    held: tuple[Item, ...]
    backward: tuple[Item, ...]  # besides, in the policy's or the critic's pass, the larger
    step: tuple[Item, ...]  # besides, in an optimizer's step, when that is over
    host: tuple[Item, ...]  # of all its ranks on a node

    @property
    def peak(self) -> int:
        return total(self.held) + max(total(self.backward), total(self.step))

    def fits(self, usable: int, usable_at_rest: int) -> bool:
        """Whether a GPU has room for it, in its turns and between them."""
        return self.peak <= usable and total(self.held) <= usable_at_rest


@dataclass(frozen=True)
class RolloutFootprint:
    """The memory of one GPU of the smallest engine, and how many responses that holds."""

    weights: Item
    cache: Item  # the keys and values of all responses that are sampled at the same time
    room: int  # bytes that are left for them
    bytes_per_token: int
    responses_asked: int  # of one engine, at the same time
    responses_held: int  # so many of them fit at full length


def total(items: Iterable[Item]) -> int:
    return sum(item.bytes for item in items)


def _item(what: str, numbers: int, size: int, shards: int) -> Item:
    split = f" / {shards} GPUs" if shards > 1 else ""
    formula = f"{_count(numbers)} x {size} bytes{split}"
    return Item(what, math.ceil(numbers * size / shards), formula)


def _count(number: int) -> str:
    for size, letter in ((10**9, "B"), (10**6, "M")):
        if number >= size:
            return f"{number / size:.2f} {letter}"
    return f"{number:,}"


def longest_micro_batch(recipe: Recipe) -> int:
    """Tokens of the largest micro-batch; a sample longer than the budget goes alone.

    The ranks that share it have a budget each.
    """
    training = recipe.training
    groups = math.ceil(training.groups_per_step / training.updates_per_batch)
    mini_batch = groups * recipe.rollout.group_size * recipe.model.max_context
    budget = training.micro_batch_tokens * training.sequence_parallel
    return max(recipe.model.max_context, min(budget, mini_batch))


def with_token_budget(recipe: Recipe, micro_batch_tokens: int | None) -> Recipe:
    if micro_batch_tokens is None:
        return recipe
    training = recipe.training.model_copy(update={"micro_batch_tokens": micro_batch_tokens})
    return recipe.model_copy(update={"training": training})


def smaller_token_budget(recipe: Recipe) -> int | None:
    """A rank's part of half the largest micro-batch; None if that is one sample of full length."""
    largest, longest = longest_micro_batch(recipe), recipe.model.max_context
    share = math.ceil(max(largest // 2, longest) / recipe.training.sequence_parallel)
    return share if largest > longest else None


def fitted_to_cpus(
    recipe: Recipe, policy: ModelShape, critic: ModelShape | None, machine: Machine
) -> Recipe:
    """The recipe with micro-batches halved as far as ranks on CPUs need it to fit into the memory.

    A kernel kills a process that takes too much; it gives no error that a smaller one could follow.
    """
    smaller, ranks = recipe, machine.placement.num_ranks
    engine = rollout_footprint(recipe, policy, machine).weights.bytes + machine.engine_cache_bytes
    usable_bytes = machine.usable_host_bytes - len(machine.placement.rollouts) * engine
    while (tokens := smaller_token_budget(smaller)) is not None:
        footprint = learner_footprint(smaller, policy, critic, ranks)
        if ranks * footprint.peak + total(footprint.host) <= usable_bytes:
            break
        smaller = with_token_budget(smaller, tokens)
    return smaller


def rollout_footprint(recipe: Recipe, shape: ModelShape, machine: Machine) -> RolloutFootprint:
    """One GPU of the smallest engine, where all engines have an equal share of the work."""
    num_gpus, size = machine.gpus_per_engine, DTYPE_BYTES[recipe.model.dtype]
    share = math.ceil(responses_in_flight(recipe) / len(machine.placement.rollouts))
    responses = min(machine.engine_sequences, share)
    weights = _item("weights", shape.parameters, size, num_gpus)
    # A key-value head is never split: GPUs beyond their number hold copies.
    heads = math.ceil(shape.key_value_heads / num_gpus)
    per_token = 2 * shape.layers * heads * shape.head_size * size
    full_length = per_token * recipe.model.max_context
    cache = Item(
        "keys and values",
        responses * full_length,
        f"{responses} responses x {recipe.model.max_context} tokens x {per_token:,} bytes "
        f"(2 x {shape.layers} layers x {heads} heads x {shape.head_size} x {size})",
    )
    left = max(0, machine.engine_bytes - weights.bytes)
    room = min(machine.engine_cache_bytes or left, left)
    held = min(responses, room // full_length)
    return RolloutFootprint(weights, cache, room, per_token, responses, held)


def learner_footprint(
    recipe: Recipe, policy: ModelShape, critic: ModelShape | None, num_gpus: int, on_node: int = 0
) -> LearnerFootprint:
    """One of the learner's ``num_gpus`` GPUs, and the host of ``on_node`` of them; 0: of all."""
    models = trained_models(recipe, policy, critic, num_gpus, on_node or num_gpus)
    tables = [
        [*_of_weights(m), *_of_samples(m, recipe), *_of_learning(m), *_of_offload(m)]
        for m in models
    ]
    everywhere = [*_of_any_learner(models, recipe), *(row for table in tables for row in table)]
    if recipe.algorithm.divergence_weight > 0 and recipe.model.lora is None:
        # With an adapter it is the base, which is there anyway.
        everywhere += _of_weights(replace(models[0], who="reference"))

    def at(place: str, rows: Sequence[Row]) -> tuple[Item, ...]:
        return tuple(item for when, is_there, item in rows if is_there and when == place)

    return LearnerFootprint(
        at("held", everywhere),
        max((at("backward", table) for table in tables), key=total),
        max((at("step", table) for table in tables), key=total),
        at("host", everywhere),
    )


@dataclass(frozen=True)
class Trained:
    """A model that learns, in numbers."""

    who: str
    shape: ModelShape
    weights: int  # numbers in all its weights
    parameters: int  # in those that learn
    adapted: int  # numbers that a layer's adapters keep of a token
    settings: Optimizer
    dtype: str
    num_gpus: int
    ranks: int  # of a node

    @property
    def size(self) -> int:
        """Bytes of a number of its dtype."""
        return DTYPE_BYTES[self.dtype]

    @property
    def stage(self) -> int:
        return self.settings.zero_stage

    @property
    def offloads(self) -> bool:
        return self.settings.offload != "none"

    @property
    def sums_in_float32(self) -> bool:
        """Whether gradients are added up in another dtype than they come in."""
        return self.dtype == "bfloat16"

    @property
    def sums_apart(self) -> bool:
        """Whether DeepSpeed's BF16_Optimizer stands in for ZeRO-1: it sums in a full buffer."""
        return self.sums_in_float32 and self.stage == 1 and not self.offloads

    def shards(self, from_stage: int) -> int:
        """GPUs over which it splits what ZeRO splits from this stage on."""
        return self.num_gpus if self.stage >= from_stage else 1

    def item(self, what: str, size: int, shards: int = 1, *, numbers: int = 0) -> Item:
        """Numbers of ``size`` bytes over so many GPUs; by default one per learned parameter."""
        return _item(f"{self.who}: {what}", numbers or self.parameters, size, shards)

    def on_host(self, what: str, size: int, numbers: int = 0, *, pinned: bool = True) -> Item:
        """The shares of a node's ranks; torch pins memory in blocks of a power of two."""
        whole = self.item(what, size, numbers=numbers)
        share, formula = math.ceil(whole.bytes / self.num_gpus), whole.formula
        if self.ranks != self.num_gpus:
            formula += f", {self.ranks} of {self.num_gpus} ranks"
        if pinned:
            share = 1 << (share - 1).bit_length()
            formula += f", pinned in blocks of {share / GIB:,.3g} GiB"
        return Item(whole.what, self.ranks * share, formula)


def trained_models(
    recipe: Recipe, policy: ModelShape, critic: ModelShape | None, num_gpus: int, ranks: int
) -> list[Trained]:
    lora, where = recipe.model.lora, (recipe.model.dtype, num_gpus, ranks)
    weights, learned, adapted = policy.parameters, policy.parameters, 0
    if lora is not None:
        learned = policy.adapter_parameters(lora.rank, lora.targets)
        weights, adapted = weights + learned, lora.rank * len(policy.adapted(lora.targets))
    models = [Trained("policy", policy, weights, learned, adapted, recipe.optimizer, *where)]
    if recipe.critic is not None and critic is not None:
        weights, settings = critic.critic_parameters, recipe.critic.optimizer
        models.append(Trained("critic", critic, weights, weights, 0, settings, *where))
    return models


def _of_any_learner(models: Sequence[Trained], recipe: Recipe) -> list[Row]:
    policy, largest = models[0], max(models, key=lambda model: model.weights)
    loaded = largest.item("", largest.size, numbers=largest.weights)
    # The two newest; what a checkpoint copies and what is evaluated stay meanwhile.
    evaluates = recipe.evaluation is not None
    versions = 4 if evaluates else 3
    published = policy.item("", policy.size, numbers=versions * policy.weights)
    copies = policy.ranks * policy.parameters
    measured = policy.item("", policy.size, policy.shards(3), numbers=copies)
    rows = (
        (True, loaded, "a whole model, to load and to export"),
        (recipe.model.lora is None, published, f"{versions} published versions"),
        (evaluates or recipe.training.max_staleness > 0, measured, "what parity compares, a rank"),
    )
    return [("host", is_there, replace(item, what=what)) for is_there, item, what in rows]


def _of_weights(model: Trained) -> list[Row]:
    """Under ZeRO-3 also those that are gathered for a moment."""
    size, weights, all_away = model.size, model.weights, model.settings.offload == "all"
    here = model.item("weights", size, model.shards(3), numbers=weights)
    if model.stage == 3:
        gathered = min(weights, LIVE_PARAMETERS)
        words = f"{_count(gathered)} gathered x {size} bytes"
        words, kept = (words, 0) if all_away else (f"{here.formula} + {words}", here.bytes)
        here = Item(here.what, kept + gathered * size, words)
    return [("held", True, here), ("host", all_away, model.on_host("weights", size, weights))]


def _of_learning(model: Trained) -> list[Row]:
    """What ZeRO and AdamW keep on a GPU apart from the weights."""
    stage, float32, apart = model.stage, model.sums_in_float32, model.sums_apart
    on_gpu = not model.offloads
    summed = model.item("float32 sum of gradients", 4)
    summed = replace(summed, formula=f"{summed.formula} on every GPU: ZeRO-1 does not split it")
    reduced = min(REDUCE_BUCKET, model.parameters)
    bucket = model.item("bucket to reduce gradients", REDUCED_SIZE, numbers=reduced)
    copy = model.item("copy of the bucket", REDUCED_SIZE, numbers=reduced)
    gradients, own = _gradients(model), model.item("gradients", model.size, model.shards(2))
    weights = model.item("float32 copy of the weights", 4, model.shards(1))
    return [
        ("held", on_gpu, model.item("Adam's moments", 8, model.shards(1))),
        ("held", stage == 0 or (stage == 3 and on_gpu), gradients),
        ("held", apart, summed),
        ("held", stage == 3, bucket),  # below, it is gone when the backward pass is over
        ("held", on_gpu and (stage >= 1 or model.size < 4), weights),
        ("backward", stage == 1 or (stage == 2 and (float32 or on_gpu)), gradients),
        ("backward", stage in {1, 2} and not apart, bucket),
        ("backward", stage == 3 or (stage == 2 and float32), copy),
        ("step", apart or (model.offloads and float32 and stage < 3), gradients),
        ("step", on_gpu and not float32 and stage in {1, 2}, own),
        ("step", on_gpu and not apart, _stepped_through(model, reduced)),
    ]


def _gradients(model: Trained) -> Item:
    """Gradients, and their sum over the micro-batches before."""
    if model.stage == 1 and model.offloads and model.sums_in_float32:
        whole = model.item("gradients and their sum", 4)
        share = model.item("", 4, model.num_gpus)
        return Item(whole.what, whole.bytes + share.bytes, f"{whole.formula} + {share.formula}")
    if model.stage >= 2 and model.sums_in_float32:  # each is added to the sum as it is reduced
        return model.item("gradients", 4, model.shards(2))
    if model.stage == 2:
        return model.item("gradients and their sum", 2 * model.size, model.num_gpus)
    return model.item("gradients", model.size, model.shards(2))


def _stepped_through(model: Trained, reduced: int) -> Item:
    """What fused AdamW makes of the gradients; without ZeRO, or the bucket that reduces them."""
    if model.stage == 0:
        if model.size == 4:
            return model.item("copy of the bucket", REDUCED_SIZE, numbers=reduced)
        copy = model.item("copy of the bucket", REDUCED_SIZE + model.size, numbers=reduced)
        return max(copy, model.item("float32 gradients", 4), key=lambda item: item.bytes)
    share = model.item("float32 gradients", 4, model.num_gpus)
    if model.stage == 3 and share.bytes > 4 * SUB_GROUP:
        return model.item("float32 gradients", 4, numbers=SUB_GROUP)
    return share


def _of_samples(model: Trained, recipe: Recipe) -> list[Row]:
    """What the layers keep for the backward pass, within 4 % on a CPU with SDPA; and log-probs."""
    shape, size = model.shape, model.size
    positions = math.ceil(longest_micro_batch(recipe) / recipe.training.sequence_parallel)
    upcast = 1 if size < 4 else 0  # norms compute in float32, and keep that too
    wide, narrow = shape.hidden + shape.query_width, shape.key_width
    # Of a position: norms, projections, attention, feed-forward, adapters.
    layer = (5 + upcast) * wide + 2 * narrow + 4 * shape.intermediate + model.adapted
    if shape.query_key_norm:
        layer += (1 + upcast) * shape.query_width + (2 + upcast) * narrow
    numbers, words = shape.layers * layer, f"{shape.layers} layers x {layer:,}"
    if recipe.training.recompute_activations:
        numbers = shape.layers * shape.hidden + layer
        words = f"({shape.layers} layers x {shape.hidden:,} + one layer's {layer:,})"
    activations = Item(
        f"{model.who}: activations",
        numbers * positions * size,
        f"{positions:,} positions x {words} x {size} bytes",
    )
    tokens = min(recipe.training.logprob_chunk_tokens, positions)
    logprobs = Item(
        f"{model.who}: log-probs of a chunk",
        tokens * shape.vocabulary * 4 * LOGIT_COPIES,
        f"{tokens:,} tokens x {shape.vocabulary:,} x 4 bytes x {LOGIT_COPIES} copies",
    )
    return [("backward", True, activations), ("backward", model.who == "policy", logprobs)]


def _of_offload(model: Trained) -> list[Row]:
    stage, float32, size = model.stage, model.sums_in_float32, model.size
    rows = [
        (True, "Adam's moments", 8, False),
        (True, "float32 copy of the weights", 4, stage < 3),
        (True, "float32 gradients", 4, True),
        (stage == 3 or not float32, "sum of gradients", 4 if float32 else size, True),
        (stage < 3, "weights on their way to the GPU", size, True),
    ]
    return [
        ("host", model.offloads and is_there, model.on_host(what, size, pinned=pinned))
        for is_there, what, size, pinned in rows
    ]
