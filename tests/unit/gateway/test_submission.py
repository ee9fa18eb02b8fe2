"""How a REST body becomes a recipe."""

from __future__ import annotations

import json
from typing import Any

import pytest
from protocol.recipe import Recipe
from protocol.tasks import MAX_DEPTH
from pydantic import ValidationError

from services.gateway.errors import Problem, explain_body
from services.gateway.openai.body import MAX_VALUES, unusable
from services.gateway.openai.submission import JobRequest, build_recipe, with_critic_folder

TABLES: dict[str, Any] = {
    "model": {"max_context": 64},
    "rollout": {"sampling": {"max_tokens": 16}},
    "reward": {"process": "equation_steps"},
}


def a_recipe_of(
    tables: dict[str, Any], num_tasks: int = 100, **settings: Any
) -> tuple[JobRequest, Recipe]:
    body = {"model": "tiny", "training_file": "file-1", "recipe": tables} | settings
    request = JobRequest.model_validate(body)
    return request, build_recipe(request, "/models/tiny", num_tasks)


def hyperparameters(**values: Any) -> dict[str, Any]:
    return {"type": "reinforcement", "reinforcement": {"hyperparameters": values}}


def test_the_body_is_kept_as_it_came() -> None:
    request, _ = a_recipe_of(TABLES | {"training": {"steps": 1}}, seed=3)
    assert request.as_sent() == {
        "model": "tiny",
        "training_file": "file-1",
        "recipe": TABLES | {"training": {"steps": 1}},
        "seed": 3,
    }


def test_fields_take_the_places_of_the_recipes_paths() -> None:
    tables = TABLES | {
        "model": {"max_context": 64, "path": "tiny"},
        "tasks": {"train": "train.jsonl"},
        "training": {"steps": 1},
    }
    _, recipe = a_recipe_of(tables, validation_file="file-2")
    assert recipe.model.path == "/models/tiny"
    assert (recipe.tasks.train, recipe.tasks.held_out) == ("file-1", "file-2")


def test_auto_leaves_the_recipes_own_value() -> None:
    tables = TABLES | {"training": {"steps": 9, "groups_per_step": 2}}
    _, recipe = a_recipe_of(tables, method=hyperparameters(n_epochs="auto", batch_size="auto"))
    assert (recipe.training.steps, recipe.training.groups_per_step) == (9, 2)


def test_a_recipe_without_a_name_is_called_like_the_suffix() -> None:
    tables = TABLES | {"training": {"steps": 1}}
    assert a_recipe_of(tables, suffix="mine")[1].name == "mine"
    assert a_recipe_of(tables)[1].name == "fine-tune"


def test_every_problem_is_told_at_once_and_the_first_one_is_the_param() -> None:
    with pytest.raises(Problem) as caught:
        a_recipe_of(TABLES | {"training": {"steps": 0, "seed": "x"}})
    assert caught.value.param == "recipe.training.steps"
    lines = caught.value.detail.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "recipe.training.steps",
        "recipe.training.seed",
    ]


def test_the_critics_path_is_resolved_and_left_alone_where_there_is_none() -> None:
    tables = TABLES | {"training": {"steps": 1}}
    with_critic = tables | {"algorithm": {"advantage": "gae"}, "critic": {"path": "value"}}
    _, recipe = a_recipe_of(with_critic)
    resolved = with_critic_folder(recipe, lambda path: f"/models/{path}")
    assert resolved.critic is not None
    assert resolved.critic.path == "/models/value"
    for others in (tables, with_critic | {"critic": {}}):
        _, recipe = a_recipe_of(others)
        assert with_critic_folder(recipe, lambda path: f"/models/{path}") == recipe


HYPER = "method.reinforcement.hyperparameters"
STEPS = {"training": {"steps": 1}}
MULTI = {"type": "multi", "graders": {"a": {"type": "math_answer"}}, "calculate_output": "a % 2"}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown table": ({"recipe": {"trainning": {}}}, "recipe.trainning"),
    "a table that is none": ({"recipe": {"model": 3}}, "recipe.model"),
    "another model": ({"recipe": {"model": {"path": "other"}}}, "recipe.model.path"),
    "held-out tasks, no file": ({"recipe": {"tasks": {"held_out": "x"}}}, "validation_file"),
    "another seed": ({"seed": 5, "recipe": {"training": {"seed": 6}}}, "seed"),
    "too much metadata": ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    "no epochs": ({"method": hyperparameters(n_epochs=0)}, f"{HYPER}.n_epochs"),
    "a hyperparameter that means nothing here": (
        {"method": hyperparameters(reasoning_effort="high")},
        f"{HYPER}.reasoning_effort",
    ),
    "a hyperparameter against the recipe": (
        {
            "method": hyperparameters(batch_size=5),
            "recipe": {"training": {"groups_per_step": 4, "steps": 1}},
        },
        f"{HYPER}.batch_size",
    ),
    "hyperparameters in two places": (
        {"method": hyperparameters(n_epochs=1), "hyperparameters": {"batch_size": 1}},
        "hyperparameters",
    ),
    "a grader that fits no recipe": (
        {"method": {"type": "reinforcement", "reinforcement": {"grader": MULTI}}},
        "method.reinforcement.grader.calculate_output",
    ),
    "a grader beside an outcome": (
        {
            "method": {
                "type": "reinforcement",
                "reinforcement": {"grader": {"type": "math_answer"}},
            },
            "recipe": {"reward": {"outcome": "math_answer"}},
        },
        "method.reinforcement.grader",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_makes_no_recipe_is_refused_by_its_field(case: str) -> None:
    changes, field = BAD[case]
    tables = TABLES | STEPS | changes.get("recipe", {})
    settings = {name: value for name, value in changes.items() if name != "recipe"}
    with pytest.raises((Problem, ValidationError)) as caught:
        a_recipe_of(tables, **settings)
    error = caught.value
    lines = [error.detail] if isinstance(error, Problem) else explain_body(error)
    assert lines[0].startswith(f"{field}: "), lines


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        (json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH), True),
        (json.loads("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)), False),
        ({"a": [1] * (MAX_VALUES - 1)}, True),
        ({"a": [1] * MAX_VALUES}, False),
        ([{"a": "[," * MAX_VALUES}], True),
    ],
)
def test_a_body_nests_no_deeper_and_holds_no_more_values_than_its_readers_take(
    body: Any, fits: bool
) -> None:
    assert (unusable(body) == []) is fits
