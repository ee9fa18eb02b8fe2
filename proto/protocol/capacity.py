"""How much of a job can be under way at once, and how much of Redis that fills. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.recipe import Evaluation, Recipe


def bytes_per_token(recipe: Recipe) -> int:
    """Id (4), log-prob (4), text in a JSON header (8).

    Of an episode also whose it is (1), and its conversation (8).
    """
    return 16 if recipe.environment is None else 25


def responses_in_flight(recipe: Recipe) -> int:
    """At most so many training responses are asked for and not yet trained."""
    return recipe.groups_in_flight * recipe.rollout.group_size


def count_tasks(evaluation: Evaluation, in_file: int) -> int:
    return min(in_file, evaluation.tasks or in_file)


def evaluation_responses(recipe: Recipe, held_out: Mapping[str, int]) -> int:
    """Responses of the evaluations under way at once; ``held_out``: tasks of each, by its name."""
    return sum(
        count_tasks(evaluation, held_out.get(name, 0)) * evaluation.samples
        for name, evaluation in recipe.evaluations.items()
    )


def worst_case_bytes(recipe: Recipe, held_out: Mapping[str, int]) -> int:
    """Bytes in Redis of all that may be under way at once, every response as long as allowed."""
    responses = responses_in_flight(recipe) + evaluation_responses(recipe, held_out)
    return responses * recipe.model.max_context * bytes_per_token(recipe)


def worst_case_in_words(recipe: Recipe, held_out: Mapping[str, int]) -> str:
    """The arithmetic of `worst_case_bytes`, with the names of the settings."""
    staleness = recipe.training.max_staleness
    per_step = recipe.training.groups_per_step
    groups = f"(max_staleness {staleness} + 1) x groups_per_step {per_step}"
    if recipe.training.dynamic_sampling:
        refill = recipe.groups_in_flight / ((staleness + 1) * per_step)
        groups += f" x {refill:.4g} for dynamic_sampling"
    return (
        f"({groups} x group_size {recipe.rollout.group_size} + "
        f"{evaluation_responses(recipe, held_out)} evaluation responses) x model.max_context "
        f"{recipe.model.max_context} tokens x {bytes_per_token(recipe)} bytes"
    )
