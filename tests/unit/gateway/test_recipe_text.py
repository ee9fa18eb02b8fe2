"""A recipe as a person pastes it, and what it asks for in numbers."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from services.gateway.page.recipe_text import RecipeTextError, read_recipe

DEMO = Path(__file__).parents[3] / "recipes/demo.toml"


def test_toml_and_json_of_one_recipe_are_the_same_recipe() -> None:
    text = DEMO.read_text()
    assert read_recipe(text) == read_recipe(json.dumps(tomllib.loads(text)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name = ", "text: not valid TOML"),
        ('{"name": ', "text: not valid JSON"),
        ('{"a":' * 100_000, "text: "),
        ("a." * 30_000 + "a = 1", "text: "),
        ("[training]\nstep = 1", "training.step: "),
        ("[training]\nsteps = 0", "training.steps: "),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, told: str) -> None:
    with pytest.raises(RecipeTextError) as refused:
        read_recipe(text)
    assert any(line.startswith(told) for line in str(refused.value).splitlines())
