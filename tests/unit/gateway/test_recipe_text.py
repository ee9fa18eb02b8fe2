"""A recipe as a person pastes it."""

import json
import tomllib
from pathlib import Path

import pytest
from protocol.recipe import load_recipe

from services.gateway.api.page.recipe_text import RecipeTextError, read_recipe
from services.gateway.api.page.routes import example_recipes

DEMO = Path(__file__).parents[3] / "recipes/demo.toml"


def test_toml_and_json_of_one_recipe_are_the_same_recipe() -> None:
    text = DEMO.read_text()
    assert read_recipe(text) == read_recipe(json.dumps(tomllib.loads(text)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name = ", "text: not valid TOML"),
        ('{"name": ', "text: not valid JSON"),
        ('{"a":' * 100_000, "text: "),
        ("a." * 30_000 + "a = 1", "text: "),
        ("[training]\nstep = 1", "training.step: "),
        (f'extends = "{DEMO}"\nname = "mine"', "extends: works only in a file"),
        (json.dumps({"extends": str(DEMO)}), "extends: works only in a file"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(RecipeTextError) as refused:
        read_recipe(text)
    assert any(line.startswith(problem) for line in str(refused.value).splitlines())


def test_an_example_that_extends_others_comes_with_all_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "demo.toml").write_text(DEMO.read_text())
    (folder / "faster.toml").write_text('extends = "demo.toml"\ntraining.steps = 1\n')
    (folder / "part.toml").write_text("[training]\nsteps = 1\n")
    monkeypatch.chdir(tmp_path)
    demo, faster = example_recipes()["data"]
    assert demo == {"name": "demo.toml", "text": DEMO.read_text()}
    recipe = read_recipe(json.dumps(faster["recipe"]))
    assert recipe == load_recipe(folder / "faster.toml")
    assert recipe.training.steps == 1
