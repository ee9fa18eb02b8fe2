"""What a recipe takes of a GPU's memory: arithmetic, with the formula of every number. Pure.

The learner's numbers follow what `services/learner/training/engine.py` asks of DeepSpeed 0.19:
gradients of bfloat16 summed in float32 under ZeRO, torch's AdamW on float32 copies, as it runs on a
GPU (``foreach``). They were held against each ZeRO stage on one CPU rank. Buffers of CUDA, NCCL and
the allocator are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.recipe import Optimizer, Recipe

from services.learner.planning.shape import ModelShape

GIB = 2**30
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
REDUCE_BUCKET = 500_000_000  # DeepSpeed's default, in numbers; a smaller model has a smaller one
LIVE_PARAMETERS = 1_000_000_000  # so many are gathered at once under ZeRO-3, by default
SUB_GROUP = 1_000_000_000  # ZeRO-3 steps through so many numbers of a rank's share at a time
# `token_logprobs` with its backward pass held 6.2 (bfloat16) and 6.3 (float32) at its peak.
LOGIT_COPIES = 7


@dataclass(frozen=True)
class Item:
    """One part of the memory of one GPU."""

    what: str
    bytes: int
    formula: str


@dataclass(frozen=True)
class LearnerFootprint:
    """The memory of one GPU of the learner, at the largest micro-batch that may come."""

    held: tuple[Item, ...]  # all the time
    backward: tuple[Item, ...]  # during the larger backward pass, the policy's or the critic's
    step: tuple[Item, ...]  # during an optimizer step, when those are gone

    @property
    def peak(self) -> int:
        """Bytes when it is fullest."""
        return total(self.held) + max(total(self.backward), total(self.step))


@dataclass(frozen=True)
class RolloutFootprint:
    """The memory of one GPU of an engine that samples, and how many responses that holds."""

    weights: Item
    cache: Item  # the keys and values of all responses that are sampled at the same time
    room: int  # bytes that are left for them
    bytes_per_token: int
    responses_asked: int  # of one engine, at the same time
    responses_held: int  # so many of them fit at full length


def total(items: Sequence[Item]) -> int:
    """Bytes of all items."""
    return sum(item.bytes for item in items)


def longest_micro_batch(recipe: Recipe) -> int:
    """Positions of the largest micro-batch, padding included; a long sample may go alone."""
    training = recipe.training
    groups = math.ceil(training.groups_per_step / training.updates_per_batch)
    mini_batch = groups * recipe.rollout.group_size * recipe.model.max_context
    return max(recipe.model.max_context, min(training.micro_batch_tokens, mini_batch))


def learner_footprint(
    recipe: Recipe, policy: ModelShape, critic: ModelShape | None, num_gpus: int
) -> LearnerFootprint:
    """What one of ``num_gpus`` GPUs of the learner holds; ``critic`` if the recipe has one."""
    dtype = recipe.model.dtype
    trained = [_Trained("policy", policy, policy.parameters, recipe.optimizer, dtype, num_gpus)]
    if recipe.critic is not None and critic is not None:
        settings = recipe.critic.optimizer
        parameters = critic.critic_parameters
        trained.append(_Trained("critic", critic, parameters, settings, dtype, num_gpus))
    held = [item for model in trained for item in _held(model)]
    if recipe.algorithm.divergence_weight > 0:
        held.append(_weights("reference", trained[0]))
    backward = [_backward(model, recipe) for model in trained]
    steps = [_step(model) for model in trained]
    return LearnerFootprint(tuple(held), max(backward, key=total), max(steps, key=total))


def rollout_footprint(
    recipe: Recipe,
    shape: ModelShape,
    *,
    num_gpus: int,
    gpu_bytes: int,
    responses: int,
    cache_bytes: int = 0,
) -> RolloutFootprint:
    """What one GPU of an engine holds.

    Args:
        recipe: its model's dtype and longest context count.
        shape: of the policy.
        num_gpus: the engine splits the model over so many.
        gpu_bytes: of each GPU, what the engine may use.
        responses: the engine samples at most so many at the same time.
        cache_bytes: of each GPU, set aside for keys and values; 0: what the weights leave.
    """
    size = DTYPE_BYTES[recipe.model.dtype]
    weights = Item(
        "weights",
        math.ceil(shape.parameters * size / num_gpus),
        f"{count(shape.parameters)} x {size} bytes" + _over(num_gpus),
    )
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
    left = max(0, gpu_bytes - weights.bytes)
    room = min(cache_bytes, left) if cache_bytes else left
    return RolloutFootprint(
        weights, cache, room, per_token, responses, min(responses, room // full_length)
    )


def count(number: int) -> str:
    """A number of parameters for people: ``7.62 B``."""
    for size, letter in ((10**9, "B"), (10**6, "M")):
        if number >= size:
            return f"{number / size:.2f} {letter}"
    return f"{number:,}"


@dataclass(frozen=True)
class _Trained:
    who: str
    shape: ModelShape
    parameters: int
    settings: Optimizer
    dtype: str
    num_gpus: int

    @property
    def stage(self) -> int:
        return self.settings.zero_stage

    @property
    def size(self) -> int:
        """Bytes of a number of its dtype."""
        return DTYPE_BYTES[self.dtype]

    @property
    def bucket(self) -> int:
        """Numbers in the bucket in which ZeRO reduces gradients."""
        return min(REDUCE_BUCKET, self.parameters)

    @property
    def sums_in_float32(self) -> bool:
        """Whether gradients are added up in another dtype than they come in."""
        return self.dtype == "bfloat16" and self.stage >= 1

    @property
    def sums_apart(self) -> bool:
        """Whether DeepSpeed's BF16_Optimizer stands in for ZeRO-1: it sums in a full buffer."""
        return self.sums_in_float32 and self.stage == 1

    def shards(self, from_stage: int) -> int:
        """Over how many GPUs it splits what is split from this ZeRO stage on."""
        return self.num_gpus if self.stage >= from_stage else 1


def _held(model: _Trained) -> list[Item]:
    who, parameters, shards = model.who, model.parameters, model.shards(1)
    items = [
        _weights(who, model),
        _item(f"{who}: Adam's moments", parameters, 8, shards),
    ]
    if model.stage in {0, 3}:
        items.append(_gradients(model))
    if model.sums_apart:
        formula = f"{count(parameters)} x 4 bytes on every GPU: ZeRO-1 does not split it"
        items.append(Item(f"{who}: float32 sum of gradients", parameters * 4, formula))
    elif model.stage >= 1:
        items.append(_item(f"{who}: bucket to reduce gradients", model.bucket, model.size, 1))
    if model.dtype != "float32" or model.stage >= 1:  # ZeRO copies even float32
        items.append(_item(f"{who}: float32 copy of the weights", parameters, 4, shards))
    return items


def _weights(who: str, model: _Trained) -> Item:
    size, parameters = model.size, model.parameters
    shard = _item(f"{who}: weights", parameters, size, model.shards(3))
    if model.stage < 3:
        return shard
    gathered = min(parameters, LIVE_PARAMETERS)
    formula = f"{shard.formula} + {count(gathered)} gathered x {size} bytes"
    return Item(shard.what, shard.bytes + gathered * size, formula)


def _gradients(model: _Trained) -> Item:
    size, what = model.size, f"{model.who}: gradients"
    if model.stage >= 2 and model.sums_in_float32:
        size = 4  # each is added to the sum as it is reduced
    elif model.stage == 2:
        size, what = 2 * size, f"{what} and their sum"  # of the micro-batches before
    return _item(what, model.parameters, size, model.shards(2))


def _backward(model: _Trained, recipe: Recipe) -> tuple[Item, ...]:
    items = [_activations(model.who, recipe, model.shape)]
    if model.who == "policy":
        items.append(_logits(recipe, model.shape))
    if model.stage in {1, 2}:
        items.append(_gradients(model))
    if model.stage == 3 or (model.stage == 2 and model.sums_in_float32):
        items.append(_copy_of_bucket(model))
    return tuple(items)


def _copy_of_bucket(model: _Trained) -> Item:
    """What a reduction copies: the bucket in the order of the shards, and its share in float32."""
    copy = _item(f"{model.who}: copy of the bucket", model.bucket, model.size, 1)
    if model.stage < 3 or not model.sums_in_float32:
        return copy
    share = _item(copy.what, model.bucket, 4, model.num_gpus)
    return Item(copy.what, copy.bytes + share.bytes, f"{copy.formula} + {share.formula}")


def _step(model: _Trained) -> tuple[Item, ...]:
    who, parameters, shards = model.who, model.parameters, model.shards(1)
    roots = _item(f"{who}: AdamW's square roots", parameters, 4, shards)
    if model.stage == 0 and model.dtype == "float32":
        return (roots,)
    if model.sums_apart:  # the sum is copied to be reduced, before there are square roots
        copy = _item(f"{who}: copy of the sum to reduce", parameters, model.size, 1)
        return (_gradients(model), max(copy, roots, key=lambda item: item.bytes))
    what = f"{who}: float32 gradients, AdamW's square roots"
    item = _item(what, parameters, 8, shards)
    if model.stage == 3 and item.bytes > 8 * SUB_GROUP:
        item = _item(what, SUB_GROUP, 8, 1)
    return (item,)


def _activations(who: str, recipe: Recipe, shape: ModelShape) -> Item:
    """What the layers keep for the backward pass; measured on a CPU within 4 % with SDPA."""
    positions, size = longest_micro_batch(recipe), DTYPE_BYTES[recipe.model.dtype]
    layer = _numbers_of_layer(shape, size)
    if not recipe.training.recompute_activations:
        return Item(
            f"{who}: activations",
            shape.layers * layer * positions * size,
            f"{positions:,} positions x {shape.layers} layers x {layer:,} x {size} bytes",
        )
    return Item(
        f"{who}: activations",
        (shape.layers * shape.hidden + layer) * positions * size,
        f"{positions:,} positions x ({shape.layers} layers x {shape.hidden:,} + one layer's "
        f"{layer:,}) x {size} bytes",
    )


def _numbers_of_layer(shape: ModelShape, size: int) -> int:
    """What a layer keeps of a position, in numbers: norms, projections, attention, feed-forward."""
    upcast = 1 if size < 4 else 0  # norms compute in float32, and keep that too
    wide, narrow = shape.hidden + shape.query_width, shape.key_width
    numbers = (5 + upcast) * wide + 2 * narrow + 4 * shape.intermediate
    if shape.query_key_norm:
        numbers += (1 + upcast) * shape.query_width + (2 + upcast) * narrow
    return numbers


def _logits(recipe: Recipe, policy: ModelShape) -> Item:
    tokens = min(recipe.training.logprob_chunk_tokens, longest_micro_batch(recipe))
    return Item(
        "policy: log-probs of a chunk",
        tokens * policy.vocabulary * 4 * LOGIT_COPIES,
        f"{tokens:,} tokens x {policy.vocabulary:,} x 4 bytes x {LOGIT_COPIES} copies",
    )


def _item(what: str, parameters: int, size: int, shards: int) -> Item:
    formula = f"{count(parameters)} x {size} bytes" + _over(shards)
    return Item(what, math.ceil(parameters * size / shards), formula)


def _over(num_gpus: int) -> str:
    return f" / {num_gpus} GPUs" if num_gpus > 1 else ""
