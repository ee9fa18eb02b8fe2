"""The recipes that are shipped can be run as they are."""

from pathlib import Path

import pytest
from protocol.recipe import load_recipe
from protocol.tasks import read_tasks

from tests.architecture.project import ROOT, name_of

RECIPES = sorted((ROOT / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_a_recipe_parses_and_its_model_and_tasks_are_there(path: Path) -> None:
    recipe = load_recipe(path)
    assert (ROOT / recipe.model.path / "config.json").is_file()
    for tasks in filter(None, (recipe.tasks.train, recipe.tasks.held_out)):
        assert read_tasks(ROOT / tasks)


def test_the_two_demos_differ_only_in_name_and_algorithm() -> None:
    papo, grpo = (load_recipe(ROOT / "recipes" / f"demo{kind}.toml") for kind in ("", "-grpo"))
    same = {"name": papo.name, "algorithm": papo.algorithm}
    assert papo == grpo.model_copy(update=same)
    advantage = {"advantage": papo.algorithm.advantage}
    assert papo.algorithm == grpo.algorithm.model_copy(update=advantage)
    assert (papo.algorithm.advantage, grpo.algorithm.advantage) == ("papo", "grpo")


def test_the_index_of_recipes_is_complete() -> None:
    index = (ROOT / "recipes" / "README.md").read_text()
    assert [path.name for path in RECIPES if f"`{path.name}`" not in index] == []
