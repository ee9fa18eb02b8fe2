"""Formulas: is every one there that a recipe names, and can it misrank responses?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from protocol.recipe import Recipe

from services.learner.algorithms import UnknownName, pick
from services.learner.algorithms.advantages import ADVANTAGES
from services.learner.algorithms.aggregation import AGGREGATIONS
from services.learner.algorithms.correction import CORRECTIONS
from services.learner.algorithms.divergence import DIVERGENCES
from services.learner.algorithms.gae import CRITIC_ADVANTAGES
from services.learner.algorithms.objectives import OBJECTIVES
from services.learner.algorithms.order_safety import (
    order_safe_lambda,
    order_safe_lambda_full_norm,
)


def check_formulas(recipe: Recipe) -> None:
    """Check the names that the protocol leaves open for extensions, before any model is loaded.

    Raises:
        UnknownName: naming the field, what there is, and how to add to it; or the settings that a
            formula needs and that the recipe does not have.
    """
    settings = recipe.algorithm.model_dump() | {"max_tokens": recipe.rollout.sampling.max_tokens}
    tables: dict[str, Mapping[str, Any]] = {
        "advantage": ADVANTAGES if recipe.critic is None else CRITIC_ADVANTAGES,
        "objective": OBJECTIVES,
        "aggregation": AGGREGATIONS,
        "correction": CORRECTIONS,
        "divergence": DIVERGENCES,
    }
    for field, table in tables.items():
        try:
            pick(table, getattr(recipe.algorithm, field), settings)
        except ValueError as error:
            raise UnknownName(f"algorithm.{field}: {error}") from error


def order_warnings(recipe: Recipe) -> list[str]:
    """What in a recipe can rank a correct response below a wrong one, or worse reasoning higher.

    This is about verifiers that grade an outcome 0 or 1, and about advantages without an overlong
    punishment, which can put a response below any other. ``process_only`` ranks by the process as
    it is meant to; advantages of extensions and critics are not judged.
    """
    if recipe.algorithm.advantage == "multiplicative":
        return list(_of_a_product(recipe))
    return list(_of_a_weight(recipe))


def _of_a_weight(recipe: Recipe) -> Iterator[str]:
    weight, safe = recipe.algorithm.lambda_process, _safe_weight(recipe)
    if weight > safe:
        size = recipe.rollout.group_size
        yield (
            f"algorithm.lambda_process = {weight} can rank a correct response below a wrong one; "
            f"up to {safe:.3f} it cannot, in groups of {size}"
        )


def _safe_weight(recipe: Recipe) -> float:
    """The largest weight of the process that keeps correct responses above wrong ones.

    Where only correct ones are judged, ``papo_full_norm`` keeps the order with any: a wrong
    response counts there with a process score of 0, the lowest.
    """
    algorithm, size = recipe.algorithm, recipe.rollout.group_size
    if algorithm.advantage == "papo":
        return order_safe_lambda(size, ddof=algorithm.ddof)
    if algorithm.advantage == "papo_full_norm" and recipe.reward.process_for == "all":
        return order_safe_lambda_full_norm(size)
    return float("inf")


def _of_a_product(recipe: Recipe) -> Iterator[str]:
    """A response pays its outcome's value times its process score; a wrong one not judged, 0."""
    wrong, right = recipe.reward.values
    judges_all = recipe.reward.process_for == "all"
    if right < 0:
        yield (
            f"reward.values pays {right} for a right answer: with algorithm.advantage = "
            "'multiplicative' the better its process, the less, and less than a wrong one can get; "
            "let a right answer pay more than 0"
        )
    elif judges_all and wrong > 0:
        yield (
            f"reward.values pays {wrong} for a wrong answer, and algorithm.advantage = "
            "'multiplicative' less for a correct one with a low process score; let a wrong answer "
            "pay 0"
        )
    elif judges_all and wrong < 0:
        yield (
            f"reward.values pays {wrong} for a wrong answer: with algorithm.advantage = "
            "'multiplicative' the better its process, the less; let a wrong answer pay 0, or judge "
            "only correct ones: reward.process_for = 'correct'"
        )
