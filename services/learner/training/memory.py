"""The largest micro-batch of a recipe, and a smaller one where the memory is too small for it."""

from __future__ import annotations

import math

import numpy as np
from protocol.recipe import Recipe

from services.learner.planning.footprint import longest_micro_batch
from services.learner.training.samples import Sample


def largest_micro_batches(recipe: Recipe, num_ranks: int) -> list[Sample]:
    """Samples that make the largest micro-batch that there may be on every rank.

    They are as long as can be, the last one shorter if no other fits.
    """
    longest = recipe.model.max_context
    whole, rest = divmod(longest_micro_batch(recipe), longest)
    lengths = [longest] * whole + [rest] * (rest > 1)
    most = recipe.rollout.sampling.max_tokens
    num_groups = num_ranks // recipe.training.sequence_parallel
    return [blank_sample(length, min(length - 1, most)) for length in lengths * num_groups]


def blank_sample(length: int, response: int) -> Sample:
    """A sample of so many tokens, of which the last so many are the response."""
    return Sample(
        prompt_ids=np.zeros(length - response, dtype=np.int32),
        token_ids=np.zeros(response, dtype=np.int32),
        behavior_logprobs=np.zeros(response, dtype=np.float32),
        on_version=np.ones(response, dtype=np.int32),
        advantage=1.0,
        reward=1.0,
        correct=True,
        group=0,
    )


def with_token_budget(recipe: Recipe, micro_batch_tokens: int | None) -> Recipe:
    """The recipe with another token budget, if there is one."""
    if micro_batch_tokens is None:
        return recipe
    training = recipe.training.model_copy(update={"micro_batch_tokens": micro_batch_tokens})
    return recipe.model_copy(update={"training": training})


def smaller_token_budget(recipe: Recipe) -> int | None:
    """A rank's part of half the largest micro-batch; None if that is one sample of full length."""
    largest, longest = longest_micro_batch(recipe), recipe.model.max_context
    share = math.ceil(max(largest // 2, longest) / recipe.training.sequence_parallel)
    return share if largest > longest else None
