"""Formulas: does every formula exist that a recipe names?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.recipe import Recipe

from services.learner.algorithms import UnknownName, pick
from services.learner.algorithms.advantages import ADVANTAGES
from services.learner.algorithms.gae import CRITIC_ADVANTAGES
from services.learner.algorithms.loss import AGGREGATIONS, CORRECTIONS, DIVERGENCES, OBJECTIVES


def formula_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that formulas take by name; ``max_tokens`` is of a whole response."""
    return recipe.algorithm.model_dump() | {"max_tokens": recipe.longest_response}


def check_formulas(recipe: Recipe) -> None:
    """Check the names that the protocol leaves open for extensions, before any model is loaded.

    Raises:
        UnknownName: naming the field, the known names, and how to add one; or the settings that a
            formula needs and the recipe lacks.
    """
    settings = formula_settings(recipe)
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
