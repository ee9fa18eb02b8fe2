"""The body of ``POST /v1/fine_tuning/jobs``, and the recipe that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal

from protocol.recipe import Recipe, parse_recipe
from protocol.recipe_files import RecipeError, explain
from protocol.recipe_tasks import Tasks
from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from services.gateway.api.openai.body import Body, Part
from services.gateway.api.openai.graders import AnyGrader, build_reward
from services.gateway.core.jobs.submission import (
    Submission,
    add_evaluation,
    complete,
    count_steps,
    merge_defaults,
)
from services.gateway.core.models.folders import UNKNOWN_FACTS, ModelFacts
from services.gateway.errors import from_lines, wrong

MAX_METADATA_PAIRS = 16
MAX_KEY_CHARS = 64
MAX_VALUE_CHARS = 512
MIN_GROUP_SIZE = 2  # a group of one has no advantages
GRADER_FIELD = "method.reinforcement.grader"
_HYPERPARAMETERS = "method.reinforcement.hyperparameters"


def _use_instead(remedy: str) -> BeforeValidator:
    def refuse(value: object) -> None:
        if value is not None:
            raise ValueError(f"not supported; use {remedy} instead")

    return BeforeValidator(refuse)


def _map_to_none(default: object) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value == default else value)


Count = Annotated[int | None, Field(ge=1), _map_to_none("auto")]
Multiplier = Annotated[float | None, Field(gt=0, le=1000), _map_to_none("auto")]


class Hyperparameters(Part):
    """OpenAI's names for settings of the recipe; 'auto' keeps the recipe's value."""

    batch_size: Count = Field(default=None, description="training.groups_per_step")
    n_epochs: Count = Field(default=None, description="training.steps, from the number of tasks")
    eval_interval: Count = Field(default=None, description="evaluation.every")
    eval_samples: Count = Field(default=None, description="evaluation.samples")
    learning_rate_multiplier: Multiplier = Field(
        default=None, description="times optimizer.learning_rate"
    )
    compute_multiplier: Multiplier = Field(default=None, description="times rollout.group_size")
    reasoning_effort: Annotated[
        None,
        _use_instead("a system message in the tasks, or recipe.model.prompt_template,"),
        _map_to_none("default"),
    ] = None


class Reinforcement(Part):
    """The settings of the only method."""

    hyperparameters: Hyperparameters = Hyperparameters()
    grader: AnyGrader | None = Field(default=None, description="reward.outcome")
    response_format: Annotated[
        None,
        _use_instead("a system message in the tasks, and a grader of {{sample.output_json}},"),
    ] = None


class Method(Part):
    """OpenAI's ``method``; Weir only learns from rewards."""

    type: Literal["reinforcement"]
    reinforcement: Reinforcement = Reinforcement()


class JobRequest(Body):
    """OpenAI's fields, and ``recipe`` with the recipe's tables."""

    model: str = Field(min_length=1)
    training_file: str | None = Field(
        default=None, min_length=1, description="not with recipe.tasks.sources"
    )
    validation_file: str | None = None
    seed: int | None = Field(default=None, ge=0)
    suffix: str | None = Field(default=None, min_length=1, max_length=64)
    metadata: Mapping[str, str] | None = None
    method: Method | None = None
    recipe: Mapping[str, JsonValue] = Field(default_factory=dict)
    hyperparameters: Hyperparameters | None = Field(
        default=None, description=f"deprecated: use {_HYPERPARAMETERS}"
    )
    integrations: Annotated[
        None,
        _use_instead("`weir track JOB --to wandb:PROJECT`, which writes a job to W&B,"),
        _map_to_none([]),
    ] = None

    @field_validator("metadata")
    @classmethod
    def _check_metadata(cls, metadata: Mapping[str, str] | None) -> Mapping[str, str] | None:
        pairs = metadata or {}
        has_long_key = any(len(key) > MAX_KEY_CHARS for key in pairs)
        has_long_value = any(len(value) > MAX_VALUE_CHARS for value in pairs.values())
        if len(pairs) > MAX_METADATA_PAIRS or has_long_key or has_long_value:
            raise ValueError(
                f"must have at most {MAX_METADATA_PAIRS} pairs, with keys of {MAX_KEY_CHARS} and "
                f"values of {MAX_VALUE_CHARS} characters"
            )
        return metadata

    @field_validator("hyperparameters")
    @classmethod
    def _check_places(
        cls, hyperparameters: Hyperparameters | None, info: ValidationInfo
    ) -> Hyperparameters | None:
        method: Method | None = info.data.get("method")
        if hyperparameters and method and method.reinforcement.hyperparameters.model_fields_set:
            raise ValueError(f"set them only in {_HYPERPARAMETERS}")
        return hyperparameters

    @property
    def grader(self) -> AnyGrader | None:
        return self.method.reinforcement.grader if self.method else None

    @property
    def all_hyperparameters(self) -> Hyperparameters:
        if self.hyperparameters or not self.method:
            return self.hyperparameters or Hyperparameters()
        return self.method.reinforcement.hyperparameters

    def to_submission(self, listed_model: str, defaults: Mapping[str, Any]) -> Submission:
        """Return the job that the body asks for; ``defaults`` are the deployment's tables."""
        request = self.model_copy(update={"model": listed_model})
        return Submission(
            model=listed_model,
            training_files=_training_files(self),
            validation_file=self.validation_file,
            request=request.model_dump(mode="json", exclude_unset=True),
            build_recipe=partial(build_recipe, request, defaults=defaults),
            outcome_field=GRADER_FIELD if self.grader else None,
        )


def _training_files(request: JobRequest) -> dict[str, str]:
    """Return the ids of the files to train on by the fields that name them.

    Raises:
        Problem: 400 unless the request names one file, or valid sources.
    """
    tasks = request.recipe.get("tasks")
    sources = tasks.get("sources") if isinstance(tasks, dict) else None
    if request.training_file is not None:
        if sources:
            raise wrong("training_file", "recipe.tasks.sources has the files; remove one of them")
        return {"training_file": request.training_file}
    if not sources:
        raise wrong("training_file", "required, but missing; or give recipe.tasks.sources")
    try:
        files = Tasks.model_validate({"sources": sources}).train_files
    except ValidationError as error:
        lines = explain(error, whole="sources").splitlines()
        raise from_lines(
            [f"recipe.tasks.{line}" for line in lines], code="invalid_recipe"
        ) from error
    return {f"recipe.tasks.sources.{name}.train": file_id for name, file_id in files.items()}


def build_recipe(
    request: JobRequest,
    model_path: str,
    num_tasks: int,
    facts: ModelFacts = UNKNOWN_FACTS,
    *,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Recipe:
    """Return the recipe that a request asks for.

    ``model_path`` and the file ids become ``model.path`` and the paths of ``tasks``. The other
    fields of the request must not contradict its recipe. Settings that the request leaves out come
    from ``defaults``, the deployment's tables, or suit the model.

    Raises:
        Problem: 400 naming each wrong field, as ``recipe.training.steps``.
    """
    tables = {
        name: dict(table) if isinstance(table, dict) else table
        for name, table in request.recipe.items()
    }
    tables.setdefault("name", request.suffix or "fine-tune")
    has_evaluation = "evaluation" in tables or "evaluation" in defaults
    _set_paths(tables, request, model_path)
    _set_hyperparameters(tables, request)
    _set_grader(tables, request.grader)
    merged = merge_defaults(defaults, tables)
    n_epochs = request.all_hyperparameters.n_epochs
    if n_epochs is not None:
        steps = count_steps(n_epochs, num_tasks, merged)
        _set(tables, "training", "steps", steps, f"{_HYPERPARAMETERS}.n_epochs")
        merged["training"] = {**merged.get("training", {}), "steps": steps}
    completed = complete(merged, facts, num_tasks)
    if request.validation_file and not has_evaluation:
        completed = add_evaluation(completed)
    try:
        return _multiply(parse_recipe(completed), request.all_hyperparameters)
    except RecipeError as error:
        lines = str(error).splitlines()
        lines = [line if line.startswith("recipe:") else f"recipe.{line}" for line in lines]
        raise from_lines(lines, code="invalid_recipe") from error


def _set_paths(tables: dict[str, Any], request: JobRequest, model_path: str) -> None:
    model = _table(tables, "model")
    tasks = _table(tables, "tasks")
    path = model.get("path", model_path)
    if path not in (request.model, model_path):
        reason = (
            f"{path!r} is not model {request.model!r}; remove it, the field 'model' replaces it"
        )
        raise wrong("recipe.model.path", reason)
    if tasks.get("held_out") and request.validation_file is None:
        reason = "missing, but recipe.tasks.held_out is set; upload that file and give its id"
        raise wrong("validation_file", reason)
    model["path"] = model_path
    tasks |= {"train": request.training_file or "", "held_out": request.validation_file}


def _set_hyperparameters(tables: dict[str, Any], request: JobRequest) -> None:
    values = request.all_hyperparameters
    settings = {
        "seed": ("training", "seed", request.seed),
        f"{_HYPERPARAMETERS}.batch_size": ("training", "groups_per_step", values.batch_size),
        f"{_HYPERPARAMETERS}.eval_interval": ("evaluation", "every", values.eval_interval),
        f"{_HYPERPARAMETERS}.eval_samples": ("evaluation", "samples", values.eval_samples),
    }
    for param, (table, key, value) in settings.items():
        if value is None:
            continue
        if table == "evaluation" and request.validation_file is None:
            raise wrong(param, "needs validation_file, the tasks of the evaluation; set that too")
        _set(tables, table, key, value, param)


def _set_grader(tables: dict[str, Any], grader: AnyGrader | None) -> None:
    if grader is None:
        return
    table = _table(tables, "reward")
    for field in ("outcome", "formula"):
        if field in table:
            raise wrong(GRADER_FIELD, f"contradicts recipe.reward.{field}; remove one of them")
    reward = build_reward(grader, GRADER_FIELD)
    table |= {"outcome": reward.outcome, "formula": reward.formula}


def _multiply(recipe: Recipe, hyperparameters: Hyperparameters) -> Recipe:
    group_size = recipe.rollout.group_size
    multiplied = round(group_size * (hyperparameters.compute_multiplier or 1.0))
    tables = recipe.model_dump(mode="json")
    tables["rollout"]["group_size"] = max(min(MIN_GROUP_SIZE, group_size), multiplied)
    tables["optimizer"]["learning_rate"] *= hyperparameters.learning_rate_multiplier or 1.0
    return parse_recipe(tables)  # the product may be no valid learning rate


def _table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    table = tables.setdefault(name, {})
    if not isinstance(table, dict):
        raise wrong(f"recipe.{name}", "must be a table")
    return table


def _set(tables: dict[str, Any], table: str, key: str, value: int, param: str) -> None:
    current = _table(tables, table).setdefault(key, value)
    if current != value:
        reason = f"is {value}, but recipe.{table}.{key} is {current}; remove one of them"
        raise wrong(param, reason)
