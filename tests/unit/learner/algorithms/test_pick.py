"""An entry of a table takes the settings that it names, and no other."""

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import pytest
from protocol.recipe import Algorithm

from services.learner import algorithms
from services.learner.algorithms import UnknownName, pick
from services.learner.algorithms.advantages import ADVANTAGES
from services.learner.algorithms.aggregation import AGGREGATIONS
from services.learner.algorithms.correction import CORRECTIONS
from services.learner.algorithms.divergence import DIVERGENCES
from services.learner.algorithms.gae import CRITIC_ADVANTAGES
from services.learner.algorithms.objectives import OBJECTIVES

TABLES: list[Mapping[str, Callable[..., Any]]] = [
    ADVANTAGES,
    CRITIC_ADVANTAGES,
    OBJECTIVES,
    AGGREGATIONS,
    CORRECTIONS,
    DIVERGENCES,
]
CHANGED = {"lambda_process": 0.25, "ddof": 0, "denominator": "max", "gamma": 0.875}
SETTINGS = Algorithm().model_dump() | CHANGED | {"clip_low": 0.125, "max_tokens": 77}


@pytest.mark.parametrize(
    ("table", "name"), [pytest.param(t, name, id=name) for t in TABLES for name in t]
)
def test_every_entry_gets_all_that_it_names_from_a_recipe(
    table: Mapping[str, Callable[..., Any]], name: str
) -> None:
    bound = cast("partial[Any]", pick(table, name, SETTINGS))
    named = inspect.getfullargspec(inspect.unwrap(table[name])).kwonlyargs
    assert bound.func is table[name]
    assert bound.args == ()
    assert bound.keywords == {key: SETTINGS[key] for key in named}


def test_an_unknown_entry_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownName) as refused:
        pick(DIVERGENCES, "k4", {})
    assert str(refused.value) == (
        "'k4' is none of k1, k2, k3; if a module of your own adds it, name that module in the "
        "learner's variable WEIR_EXTENSIONS"
    )


def test_what_a_recipe_cannot_know_must_be_given() -> None:
    with pytest.raises(ValueError, match=r"^fixed_length needs the settings max_tokens$"):
        pick(AGGREGATIONS, "fixed_length", Algorithm().model_dump())
    with pytest.raises(ValueError, match=r"^clip needs the settings clip_low, clip_high$"):
        pick(OBJECTIVES, "clip", {})


def test_a_setting_with_a_default_need_not_be_given() -> None:
    assert cast("partial[Any]", pick(ADVANTAGES, "papo", {"ddof": 0})).keywords == {"ddof": 0}


def test_a_positional_parameter_is_never_bound() -> None:
    bound = cast("partial[Any]", pick(DIVERGENCES, "k1", {"logprobs": 1}))
    assert bound.keywords == {}


@pytest.mark.parametrize(
    "module", [name for _, name, _ in pkgutil.iter_modules(algorithms.__path__)]
)
def test_the_examples_in_the_docstrings_are_true(module: str) -> None:
    found = importlib.import_module(f"{algorithms.__name__}.{module}")
    assert doctest.testmod(found).failed == 0


def test_the_example_of_pick_is_true() -> None:
    assert doctest.testmod(algorithms).failed == 0
