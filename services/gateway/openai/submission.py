"""The body of ``POST /v1/fine_tuning/jobs``, and how it becomes a recipe. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from protocol.recipe import Recipe, RecipeError, parse_recipe
from pydantic import BeforeValidator, Field, JsonValue, ValidationInfo, field_validator

from services.gateway.errors import from_lines, wrong
from services.gateway.models.folders import NOTHING_KNOWN, ModelFacts
from services.gateway.openai.body import Body, Part
from services.gateway.openai.defaults import completed, evaluated, steps_of, with_deployment
from services.gateway.openai.graders import AnyGrader, reward_of

_HYPERPARAMETERS = "method.reinforcement.hyperparameters"
GRADER = "method.reinforcement.grader"


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
    full = with_deployment(defaults, tables)
    _put_epochs(tables, full, request, num_tasks)
    full = completed(full, facts, num_tasks)
    if request.validation_file and not (evaluates_as_it_says or "evaluation" in defaults):
        full = evaluated(full)
    try:
        return _multiplied(parse_recipe(full), _hyperparameters(request))
    except RecipeError as error:
        lines = str(error).splitlines()
        lines = [line if line.startswith("recipe:") else f"recipe.{line}" for line in lines]
        raise from_lines(lines, code="invalid_recipe") from error


def _put_places(tables: dict[str, Any], request: JobRequest, model: str) -> None:
    own, tasks = _table(tables, "model"), _table(tables, "tasks")
    if own.get("path", request.model) != request.model:
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
        steps = steps_of(n_epochs, num_tasks, full)
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
