"""What the page about boxes says is what a plan says."""

from __future__ import annotations

from pathlib import Path

import pytest
from protocol.recipe import load_recipe

from deploy.compose import REDIS_MAXMEMORY
from services.learner.planning.machine import Here, Options, machine_of
from services.learner.planning.plan import make_plan
from services.learner.planning.sizing import Option, best
from services.learner.planning.warnings import warnings
from tests.architecture.project import ROOT, name_of

RECIPES = sorted((ROOT / "recipes").glob("*/*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_every_published_recipe_fits_on_the_machine_that_it_names(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.machine is not None
    redis = {"WEIR_REDIS_MAXMEMORY": REDIS_MAXMEMORY, "WEIR_MODEL_HUB": "on"}
    plan = make_plan(recipe, machine_of(Options(), recipe.machine, redis, Here()))
    assert plan.works
    assert plan.seconds is not None
    assert [text for text in warnings(plan) if not text.startswith("tasks.")] == []


def test_what_fits_with_one_setting_names_it_and_what_does_not_the_gib_that_are_missing() -> None:
    names = ("papo/qwen2.5-7b", "dapo/qwen2.5-32b")
    seven, large = (load_recipe(ROOT / f"recipes/{name}.toml") for name in names)
    option = best(seven, 2, 80)
    assert isinstance(option, Option)
    assert option.plan.works
    assert list(option.settings) == ["optimizer.offload"]
    assert str(option).startswith("1 + 1x1: ")
    assert best(large, 1, 80) == "engine 66.6 of 48 GiB"
    # An engine of 32 B needs four GPUs of 24 GiB, so that four are left to learn.
    assert best(large, 8, 24) == "learner 46.0 of 21.6 GiB"
