"""A REST body becomes a recipe, with defaults for missing fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from protocol.recipe import Recipe
from protocol.tasks import MAX_DEPTH
from pydantic import ValidationError

from services.chassis.deployment import DeploymentError
from services.gateway.api.openai.body import MAX_VALUES, find_problems
from services.gateway.api.openai.submission import JobRequest, build_recipe
from services.gateway.core.jobs.submission import load_defaults
from services.gateway.core.models.folders import UNKNOWN_FACTS, ModelFacts
from services.gateway.errors import Problem, explain_body

EXACT = {
    "type": "string_check",
    "name": "same",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}


def the_recipe(
    tables: dict[str, Any] | None = None,
    *,
    num_tasks: int = 100,
    facts: ModelFacts = UNKNOWN_FACTS,
    defaults: dict[str, Any] | None = None,
    body: dict[str, Any] | None = None,
    grader: Any = EXACT,
    **hyperparameters: Any,
) -> Recipe:
    settings = {"grader": grader, "hyperparameters": hyperparameters}
    plain = {
        "model": "tiny",
        "training_file": "file-1",
        "recipe": tables or {},
        "method": {"type": "reinforcement", "reinforcement": settings},
    }
    request = JobRequest.model_validate(plain | (body or {}))
    return build_recipe(request, "/models/tiny", num_tasks, facts=facts, defaults=defaults or {})


def test_the_body_is_kept_as_it_came() -> None:
    body = {"model": "tiny", "training_file": "file-1", "recipe": {"model": {}}, "seed": 3}
    assert JobRequest.model_validate(body).to_submission("tiny", {}).request == body


def test_a_plain_body_is_a_whole_recipe() -> None:
    recipe = the_recipe()
    assert [check.verifier for check in recipe.reward.outcome] == ["string_check"]
    assert recipe.name == "fine-tune"
    assert recipe.algorithm.advantage == "grpo"
    assert recipe.model.max_context == 4096
    assert recipe.rollout.sampling.max_tokens == 2048
    assert recipe.model.prompt_template is None
    assert recipe.evaluation is None
    assert the_recipe(body={"suffix": "mine"}).name == "mine"
    recipe = the_recipe({"reward": {"process": "equation_steps"}})
    assert [check.verifier for check in recipe.reward.outcome] == ["string_check"]
    assert [check.verifier for check in recipe.reward.process] == ["equation_steps"]


def test_fields_take_the_places_of_the_recipes_paths() -> None:
    tables = {"model": {"path": "tiny"}, "tasks": {"train": "train.jsonl"}}
    recipe = the_recipe(tables, body={"validation_file": "file-2"})
    assert recipe.model.path == "/models/tiny"
    assert recipe.tasks.train == "file-1"
    assert recipe.tasks.held_out == "file-2"


@pytest.mark.parametrize(
    ("num_tasks", "batch", "steps"), [(8, 8, 10), (100, 16, 63), (250, 8, 125)]
)
def test_auto_sees_all_tasks_and_makes_a_hundred_steps_if_ten_epochs_suffice(
    num_tasks: int, batch: int, steps: int
) -> None:
    recipe = the_recipe(num_tasks=num_tasks, batch_size=batch, n_epochs="auto")
    assert recipe.training.steps == steps
    recipe = the_recipe({"training": {"steps": 9}}, batch_size="auto", n_epochs="auto")
    assert recipe.training.steps == 9
    assert recipe.training.groups_per_step == 16


def test_a_model_without_a_chat_template_reads_the_prompt_as_it_is() -> None:
    recipe = the_recipe(facts=ModelFacts(has_chat_template=False))
    assert recipe.model.prompt_template == "{prompt}"
    assert the_recipe(facts=ModelFacts(has_chat_template=True)).model.prompt_template is None


def test_the_request_wins_over_the_deployment_and_that_over_defaults() -> None:
    defaults = {
        "model": {"max_context": 1000, "dtype": "float32"},
        "rollout": {"group_size": 32, "sampling": {"max_tokens": 100}},
        "training": {"steps": 7, "groups_per_step": 3},
    }
    before = json.dumps(defaults)
    sent = {"rollout": {"sampling": {"max_tokens": 200}}, "training": {"steps": 9}}
    recipe = the_recipe(sent, defaults=defaults)
    assert recipe.model.max_context == 1000
    assert recipe.model.dtype == "float32"
    assert recipe.rollout.group_size == 32
    assert recipe.rollout.sampling.max_tokens == 200
    assert recipe.training.steps == 9
    assert recipe.training.groups_per_step == 3
    assert the_recipe(defaults=defaults).training.steps == 7
    assert the_recipe(defaults=defaults, n_epochs=1).training.steps == 34  # of 3 tasks each
    assert the_recipe(defaults=defaults, batch_size=50, n_epochs=1).training.steps == 2
    assert json.dumps(defaults) == before


def test_an_algorithm_that_is_sent_takes_nothing_from_that_of_the_deployment() -> None:
    defaults = {"algorithm": {"advantage": "gae", "lambda_actor": 0.9}, "critic": {}}
    assert the_recipe(defaults=defaults).critic is not None
    recipe = the_recipe({"algorithm": {"advantage": "rloo"}}, defaults=defaults)
    assert recipe.algorithm.advantage == "rloo"
    assert recipe.critic is None


def test_held_out_tasks_are_evaluated_every_tenth_of_the_steps_unless_the_body_says_how() -> None:
    held_out = {"validation_file": "file-2"}
    recipe = the_recipe(body=held_out)
    assert recipe.evaluation is not None
    assert recipe.training.steps == 63
    assert recipe.evaluation.every == 7
    recipe = the_recipe(body=held_out, eval_interval=3, eval_samples=2)
    assert recipe.evaluation is not None
    assert recipe.evaluation.every == 3
    assert recipe.evaluation.samples == 2
    assert the_recipe(defaults={"evaluation": {"samples": 9}}).evaluation is None


def test_multipliers_multiply_what_the_recipe_says() -> None:
    recipe = the_recipe(learning_rate_multiplier=2, compute_multiplier=1.5)
    assert recipe.optimizer.learning_rate == pytest.approx(2e-6)
    assert recipe.rollout.group_size == 12
    tables = {"optimizer": {"learning_rate": 1e-4}, "rollout": {"group_size": 4}}
    recipe = the_recipe(tables, learning_rate_multiplier=0.5, compute_multiplier=0.01)
    assert recipe.optimizer.learning_rate == pytest.approx(5e-5)
    assert recipe.rollout.group_size == 2  # a group of one teaches nothing


HYPER = "method.reinforcement.hyperparameters"
MULTI = {"type": "multi", "graders": {"a": {"type": "math_answer"}}, "calculate_output": "a % 2"}
TWO_PLACES = {"grader": None, "n_epochs": 1, "body": {"hyperparameters": {"batch_size": 1}}}
BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "two problems": (
        {"tables": {"training": {"steps": 0, "seed": "x"}}},
        ["recipe.training.steps", "recipe.training.seed"],
    ),
    "an unknown table": ({"tables": {"trainning": {}}}, ["recipe.trainning"]),
    "a parent, which is a file": ({"tables": {"extends": "/a.toml"}}, ["recipe.extends"]),
    "an unknown file": ({"tables": {"tasks": {"tran": "x"}}}, ["recipe.tasks.tran"]),
    "a table that is none": ({"tables": {"model": 3}}, ["recipe.model"]),
    "another model": ({"tables": {"model": {"path": "other"}}}, ["recipe.model.path"]),
    "held-out tasks, no file": ({"tables": {"tasks": {"held_out": "x"}}}, ["validation_file"]),
    "an evaluation, no file": ({"eval_interval": 3}, [f"{HYPER}.eval_interval"]),
    "another seed": ({"body": {"seed": 5}, "tables": {"training": {"seed": 6}}}, ["seed"]),
    "too much metadata": ({"body": {"metadata": {str(n): "x" for n in range(17)}}}, ["metadata"]),
    "no epochs": ({"n_epochs": 0}, [f"{HYPER}.n_epochs"]),
    "no learning rate": ({"learning_rate_multiplier": 5e-324}, ["recipe.optimizer.learning_rate"]),
    "an effort": ({"reasoning_effort": "high"}, [f"{HYPER}.reasoning_effort"]),
    "a hyperparameter against the recipe": (
        {"batch_size": 5, "tables": {"training": {"groups_per_step": 4}}},
        [f"{HYPER}.batch_size"],
    ),
    "hyperparameters in two places": (TWO_PLACES, ["hyperparameters"]),
    "a grader that fits no recipe": (
        {"grader": MULTI},
        ["method.reinforcement.grader.calculate_output"],
    ),
    "a grader beside an outcome": (
        {"tables": {"reward": {"outcome": "math_answer"}}},
        ["method.reinforcement.grader"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_recipe_is_refused_by_its_fields(case: str) -> None:
    changes, fields = BAD[case]
    with pytest.raises((Problem, ValidationError)) as caught:
        the_recipe(**changes)
    error = caught.value
    lines = error.detail.splitlines() if isinstance(error, Problem) else explain_body(error)
    assert [line.partition(": ")[0] for line in lines] == fields
    assert not isinstance(error, Problem) or error.param == fields[0]


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
    assert (find_problems(body) == []) is fits


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[training]\nstepz = 3\n", "training.stepz"),
        ("[model]\npath = 'a'\n", "every job has its own"),
        ("model = 3\n", "model: must be a table"),
        ("[algorithm]\nadvantage = 'papo'\n", "reward.process"),
    ],
)
def test_a_wrong_file_is_named_with_its_field_when_the_gateway_starts(
    tmp_path: Path, text: str, named: str
) -> None:
    path = tmp_path / "defaults.toml"
    path.write_text(text)
    with pytest.raises(DeploymentError, match=r"WEIR_RECIPE_DEFAULTS=.*defaults\.toml") as caught:
        load_defaults({"WEIR_RECIPE_DEFAULTS": str(path)})
    assert named in str(caught.value)
