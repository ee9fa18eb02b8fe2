"""The body of ``POST /v1/fine_tuning/jobs``, and how it becomes a recipe.

What the body does not say comes from the deployment's tables, then from what suits the model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from protocol.recipe import (
    Recipe,
    RecipeError,
    Tables,
    load_tables,
    merge_tables,
    parse_recipe,
)
from pydantic import BeforeValidator, Field, JsonValue, ValidationInfo, field_validator

from services.chassis.deployment import DeploymentError, read_variable
from services.gateway.api.openai.body import Body, Part
from services.gateway.api.openai.graders import AnyGrader, reward_of
from services.gateway.core.models.folders import NOTHING_KNOWN, ModelFacts
from services.gateway.errors import from_lines, wrong

_HYPERPARAMETERS = "method.reinforcement.hyperparameters"
GRADER = "method.reinforcement.grader"
_VARIABLE = "WEIR_RECIPE_DEFAULTS"
_TOGETHER = ("algorithm", "outcome", "process")  # their settings mean something only together
_MAX_CONTEXT = 4096
_FEWEST_STEPS, _MOST_EPOCHS = 100, 10
_EVALUATIONS = 10  # beside the first


def _use_instead(remedy: str) -> BeforeValidator:
    def refuse(value: object) -> None:
        if value is not None:
            raise ValueError(f"not supported; use {remedy} instead")

    return BeforeValidator(refuse)


def _none_for(nothing: object) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value == nothing else value)


Count = Annotated[int | None, Field(ge=1), _none_for("auto")]
Multiplier = Annotated[float | None, Field(gt=0, le=1000), _none_for("auto")]


class Hyperparameters(Part):
    """OpenAI's names for settings of the recipe; 'auto' leaves the recipe's own value."""

    batch_size: Count = Field(default=None, description="training.groups_per_step")
    n_epochs: Count = Field(default=None, description="training.steps, from the number of tasks")
    eval_interval: Count = Field(default=None, description="evaluation.every")
    eval_samples: Count = Field(default=None, description="evaluation.samples")
    learning_rate_multiplier: Multiplier = Field(
        default=None, description="times optimizer.learning_rate"
    )
    compute_multiplier: Multiplier = Field(
        default=None, description="times rollout.group_size: responses to explore a task with"
    )
    reasoning_effort: Annotated[
        None,
        _use_instead("a system message in the tasks, or recipe.model.prompt_template,"),
        _none_for("default"),
    ] = None


class Reinforcement(Part):
    """The settings of the one method there is."""

    hyperparameters: Hyperparameters = Hyperparameters()
    grader: AnyGrader | None = Field(default=None, description="reward.outcome")
    response_format: Annotated[
        None,
        _use_instead("a system message in the tasks, and a grader of {{sample.output_json}},"),
    ] = None


class Method(Part):
    """OpenAI's ``method``; only reinforcement is learning from rewards."""

    type: Literal["reinforcement"]
    reinforcement: Reinforcement = Reinforcement()


class JobRequest(Body):
    """What a client submits: OpenAI's fields, and ``recipe`` with the recipe's tables."""

    model: str = Field(min_length=1)
    training_file: str = Field(min_length=1)
    validation_file: str | None = None
    seed: int | None = Field(default=None, ge=0)
    suffix: str | None = Field(default=None, min_length=1, max_length=64)
    metadata: Mapping[str, str] | None = None
    method: Method | None = None
    recipe: Mapping[str, JsonValue] = Field(default_factory=dict)
    hyperparameters: Hyperparameters | None = Field(
        default=None, description=f"their place of old: {_HYPERPARAMETERS}"
    )
    integrations: Annotated[
        None,
        _use_instead("`weir track JOB --to wandb:PROJECT`, which writes a job to W&B,"),
        _none_for([]),
    ] = None

    @field_validator("metadata")
    @classmethod
    def _metadata_is_small(cls, metadata: Mapping[str, str] | None) -> Mapping[str, str] | None:
        pairs = metadata or {}
        if len(pairs) > 16 or any(len(k) > 64 or len(v) > 512 for k, v in pairs.items()):
            raise ValueError("16 pairs at most, keys of 64 and values of 512 characters")
        return metadata

    @field_validator("hyperparameters")
    @classmethod
    def _hyperparameters_have_one_place(
        cls, given: Hyperparameters | None, info: ValidationInfo
    ) -> Hyperparameters | None:
        method: Method | None = info.data.get("method")
        if given and method and method.reinforcement.hyperparameters.model_fields_set:
            raise ValueError(f"give them in {_HYPERPARAMETERS} alone")
        return given

    def as_sent(self) -> dict[str, JsonValue]:
        """The body as it came ('auto' as null, blocks of text as one text)."""
        return self.model_dump(mode="json", exclude_unset=True)


def build_recipe(
    request: JobRequest,
    model: str,
    num_tasks: int,
    *,
    facts: ModelFacts = NOTHING_KNOWN,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Recipe:
    """The recipe that a request asks for.

    ``model`` (resolved) and the file ids take the place of ``model.path`` and the paths of
    ``tasks``; whatever else the request says about the recipe must not contradict it. What it does
    not say is said by ``defaults``, the deployment's tables, or suits the model.

    Raises:
        Problem: 400 naming each wrong field, as ``recipe.training.steps``.
    """
    tables = {key: dict(v) if isinstance(v, dict) else v for key, v in request.recipe.items()}
    tables.setdefault("name", request.suffix or "fine-tune")
    evaluates_as_it_says = "evaluation" in tables
    _put_places(tables, request, model)
    _put_settings(tables, request)
    full = _with_deployment(defaults, tables)
    _put_epochs(tables, full, request, num_tasks)
    full = _completed(full, facts, num_tasks)
    if request.validation_file and not (evaluates_as_it_says or "evaluation" in defaults):
        full = _evaluated(full)
    try:
        return _multiplied(parse_recipe(full), _hyperparameters(request))
    except RecipeError as error:
        lines = str(error).splitlines()
        lines = [line if line.startswith("recipe:") else f"recipe.{line}" for line in lines]
        raise from_lines(lines, code="invalid_recipe") from error


def _put_places(tables: dict[str, Any], request: JobRequest, model: str) -> None:
    own, tasks = _table(tables, "model"), _table(tables, "tasks")
    if own.get("path", model) not in (request.model, model):
        raise wrong(
            "recipe.model.path",
            f"{own['path']!r} is not model {request.model!r}; leave it out, the field 'model' "
            "takes its place",
        )
    if tasks.get("held_out") and request.validation_file is None:
        why = "missing, but recipe.tasks.held_out is set; upload that file and give its id"
        raise wrong("validation_file", why)
    own["path"] = model
    tasks |= {"train": request.training_file, "held_out": request.validation_file}


def _hyperparameters(request: JobRequest) -> Hyperparameters:
    sent = request.method.reinforcement.hyperparameters if request.method else Hyperparameters()
    return request.hyperparameters or sent


def _put_settings(tables: dict[str, Any], request: JobRequest) -> None:
    given = _hyperparameters(request)
    settings = {
        "seed": ("training", "seed", request.seed),
        f"{_HYPERPARAMETERS}.batch_size": ("training", "groups_per_step", given.batch_size),
        f"{_HYPERPARAMETERS}.eval_interval": ("evaluation", "every", given.eval_interval),
        f"{_HYPERPARAMETERS}.eval_samples": ("evaluation", "samples", given.eval_samples),
    }
    for param, (table, key, value) in settings.items():
        if value is None:
            continue
        if table == "evaluation" and request.validation_file is None:
            raise wrong(param, "needs validation_file, whose tasks are evaluated; give it")
        _put(tables, table, key, value, param)
    if request.method and (grader := request.method.reinforcement.grader):
        reward = _table(tables, "reward")
        for field in ("outcome", "formula"):
            if field in reward:
                why = f"is the reward's {field}, as recipe.reward.{field} is; give one"
                raise wrong(GRADER, why)
        graded = reward_of(grader, GRADER)
        reward |= {"outcome": graded.outcome, "formula": graded.formula}


def _put_epochs(
    tables: dict[str, Any], full: dict[str, Any], request: JobRequest, num_tasks: int
) -> None:
    """Steps for ``n_epochs``, which need the batch, whoever says it."""
    n_epochs = _hyperparameters(request).n_epochs
    if n_epochs is not None:
        steps = _steps_of(n_epochs, num_tasks, full)
        _put(tables, "training", "steps", steps, f"{_HYPERPARAMETERS}.n_epochs")
        full["training"] = {**full.get("training", {}), "steps": steps}


def _multiplied(recipe: Recipe, given: Hyperparameters) -> Recipe:
    rate, compute = given.learning_rate_multiplier or 1.0, given.compute_multiplier or 1.0
    size = max(min(2, recipe.rollout.group_size), round(recipe.rollout.group_size * compute))
    tables = recipe.model_dump(mode="json")
    tables["rollout"]["group_size"] = size
    tables["optimizer"]["learning_rate"] *= rate
    return parse_recipe(tables)  # 1e-6 times 1e-320 is no learning rate


def _table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    table = tables.setdefault(name, {})
    if not isinstance(table, dict):
        raise wrong(f"recipe.{name}", "must be a table")
    return table


def _put(tables: dict[str, Any], table: str, key: str, value: int, param: str) -> None:
    said = _table(tables, table).setdefault(key, value)
    if said != value:
        why = f"asks for recipe.{table}.{key} = {value}, but the recipe says {said}; give one"
        raise wrong(param, why)


# ---------------------------------------------------------------------- what it leaves out


def tables_of_the_deployment(environment: Mapping[str, str] = os.environ) -> Tables:
    """The tables of the file that ``WEIR_RECIPE_DEFAULTS`` names, none without it.

    Raises:
        DeploymentError: naming the file, and each field that could not be one of a recipe.
    """
    path = read_variable(environment, _VARIABLE)
    if path is None:
        return {}
    try:
        tables = load_tables(Path(path))
        _check(tables)
    except RecipeError as error:
        raise DeploymentError(f"{_VARIABLE}={path!r}: {error}") from error
    return tables


def _check(tables: Tables) -> None:
    for name, table in tables.items():
        if name in {"name", "tasks"}:
            raise RecipeError(f"{name}: every job has its own; remove it")
        if not isinstance(table, dict):
            raise RecipeError(f"{name}: must be a table")
        if name == "model" and "path" in table:
            raise RecipeError("model.path: every job has its own; remove it")
    job = {"name": "any", "model": {"path": "any"}, "tasks": {"train": "a", "held_out": "b"}}
    parse_recipe(_completed(_with_deployment(tables, job), NOTHING_KNOWN, num_tasks=1))


def _with_deployment(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Tables:
    """What a job gives, completed by the deployment's tables as far as they suit it."""
    left_out = set()
    if "algorithm" in given:
        left_out.add("critic")  # which belongs to the deployment's own algorithm
    if given["tasks"]["held_out"] is None:
        left_out.add("evaluation")
    kept = {name: table for name, table in defaults.items() if name not in left_out}
    return merge_tables(kept, given, _TOGETHER)


def _completed(tables: Tables, facts: ModelFacts, num_tasks: int) -> Tables:
    """The tables with what a recipe must have, and what suits the model and the tasks.

    The context is the model's, 4,096 tokens at most, and half of it a response's; tasks are seen as
    often as makes 100 steps, ten times at most; without a process score the advantage is GRPO's.
    """
    needed: Tables = {
        "model": {"max_context": min(_MAX_CONTEXT, facts.context or _MAX_CONTEXT)},
        "rollout": {"sampling": {}},
        "training": {},
        "algorithm": {},
    }
    full = deepcopy(merge_tables(needed, tables))
    if facts.has_chat_template is False:
        _set_default(full, "model", "prompt_template", "{prompt}")
    context, sampling = _at(full, "model", "max_context"), _at(full, "rollout", "sampling")
    if isinstance(context, int) and isinstance(sampling, dict):
        sampling.setdefault("max_tokens", context // 2)
    _set_default(full, "training", "steps", _steps_of(_epochs(full, num_tasks), num_tasks, full))
    if not _at(full, "reward", "process") and not full.get("critic"):
        _set_default(full, "algorithm", "advantage", "grpo")
    return full


def _evaluated(tables: Tables) -> Tables:
    """The tables with an evaluation of the held-out tasks at every tenth of the steps."""
    steps = _at(tables, "training", "steps")
    every = math.ceil(steps / _EVALUATIONS) if isinstance(steps, int) else 1
    return merge_tables({"evaluation": {"every": max(1, every)}}, tables)


def _steps_of(n_epochs: int, num_tasks: int, tables: Tables) -> int:
    return math.ceil(n_epochs * num_tasks / _batch(tables))


def _epochs(tables: Tables, num_tasks: int) -> int:
    return min(_MOST_EPOCHS, math.ceil(_FEWEST_STEPS * _batch(tables) / num_tasks))


def _batch(tables: Tables) -> int:
    batch = _at(tables, "training", "groups_per_step")
    # The recipe's own check names a wrong one.
    return batch if isinstance(batch, int) and batch > 0 else 16


def _at(tables: Tables, table: str, key: str) -> Any:
    found = tables.get(table)
    return found.get(key) if isinstance(found, dict) else None


def _set_default(tables: Tables, table: str, key: str, value: Any) -> None:
    if isinstance(tables[table], dict):
        tables[table].setdefault(key, value)
