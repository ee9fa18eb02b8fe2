"""What a plain body leaves out is said by the deployment, or suits the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from protocol.recipe import Recipe

from services.chassis.deployment import DeploymentError
from services.gateway.errors import Problem
from services.gateway.models.folders import NOTHING_KNOWN, ModelFacts
from services.gateway.openai.submission import (
    JobRequest,
    build_recipe,
    tables_of_the_deployment,
)

GRADER = {
    "type": "string_check",
    "name": "same",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
    "operation": "eq",
}


def the_recipe(
    body: dict[str, Any] | None = None,
    *,
    num_tasks: int = 100,
    facts: ModelFacts = NOTHING_KNOWN,
    defaults: dict[str, Any] | None = None,
    **hyperparameters: Any,
) -> Recipe:
    method = {
        "type": "reinforcement",
        "reinforcement": {"grader": GRADER, "hyperparameters": hyperparameters},
    }
    plain = {"model": "tiny", "training_file": "file-1", "method": method}
    request = JobRequest.model_validate(plain | (body or {}))
    return build_recipe(request, "/models/tiny", num_tasks, facts=facts, defaults=defaults or {})


def test_a_plain_body_is_a_whole_recipe() -> None:
    recipe = the_recipe({"recipe": {"reward": {"process": "equation_steps"}}})
    assert [check.verifier for check in recipe.reward.outcome] == ["string_check"]
    assert [check.verifier for check in recipe.reward.process] == ["equation_steps"]
    recipe = the_recipe()
    assert recipe.algorithm.advantage == "grpo"
    assert (recipe.model.max_context, recipe.rollout.sampling.max_tokens) == (4096, 2048)
    assert recipe.model.prompt_template is None
    assert recipe.evaluation is None


@pytest.mark.parametrize(
    ("num_tasks", "batch", "steps"),
    [(8, 8, 10), (100, 16, 63), (250, 8, 125)],
)
def test_auto_sees_all_tasks_and_makes_a_hundred_steps_if_ten_epochs_suffice(
    num_tasks: int, batch: int, steps: int
) -> None:
    recipe = the_recipe(num_tasks=num_tasks, batch_size=batch, n_epochs="auto")
    assert recipe.training.steps == steps


def test_a_model_without_a_chat_template_reads_the_prompt_as_it_is() -> None:
    recipe = the_recipe(facts=ModelFacts(has_chat_template=False))
    assert recipe.model.prompt_template == "{prompt}"
    assert the_recipe(facts=ModelFacts(has_chat_template=True)).model.prompt_template is None


def test_what_is_sent_wins_over_the_deployment_and_the_deployment_over_what_suits() -> None:
    defaults = {
        "model": {"max_context": 1000, "dtype": "float32"},
        "rollout": {"group_size": 32, "sampling": {"max_tokens": 100}},
        "training": {"steps": 7, "groups_per_step": 3},
    }
    sent = {"rollout": {"sampling": {"max_tokens": 200}}, "training": {"steps": 9}}
    recipe = the_recipe({"recipe": sent}, defaults=defaults)
    assert (recipe.model.max_context, recipe.model.dtype) == (1000, "float32")
    assert (recipe.rollout.group_size, recipe.rollout.sampling.max_tokens) == (32, 200)
    assert (recipe.training.steps, recipe.training.groups_per_step) == (9, 3)
    assert the_recipe(defaults=defaults).training.steps == 7
    assert the_recipe(defaults=defaults, n_epochs=1).training.steps == 34  # of 3 tasks each
    assert the_recipe(defaults=defaults, batch_size=50, n_epochs=1).training.steps == 2
    assert "steps" in defaults["training"]  # nobody has written into them
    assert defaults["rollout"] == {"group_size": 32, "sampling": {"max_tokens": 100}}


def test_an_algorithm_that_is_sent_takes_nothing_from_that_of_the_deployment() -> None:
    defaults = {"algorithm": {"advantage": "gae", "lambda_actor": 0.9}, "critic": {}}
    assert the_recipe(defaults=defaults).critic is not None
    recipe = the_recipe({"recipe": {"algorithm": {"advantage": "rloo"}}}, defaults=defaults)
    assert (recipe.algorithm.advantage, recipe.critic) == ("rloo", None)


def test_held_out_tasks_are_evaluated_every_tenth_of_the_steps_unless_the_body_says_how() -> None:
    held_out = {"validation_file": "file-2"}
    recipe = the_recipe(held_out)
    assert recipe.evaluation is not None
    assert (recipe.training.steps, recipe.evaluation.every) == (63, 7)
    recipe = the_recipe(held_out, eval_interval=3, eval_samples=2)
    assert recipe.evaluation is not None
    assert (recipe.evaluation.every, recipe.evaluation.samples) == (3, 2)
    defaults = {"evaluation": {"samples": 9}}
    assert the_recipe(defaults=defaults).evaluation is None


def test_an_evaluation_without_its_tasks_names_the_field_that_asks_for_it() -> None:
    with pytest.raises(Problem) as caught:
        the_recipe(eval_interval=3)
    assert str(caught.value.param).endswith("hyperparameters.eval_interval")
    assert "validation_file" in caught.value.detail


def test_multipliers_multiply_what_the_recipe_says() -> None:
    recipe = the_recipe(learning_rate_multiplier=2, compute_multiplier=1.5)
    assert recipe.optimizer.learning_rate == pytest.approx(2e-6)
    assert recipe.rollout.group_size == 12
    tables = {"optimizer": {"learning_rate": 1e-4}, "rollout": {"group_size": 4}}
    recipe = the_recipe({"recipe": tables}, learning_rate_multiplier=0.5, compute_multiplier=0.01)
    assert recipe.optimizer.learning_rate == pytest.approx(5e-5)
    assert recipe.rollout.group_size == 2  # a group of one teaches nothing
    with pytest.raises(Problem, match="learning_rate"):
        the_recipe(learning_rate_multiplier=5e-324)


def a_file(folder: Path, text: str) -> dict[str, str]:
    (folder / "defaults.toml").write_text(text)
    return {"WEIR_RECIPE_DEFAULTS": str(folder / "defaults.toml")}


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
    with pytest.raises(DeploymentError, match=r"WEIR_RECIPE_DEFAULTS=.*defaults\.toml") as caught:
        tables_of_the_deployment(a_file(tmp_path, text))
    assert named in str(caught.value)
