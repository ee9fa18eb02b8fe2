"""Whether a job fits into Redis at worst."""

from __future__ import annotations

from protocol.capacity import worst_case_bytes, worst_case_in_words
from protocol.recipe import Recipe

from services.gateway.errors import Problem


def check_memory(recipe: Recipe, num_held_out: int, limit: int | None) -> None:
    """Refuse a job that can fill more than half of Redis; ``limit`` is its maxmemory in bytes.

    Raises:
        Problem: 400 with the arithmetic.
    """
    needed = worst_case_bytes(recipe, num_held_out)
    if limit is None or needed <= limit // 2:
        return
    raise Problem(
        400,
        f"recipe.rollout: the job can hold {needed:,} bytes in Redis at once, more than half of "
        f"its maxmemory of {limit:,}: {worst_case_in_words(recipe, num_held_out)}. Lower one of "
        "them, or raise maxmemory",
        param="recipe.rollout",
        code="too_large",
    )
