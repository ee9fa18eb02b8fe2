"""A name that a recipe may give is a function that some table holds, and the other way round."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from protocol import names
from protocol.recipe import USED_BY

from services.grader.verifiers import VERIFIERS
from services.learner.algorithms.advantages import ADVANTAGES
from services.learner.algorithms.aggregation import AGGREGATIONS
from services.learner.algorithms.correction import CORRECTIONS
from services.learner.algorithms.divergence import DIVERGENCES
from services.learner.algorithms.gae import CRITIC_ADVANTAGES
from services.learner.algorithms.objectives import OBJECTIVES


@pytest.mark.parametrize(
    ("allowed", "table"),
    [
        pytest.param(names.GROUP_ADVANTAGES, ADVANTAGES, id="advantages of groups"),
        pytest.param(names.CRITIC_ADVANTAGES, CRITIC_ADVANTAGES, id="advantages of tokens"),
        pytest.param(names.OBJECTIVES, OBJECTIVES, id="objectives"),
        pytest.param(names.AGGREGATIONS, AGGREGATIONS, id="aggregations"),
        pytest.param(names.CORRECTIONS, CORRECTIONS, id="corrections"),
        pytest.param(names.DIVERGENCES, DIVERGENCES, id="divergences"),
        pytest.param(names.VERIFIERS, VERIFIERS, id="verifiers"),
    ],
)
def test_a_recipe_may_name_exactly_what_the_table_holds(
    allowed: tuple[str, ...], table: Mapping[str, object]
) -> None:
    assert sorted(allowed) == sorted(table)


def takers_of(table: Mapping[str, Callable[..., Any]], setting: str) -> tuple[str, ...]:
    return tuple(
        name for name, entry in table.items() if setting in inspect.signature(entry).parameters
    )


def test_a_setting_that_some_formulas_do_not_take_is_refused_with_those() -> None:
    parts = {
        "advantage": {**ADVANTAGES, **CRITIC_ADVANTAGES},
        "objective": OBJECTIVES,
        "correction": CORRECTIONS,
    }
    settings = {
        (part, parameter.name)
        for part, table in parts.items()
        for entry in table.values()
        for parameter in inspect.signature(entry).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    expected = {
        setting: (part, takers)
        for part, setting in settings
        if len(takers := takers_of(parts[part], setting)) < len(parts[part])
    }
    assert expected == USED_BY
