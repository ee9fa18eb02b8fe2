"""An entry of a table takes the settings that it names, and no other."""

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from protocol.recipe import Algorithm

from services.learner import algorithms
from services.learner.algorithms import UnknownName, pick
from services.learner.algorithms.advantages import ADVANTAGES
from services.learner.algorithms.gae import CRITIC_ADVANTAGES
from services.learner.algorithms.loss import AGGREGATIONS, CORRECTIONS, DIVERGENCES, OBJECTIVES

Table = Mapping[str, Callable[..., Any]]
TABLES: list[Table] = [
    ADVANTAGES,
    CRITIC_ADVANTAGES,
    OBJECTIVES,
    AGGREGATIONS,
    CORRECTIONS,
    DIVERGENCES,
]
CHANGED = {
    "lambda_process": 0.25,
    "ddof": 0,
    "denominator": "max",
    "gamma": 0.875,
}
SETTINGS = Algorithm().model_dump() | CHANGED | {"clip_low": 0.125, "max_tokens": 77}


def bind_settings(
    table: Table,
    name: str,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    bound = cast("Any", pick(table, name, settings))
    assert (bound.func, bound.args) == (table[name], ())
    return bound.keywords


@pytest.mark.parametrize("table", TABLES)
def test_every_entry_gets_all_that_it_names_from_a_recipe(table: Table) -> None:
    for name, formula in table.items():
        named = inspect.getfullargspec(inspect.unwrap(formula)).kwonlyargs
        assert bind_settings(table, name, SETTINGS) == {key: SETTINGS[key] for key in named}


def test_only_what_has_no_default_must_be_given() -> None:
    assert bind_settings(ADVANTAGES, "papo", {"ddof": 0}) == {"ddof": 0}
    assert bind_settings(DIVERGENCES, "k1", {"logprobs": 1}) == {}  # which is positional
    with pytest.raises(ValueError, match=r"clip_low, clip_high$"):
        pick(OBJECTIVES, "clip", {})
    with pytest.raises(UnknownName, match=r"k1, k2, k3.*WEIR_EXTENSIONS"):
        pick(DIVERGENCES, "k4", {})


@pytest.mark.parametrize(
    "module", ["", *(f".{name}" for _, name, _ in pkgutil.iter_modules(algorithms.__path__))]
)
def test_the_examples_in_the_docstrings_are_true(module: str) -> None:
    assert doctest.testmod(importlib.import_module(f"{algorithms.__name__}{module}")).failed == 0
