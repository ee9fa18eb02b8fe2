"""What a recipe takes of GPU and host memory: arithmetic, with the formula of every number. Pure.

The learner's numbers follow what `services/learner/training/engine.py` asks of DeepSpeed 0.19:
gradients of bfloat16 summed in float32 under ZeRO and over ranks, torch's fused AdamW on float32
copies. They were held against each ZeRO stage, with offload and without, on one CPU rank. Buffers
of CUDA, NCCL and the allocator are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from protocol.recipe import Optimizer, Recipe

from services.learner.planning.shape import ModelShape

GIB = 2**30
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
REDUCE_BUCKET = 500_000_000  # DeepSpeed's default, in numbers; a smaller model has a smaller one
REDUCED_SIZE = 4  # bytes of a number that is reduced
LIVE_PARAMETERS = 1_000_000_000  # so many are gathered at once under ZeRO-3, by default
SUB_GROUP = 1_000_000_000  # ZeRO-3 steps through so many numbers of a rank's share at a time
# `token_logprobs` with its backward pass held 6.2 (bfloat16) and 6.3 (float32) at its peak.
LOGIT_COPIES = 7


@dataclass(frozen=True)
class Item:
    """One part of the memory of one GPU, or of a host."""

    what: str
    bytes: int
    formula: str


@dataclass(frozen=True)
class LearnerFootprint:
    """The memory of one GPU of the learner, at the largest micro-batch that may come."""

    held: tuple[Item, ...]  # all the time
    backward: tuple[Item, ...]  # during the larger backward pass, the policy's or the critic's
    step: tuple[Item, ...]  # during an optimizer step, when those are gone
    host: tuple[Item, ...]  # in host memory, of all its ranks on a node

    @property
    def peak(self) -> int:
        """Bytes when it is fullest."""
        return total(self.held) + max(total(self.backward), total(self.step))

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory."""
        return total(self.host)


def total(items: Sequence[Item]) -> int:
    """Bytes of all items."""
    return sum(item.bytes for item in items)


def longest_micro_batch(recipe: Recipe) -> int:
    """Tokens of the largest micro-batch; a sample that is longer than the budget goes alone.

    The ranks that share it have a budget each.
    """
    training = recipe.training
    groups = math.ceil(training.groups_per_step / training.updates_per_batch)
    mini_batch = groups * recipe.rollout.group_size * recipe.model.max_context
    budget = training.micro_batch_tokens * training.sequence_parallel
    return max(recipe.model.max_context, min(budget, mini_batch))


def longest_slice(recipe: Recipe) -> int:
    """Positions that a rank has of the largest micro-batch."""
    return math.ceil(longest_micro_batch(recipe) / recipe.training.sequence_parallel)


def learner_footprint(
    recipe: Recipe, policy: ModelShape, critic: ModelShape | None, num_gpus: int, on_node: int = 0
) -> LearnerFootprint:
    """What one of ``num_gpus`` GPUs of the learner holds, and the host of so many of them.

    Args:
        recipe: what is trained, and how.
        policy: its shape.
        critic: its shape, if the recipe has one.
        num_gpus: ranks of the learner.
        on_node: how many of them are on the node that has most; 0: all.
    """
    trained = trained_models(recipe, policy, critic, num_gpus)
    reference = trained[0] if _has_reference(recipe) else None
    held = [item for model in trained for item in _held(model)]
    if reference is not None:
        held.append(_weights("reference", reference))
    backward = [_backward(model, recipe) for model in trained]
    steps = [_step(model) for model in trained]
    return LearnerFootprint(
        tuple(held),
        max(backward, key=total),
        max(steps, key=total),
        tuple(_in_host_memory(trained, reference, on_node or num_gpus)),
    )


def count(number: int) -> str:
    """A number of parameters for people: ``7.62 B``."""
    for size, letter in ((10**9, "B"), (10**6, "M")):
        if number >= size:
            return f"{number / size:.2f} {letter}"
    return f"{number:,}"


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

    @property
    def stage(self) -> int:
        """Of ZeRO."""
        return self.settings.zero_stage

    @property
    def offloads(self) -> bool:
        """Whether its optimizer is in host memory."""
        return self.settings.offload != "none"

    @property
    def size(self) -> int:
        """Bytes of a number of its dtype."""
        return DTYPE_BYTES[self.dtype]

    @property
    def bucket(self) -> int:
        """Numbers in the bucket in which gradients are reduced."""
        return min(REDUCE_BUCKET, self.parameters)

    @property
    def sums_in_float32(self) -> bool:
        """Whether gradients are added up in another dtype than they come in."""
        return self.dtype == "bfloat16" and self.stage >= 1

    @property
    def sums_apart(self) -> bool:
        """Whether DeepSpeed's BF16_Optimizer stands in for ZeRO-1: it sums in a full buffer."""
        return self.sums_in_float32 and self.stage == 1 and not self.offloads

    def shards(self, from_stage: int) -> int:
        """Over how many GPUs it splits what is split from this ZeRO stage on."""
        return self.num_gpus if self.stage >= from_stage else 1


def trained_models(
    recipe: Recipe, policy: ModelShape, critic: ModelShape | None, num_gpus: int
) -> list[Trained]:
    """The policy, and the critic if the recipe has one."""
    dtype, lora = recipe.model.dtype, recipe.model.lora
    weights, parameters, adapted = policy.parameters, policy.parameters, 0
    if lora is not None:
        parameters = policy.adapter_parameters(lora.rank, lora.targets)
        weights += parameters
        adapted = lora.rank * len(policy.adapted(lora.targets))
    models = [
        Trained("policy", policy, weights, parameters, adapted, recipe.optimizer, dtype, num_gpus)
    ]
    if recipe.critic is not None and critic is not None:
        weights, settings = critic.critic_parameters, recipe.critic.optimizer
        models.append(Trained("critic", critic, weights, weights, 0, settings, dtype, num_gpus))
    return models


def _has_reference(recipe: Recipe) -> bool:
    """Whether a model of its own is one: of an adapter it is the base that is there anyway."""
    return recipe.algorithm.divergence_weight > 0 and recipe.model.lora is None


def _held(model: Trained) -> list[Item]:
    who, parameters, shards = model.who, model.parameters, model.shards(1)
    items = [_weights(who, model)]
    if not model.offloads:
        items.append(_item(f"{who}: Adam's moments", parameters, 8, shards))
    if model.stage == 0 or (model.stage == 3 and not model.offloads):
        items.append(_gradients(model))
    if model.sums_apart:
        formula = f"{count(parameters)} x 4 bytes on every GPU: ZeRO-1 does not split it"
        items.append(Item(f"{who}: float32 sum of gradients", parameters * 4, formula))
    if model.stage == 3:
        items.append(_bucket(model))
    # ZeRO copies even float32.
    if not model.offloads and (model.dtype != "float32" or model.stage >= 1):
        items.append(_item(f"{who}: float32 copy of the weights", parameters, 4, shards))
    return items


def _weights(who: str, model: Trained) -> Item:
    """Those that stay on a GPU, and under ZeRO-3 those that are gathered for a moment."""
    size, weights = model.size, model.weights
    what, gathered = f"{who}: weights", min(weights, LIVE_PARAMETERS)
    in_words = f"{count(gathered)} gathered x {size} bytes"
    if model.settings.offload == "all":
        return Item(what, gathered * size, in_words)
    shard = _item(what, weights, size, model.shards(3))
    if model.stage < 3:
        return shard
    return Item(what, shard.bytes + gathered * size, f"{shard.formula} + {in_words}")


def _gradients(model: Trained) -> Item:
    """What a GPU holds of gradients, and of their sum over the micro-batches before."""
    size, what = model.size, f"{model.who}: gradients"
    if model.stage == 1 and model.offloads and model.sums_in_float32:
        whole = _item(f"{what} and their sum", model.parameters, 4, 1)
        share = _item(what, model.parameters, 4, model.num_gpus)
        return Item(whole.what, whole.bytes + share.bytes, f"{whole.formula} + {share.formula}")
    if model.stage >= 2 and model.sums_in_float32:
        size = 4  # each is added to the sum as it is reduced
    elif model.stage == 2:
        size, what = 2 * size, f"{what} and their sum"
    return _item(what, model.parameters, size, model.shards(2))


def _bucket(model: Trained) -> Item:
    """Where gradients are reduced; below ZeRO-3 it is gone when the backward pass is over."""
    return _item(f"{model.who}: bucket to reduce gradients", model.bucket, REDUCED_SIZE, 1)


def _backward(model: Trained, recipe: Recipe) -> tuple[Item, ...]:
    items = [_activations(model, recipe)]
    if model.who == "policy":
        items.append(_logits(recipe, model.shape))
    if model.stage == 1 or (model.stage == 2 and (model.sums_in_float32 or not model.offloads)):
        items.append(_gradients(model))
    if model.stage in {1, 2} and not model.sums_apart:
        items.append(_bucket(model))
    if model.stage == 3 or (model.stage == 2 and model.sums_in_float32):
        items.append(_item(f"{model.who}: copy of the bucket", model.bucket, REDUCED_SIZE, 1))
    return tuple(items)


def _step(model: Trained) -> tuple[Item, ...]:
    """What a GPU holds to reduce the last gradients, and for AdamW, which is fused."""
    who, parameters = model.who, model.parameters
    if model.stage == 0:  # all gradients are copied to be reduced, bucket by bucket
        size = REDUCED_SIZE + (model.size if model.dtype != "float32" else 0)
        copy = _item(f"{who}: copy of the bucket", model.bucket, size, 1)
        if model.dtype == "float32":
            return (copy,)
        gradients = _item(f"{who}: float32 gradients", parameters, 4, 1)
        return (max(copy, gradients, key=lambda item: item.bytes),)
    if model.offloads:
        return (_gradients(model),) if model.stage < 3 and model.sums_in_float32 else ()
    if model.sums_apart:
        return (_gradients(model),)
    share = _item(f"{who}: float32 gradients", parameters, 4, model.num_gpus)
    if model.stage == 3 and share.bytes > 4 * SUB_GROUP:
        share = _item(share.what, SUB_GROUP, 4, 1)
    if model.sums_in_float32 or model.stage == 3:
        return (share,)
    return (_item(f"{who}: gradients", parameters, model.size, model.shards(2)), share)


def _in_host_memory(
    models: Sequence[Trained], reference: Trained | None, ranks: int
) -> Iterator[Item]:
    """What so many ranks hold in the memory of their node."""
    largest = max(models, key=lambda model: model.weights)
    yield _item("a whole model, to load and to publish", largest.weights, largest.size, 1)
    for model in models:
        if model.offloads:
            yield from _offloaded(model, ranks)
    for model in (*models, *([replace(reference, who="reference")] if reference else [])):
        if model.settings.offload == "all":
            yield _on_host(model, "weights", model.size, ranks, model.weights)


def _offloaded(model: Trained, ranks: int) -> Iterator[Item]:
    yield _on_host(model, "Adam's moments", 8, ranks, pinned=False)
    yield _on_host(model, "float32 copy of the weights", 4, ranks, pinned=model.stage < 3)
    yield _on_host(model, "float32 gradients", 4, ranks)
    if model.stage == 3 or not model.sums_in_float32:
        size = 4 if model.sums_in_float32 else model.size
        yield _on_host(model, "sum of gradients", size, ranks)
    if model.stage < 3:
        yield _on_host(model, "weights on their way to the GPU", model.size, ranks)


def _on_host(
    model: Trained, what: str, size: int, ranks: int, numbers: int = 0, *, pinned: bool = True
) -> Item:
    """Ranks' shares of something; torch pins memory in blocks of a power of two."""
    numbers = numbers or model.parameters
    share = math.ceil(numbers * size / model.num_gpus)
    formula = f"{count(numbers)} x {size} bytes"
    if ranks != model.num_gpus:
        formula += f", {ranks} of {model.num_gpus} ranks"
    if pinned:
        share = 1 << (share - 1).bit_length()
        formula += f", pinned in blocks of {share / GIB:,.3g} GiB"
    return Item(f"{model.who}: {what}", ranks * share, formula)


def _activations(model: Trained, recipe: Recipe) -> Item:
    """What the layers keep for the backward pass; measured on a CPU within 4 % with SDPA."""
    who, shape, size = model.who, model.shape, model.size
    positions = longest_slice(recipe)
    layer = _numbers_of_layer(shape, size) + model.adapted
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
    tokens = min(recipe.training.logprob_chunk_tokens, longest_slice(recipe))
    return Item(
        "policy: log-probs of a chunk",
        tokens * policy.vocabulary * 4 * LOGIT_COPIES,
        f"{tokens:,} tokens x {policy.vocabulary:,} x 4 bytes x {LOGIT_COPIES} copies",
    )


def _item(what: str, parameters: int, size: int, shards: int) -> Item:
    formula = f"{count(parameters)} x {size} bytes" + over(shards)
    return Item(what, math.ceil(parameters * size / shards), formula)


def over(num_gpus: int) -> str:
    """What a formula says of a split."""
    return f" / {num_gpus} GPUs" if num_gpus > 1 else ""
