"""The largest number of responses in flight, and their size in Redis. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.recipe import Evaluation, Recipe


def bytes_per_token(recipe: Recipe) -> int:
    """Return the bytes of an id (4), a log-prob (4) and the text in a JSON header (8).

    Episodes also have a policy mask (1) and a conversation (8).
    """
    return 16 if recipe.environment is None else 25


def responses_in_flight(recipe: Recipe) -> int:
    """Return the largest number of training responses in flight."""
    return recipe.groups_in_flight * recipe.rollout.group_size


def count_tasks(evaluation: Evaluation, num_tasks: int) -> int:
    return min(num_tasks, evaluation.tasks or num_tasks)


def evaluation_responses(recipe: Recipe, held_out: Mapping[str, int]) -> int:
    """Count the responses of evaluations; ``held_out`` has the tasks of each, by name."""
    return sum(
        count_tasks(evaluation, held_out.get(name, 0)) * evaluation.samples
        for name, evaluation in recipe.evaluations.items()
    )


def worst_case_bytes(recipe: Recipe, held_out: Mapping[str, int]) -> int:
    """Return the bytes in Redis of all responses in flight at their largest length."""
    responses = evaluation_responses(recipe, held_out)
    if not recipe.only_evaluates:
        responses += responses_in_flight(recipe)
    return responses * recipe.model.max_context * bytes_per_token(recipe)


def worst_case_in_words(recipe: Recipe, held_out: Mapping[str, int]) -> str:
    """Explain `worst_case_bytes` with the names of the settings."""
    staleness = recipe.training.max_staleness
    per_step = recipe.training.groups_per_step
    groups = f"(max_staleness {staleness} + 1) x groups_per_step {per_step}"
    if recipe.training.dynamic_sampling:
        refill = recipe.groups_in_flight / ((staleness + 1) * per_step)
        groups += f" x {refill:.4g} for dynamic_sampling"
    responses = f"{evaluation_responses(recipe, held_out)} evaluation responses"
    if not recipe.only_evaluates:
        responses = f"({groups} x group_size {recipe.rollout.group_size} + {responses})"
    return (
        f"{responses} x model.max_context "
        f"{recipe.model.max_context} tokens x {bytes_per_token(recipe)} bytes"
    )
