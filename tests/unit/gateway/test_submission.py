"""How a REST body becomes a recipe."""

from __future__ import annotations

from typing import Any

import pytest
from protocol.recipe import Recipe
from pydantic import ValidationError

from services.gateway.errors import Problem, explain_body
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


@pytest.mark.parametrize(
    ("epochs", "batch", "tasks", "steps"), [(1, 10, 100, 10), (3, 7, 100, 43), (1, 200, 3, 1)]
)
def test_epochs_become_as_many_steps_as_ask_for_every_task(
    epochs: int, batch: int, tasks: int, steps: int
) -> None:
    method = hyperparameters(n_epochs=epochs, batch_size=batch)
    _, recipe = a_recipe_of(TABLES, num_tasks=tasks, method=method)
    assert (recipe.training.steps, recipe.training.groups_per_step) == (steps, batch)


def test_epochs_count_with_the_recipes_own_batch() -> None:
    tables = TABLES | {"training": {"groups_per_step": 25}}
    _, recipe = a_recipe_of(tables, method=hyperparameters(n_epochs=1))
    assert recipe.training.steps == 4


def test_auto_leaves_the_recipes_own_value() -> None:
    tables = TABLES | {"training": {"steps": 9, "groups_per_step": 2}}
    _, recipe = a_recipe_of(tables, method=hyperparameters(n_epochs="auto", batch_size="auto"))
    assert (recipe.training.steps, recipe.training.groups_per_step) == (9, 2)


def test_the_same_value_twice_is_no_contradiction() -> None:
    tables = TABLES | {"training": {"steps": 1, "seed": 5}}
    assert a_recipe_of(tables, seed=5)[1].training.seed == 5
    with pytest.raises(Problem, match=r"seed: asks for recipe.training.seed = 6, but .* 5"):
        a_recipe_of(tables, seed=6)


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


def test_an_unsupported_setting_names_its_place_in_the_recipe() -> None:
    with pytest.raises(ValidationError) as caught:
        a_recipe_of(TABLES, method=hyperparameters(reasoning_effort="high"))
    assert explain_body(caught.value) == [
        "method.reinforcement.hyperparameters.reasoning_effort: not supported; use a system "
        "message in the tasks, or recipe.model.prompt_template, instead"
    ]
    a_recipe_of(TABLES, method=hyperparameters(reasoning_effort="default"))


def test_integrations_say_which_command_does_it() -> None:
    wandb = [{"type": "wandb", "wandb": {"project": "maths"}}]
    with pytest.raises(ValidationError, match="weir track JOB --to wandb:PROJECT"):
        a_recipe_of(TABLES, integrations=wandb)
    for none in (None, []):
        a_recipe_of(TABLES, integrations=none)


def test_hyperparameters_in_two_places_are_refused() -> None:
    with pytest.raises(ValidationError, match="hyperparameters alone"):
        a_recipe_of(TABLES, method=hyperparameters(n_epochs=1), hyperparameters={"batch_size": 1})


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
