"""A name that a recipe may give is a function that some table holds, and the other way round."""

import inspect
from collections.abc import Callable
from typing import Any

from protocol import names

from services.grader.verifiers import VERIFIERS
from services.learner.algorithms.advantages import ADVANTAGES
from services.learner.algorithms.gae import CRITIC_ADVANTAGES
from services.learner.algorithms.loss import AGGREGATIONS, CORRECTIONS, DIVERGENCES, OBJECTIVES


def test_a_recipe_may_name_exactly_what_the_tables_hold() -> None:
    for allowed, table in (
        (names.GROUP_ADVANTAGES, ADVANTAGES),
        (names.CRITIC_ADVANTAGES, CRITIC_ADVANTAGES),
        (names.OBJECTIVES, OBJECTIVES),
        (names.AGGREGATIONS, AGGREGATIONS),
        (names.CORRECTIONS, CORRECTIONS),
        (names.DIVERGENCES, DIVERGENCES),
        (names.VERIFIERS, VERIFIERS),
    ):
        assert sorted(allowed) == sorted(table)


def keywords(entry: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(entry).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def test_a_formula_takes_what_its_signature_names_and_not_all_of_its_kind_do() -> None:
    for formulas, table in (
        (names.GROUP_ADVANTAGES | names.CRITIC_ADVANTAGES, ADVANTAGES | CRITIC_ADVANTAGES),
        (names.OBJECTIVES, OBJECTIVES),
        (names.CORRECTIONS, CORRECTIONS),
    ):
        of_all = set.intersection(*map(keywords, table.values()))
        taken = {name: keywords(entry) - of_all for name, entry in table.items()}
        assert {name: set(formula.takes) for name, formula in formulas.items()} == taken
