"""What one GPU of an engine holds: weights, keys and values. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.recipe import Recipe

from services.learner.planning.footprint import DTYPE_BYTES, Item, count, over
from services.learner.planning.shape import ModelShape


@dataclass(frozen=True)
class RolloutFootprint:
    """The memory of one GPU of an engine that samples, and how many responses that holds."""

    weights: Item
    cache: Item  # the keys and values of all responses that are sampled at the same time
    room: int  # bytes that are left for them
    bytes_per_token: int
    responses_asked: int  # of one engine, at the same time
    responses_held: int  # so many of them fit at full length


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
        f"{count(shape.parameters)} x {size} bytes" + over(num_gpus),
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
