"""Formulas: is every one that a recipe names in its table?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.recipe import Recipe

from services.learner.algorithms import UnknownName, pick
from services.learner.algorithms.advantages import ADVANTAGES, order_safe_lambda
from services.learner.algorithms.aggregation import AGGREGATIONS
from services.learner.algorithms.correction import CORRECTIONS
from services.learner.algorithms.divergence import DIVERGENCES
from services.learner.algorithms.gae import CRITIC_ADVANTAGES
from services.learner.algorithms.objectives import OBJECTIVES


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
    """What in a recipe can rank a correct response below a wrong one of its group.

    Of the advantages that weigh the process, ``papo_full_norm`` cannot: a wrong response counts
    there with a process score of 0, the lowest. ``process_only`` means to.
    """
    algorithm, size = recipe.algorithm, recipe.rollout.group_size
    safe = order_safe_lambda(size, ddof=algorithm.ddof)
    if algorithm.advantage == "papo" and algorithm.lambda_process > safe:
        return [
            f"algorithm.lambda_process = {algorithm.lambda_process} can rank a correct response "
            f"below a wrong one; up to {safe:.3f} it cannot, in groups of {size}"
        ]
    if algorithm.advantage == "multiplicative" and recipe.reward.values[0] > 0:
        return [
            f"reward.values pays {recipe.reward.values[0]} for a wrong answer, and algorithm."
            "advantage = 'multiplicative' less for a correct one with a low process score; let a "
            "wrong answer pay 0 or less"
        ]
    return []
