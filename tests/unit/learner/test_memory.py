"""The largest micro-batch of a recipe is what its footprint counts, on every rank."""

from __future__ import annotations

import pytest
from protocol.recipe import Recipe

from services.learner.planning.footprint import longest_micro_batch, longest_slice
from services.learner.training.batching import micro_batches
from services.learner.training.memory import (
    largest_micro_batches,
    smaller_token_budget,
    with_token_budget,
)
from tests.builders import a_recipe


def recipe_of(micro_batch_tokens: int, **training: int) -> Recipe:
    return a_recipe(
        model={"max_context": 100},
        rollout={"sampling": {"max_tokens": 80}},
        training={"groups_per_step": 8, "micro_batch_tokens": micro_batch_tokens, **training},
    )


@pytest.mark.parametrize(
    ("recipe", "tokens"),
    [
        (recipe_of(450), 450),
        (recipe_of(401), 400),  # no room for a prompt and a response
        (recipe_of(50), 100),  # a sample that is longer than the budget
        (recipe_of(10**6), 1600),  # a whole mini-batch, on each rank
        (recipe_of(10**6, updates_per_batch=2), 800),
    ],
)
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_every_rank_gets_the_largest_micro_batch_once(
    recipe: Recipe, tokens: int, num_ranks: int
) -> None:
    samples = largest_micro_batches(recipe, num_ranks)
    parts = micro_batches(samples, recipe.training.micro_batch_tokens, num_ranks)
    sizes = [sum(len(s.prompt_ids) + len(s.token_ids) for s in part) for part in parts]
    assert [max(sizes[rank::num_ranks]) for rank in range(num_ranks)] == [tokens] * num_ranks
    assert sum(sizes) == tokens * num_ranks
    assert max(len(sample.token_ids) for sample in samples) == 80
    assert min(len(sample.prompt_ids) for sample in samples) >= 1


def test_a_token_budget_is_halved_down_to_a_sample_of_full_length() -> None:
    recipe, budgets = recipe_of(450), list[int]()
    while (tokens := smaller_token_budget(recipe)) is not None:
        budgets.append(tokens)
        recipe = with_token_budget(recipe, tokens)
    assert budgets == [225, 112, 100]
    assert with_token_budget(recipe, None) is recipe
    assert smaller_token_budget(recipe_of(10**6)) == 800  # of what a step may have
    assert smaller_token_budget(recipe_of(50)) is None


def test_ranks_that_share_samples_share_the_largest_micro_batch() -> None:
    recipe = recipe_of(150, sequence_parallel=2)
    assert longest_micro_batch(recipe) == 300
    assert longest_slice(recipe) == 150
    samples = largest_micro_batches(recipe, num_ranks=4)  # of two pairs
    assert sum(len(s.prompt_ids) + len(s.token_ids) for s in samples) == 2 * 300
    assert smaller_token_budget(recipe) == 75
    assert smaller_token_budget(recipe_of(50, sequence_parallel=2)) is None
