"""How much of Redis a job can fill at worst. Pure."""

from __future__ import annotations

from protocol.recipe import Recipe

from services.gateway.errors import Problem

# token id (4) + log-prob (4) + the token's text in a JSON header (8)
BYTES_PER_TOKEN = 16


def worst_case_bytes(recipe: Recipe, num_held_out: int) -> int:
    """Bytes of all groups that may be under way at once, every response as long as allowed."""
    responses = recipe.groups_in_flight * recipe.rollout.group_size
    return (
        (responses + _evaluated(recipe, num_held_out))
        * recipe.model.max_context
        * (BYTES_PER_TOKEN)
    )


def check_memory(recipe: Recipe, num_held_out: int, limit: int | None) -> None:
    """Refuse a job that can fill more than half of Redis; ``limit`` is its maxmemory in bytes.

    Raises:
        Problem: 400 with the arithmetic.
    """
    needed = worst_case_bytes(recipe, num_held_out)
    if limit is None or needed <= limit // 2:
        return
    training, group_size = recipe.training, recipe.rollout.group_size
    raise Problem(
        400,
        f"recipe.rollout: the job can hold {needed:,} bytes in Redis at once, more than half of "
        f"its maxmemory of {limit:,}: ((max_staleness {training.max_staleness} + 1) x "
        f"groups_per_step {training.groups_per_step} x group_size {group_size} + "
        f"{_evaluated(recipe, num_held_out)} evaluation responses) x model.max_context "
        f"{recipe.model.max_context} tokens x {BYTES_PER_TOKEN} bytes. Lower one of them, or raise "
        "maxmemory",
        param="recipe.rollout",
        code="too_large",
    )


def _evaluated(recipe: Recipe, num_held_out: int) -> int:
    """Responses of one evaluation."""
    if recipe.evaluation is None:
        return 0
    return min(num_held_out, recipe.evaluation.tasks or num_held_out) * recipe.evaluation.samples
