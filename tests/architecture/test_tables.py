"""A name that a recipe may give is a function that some table holds, and the other way round."""

from collections.abc import Mapping
from typing import get_args

import pytest
from protocol import recipe

from services.grader.verifiers import VERIFIERS
from services.learner.algorithms.advantages import ADVANTAGES
from services.learner.algorithms.aggregation import AGGREGATIONS
from services.learner.algorithms.objectives import OBJECTIVES


@pytest.mark.parametrize(
    ("names", "table"),
    [
        pytest.param(recipe.AdvantageName, ADVANTAGES, id="advantages"),
        pytest.param(recipe.ObjectiveName, OBJECTIVES, id="objectives"),
        pytest.param(recipe.AggregationName, AGGREGATIONS, id="aggregations"),
        pytest.param(recipe.VerifierName, VERIFIERS, id="verifiers"),
    ],
)
def test_a_recipe_may_name_exactly_what_the_table_holds(
    names: object, table: Mapping[str, object]
) -> None:
    assert set(get_args(names)) == set(table)
