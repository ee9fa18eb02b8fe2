"""The body of ``POST /v1/fine_tuning/jobs``, and how it becomes a recipe. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from protocol.recipe import Recipe, RecipeError, parse_recipe
from pydantic import BeforeValidator, Field, JsonValue, field_validator

from services.gateway.errors import Problem, from_lines
from services.gateway.openai.body import Body, Part
from services.gateway.openai.graders import AnyGrader, outcome_of

_HYPERPARAMETERS = "method.reinforcement.hyperparameters"
GRADER = "method.reinforcement.grader"


def _use_instead(remedy: str) -> BeforeValidator:
    def refuse(value: object) -> None:
        if value is not None:
            raise ValueError(f"not supported; use {remedy} instead")

    return BeforeValidator(refuse)


def _auto_is_none(value: object) -> object:
    return None if value == "auto" else value


Count = Annotated[int | None, Field(ge=1), BeforeValidator(_auto_is_none)]


class Hyperparameters(Part):
    """OpenAI's names for settings of the recipe; 'auto' leaves the recipe's own value."""

    batch_size: Count = Field(default=None, description="training.groups_per_step")
    n_epochs: Count = Field(default=None, description="training.steps, from the number of tasks")
    eval_interval: Count = Field(default=None, description="evaluation.every")
    eval_samples: Count = Field(default=None, description="evaluation.samples")
    learning_rate_multiplier: Annotated[None, _use_instead("recipe.optimizer.learning_rate")] = None
    compute_multiplier: Annotated[None, _use_instead("recipe.rollout.group_size")] = None
    reasoning_effort: Annotated[None, _use_instead("recipe.model.prompt_template")] = None


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
    hyperparameters: Annotated[None, _use_instead(_HYPERPARAMETERS)] = None
    integrations: Annotated[None, _use_instead("GET /metrics, which Prometheus reads,")] = None

    @field_validator("metadata")
    @classmethod
    def _metadata_is_small(cls, metadata: Mapping[str, str] | None) -> Mapping[str, str] | None:
        pairs = metadata or {}
        if len(pairs) > 16 or any(len(k) > 64 or len(v) > 512 for k, v in pairs.items()):
            raise ValueError("16 pairs at most, keys of 64 and values of 512 characters")
        return metadata

    def as_sent(self) -> dict[str, JsonValue]:
        """The body as it came ('auto' as null, blocks of text as one text)."""
        return self.model_dump(mode="json", exclude_unset=True)


def build_recipe(request: JobRequest, model: str, num_tasks: int) -> Recipe:
    """The recipe that a request asks for.

    ``model`` (resolved) and the file ids take the place of ``model.path`` and the paths of
    ``tasks``; whatever else the request says about the recipe must not contradict it.

    Raises:
        Problem: 400 naming each wrong field, as ``recipe.training.steps``.
    """
    tables = _tables(request.recipe)
    _check_places(request, tables)
    tables.setdefault("name", request.suffix or "fine-tune")
    _table(tables, "model")["path"] = model
    tables["tasks"] = {"train": request.training_file, "held_out": request.validation_file}
    for param, (table, key, value) in _settings(request, tables, num_tasks):
        _put(_table(tables, table), key, value, f"recipe.{table}.{key}", param)
    if request.method and request.method.reinforcement.grader:
        _put_outcome(_table(tables, "reward"), request.method.reinforcement.grader)
    try:
        return parse_recipe(tables)
    except RecipeError as error:
        raise from_lines(_named(str(error).splitlines()), code="invalid_recipe") from error


def with_critic_folder(recipe: Recipe, resolve: Callable[[str], str]) -> Recipe:
    """The recipe with its critic's folder in place of the path that the client gave, if it did.

    Raises:
        Problem: what ``resolve`` raises.
    """
    critic = recipe.critic
    if critic is None or critic.path is None:
        return recipe
    resolved = critic.model_copy(update={"path": resolve(critic.path)})
    return recipe.model_copy(update={"critic": resolved})


def _tables(recipe: Mapping[str, JsonValue]) -> dict[str, Any]:
    """A copy that can be added to."""
    return {key: dict(value) if isinstance(value, dict) else value for key, value in recipe.items()}


def _check_places(request: JobRequest, tables: Mapping[str, Any]) -> None:
    model, tasks = tables.get("model"), tables.get("tasks")
    if isinstance(model, dict) and model.get("path", request.model) != request.model:
        raise Problem(
            400,
            f"recipe.model.path: {model['path']!r} is not model {request.model!r}; leave it out, "
            "the field 'model' takes its place",
            param="recipe.model.path",
        )
    if isinstance(tasks, dict) and tasks.get("held_out") and request.validation_file is None:
        raise Problem(
            400,
            "validation_file: missing, but recipe.tasks.held_out is set; upload that file and give "
            "its id as validation_file",
            param="validation_file",
        )
    for key in tasks if isinstance(tasks, dict) else ():
        if key not in {"train", "held_out"}:
            param = f"recipe.tasks.{key}"
            raise Problem(
                400, f"{param}: unknown key; remove it or check its spelling", param=param
            )


def _settings(
    request: JobRequest, tables: dict[str, Any], num_tasks: int
) -> Iterator[tuple[str, tuple[str, str, int]]]:
    """The request's settings under the recipe's names; ``n_epochs`` last, as it needs the batch."""
    given = request.method.reinforcement.hyperparameters if request.method else Hyperparameters()
    settings = {
        "seed": ("training", "seed", request.seed),
        f"{_HYPERPARAMETERS}.batch_size": ("training", "groups_per_step", given.batch_size),
        f"{_HYPERPARAMETERS}.eval_interval": ("evaluation", "every", given.eval_interval),
        f"{_HYPERPARAMETERS}.eval_samples": ("evaluation", "samples", given.eval_samples),
    }
    for param, (table, key, value) in settings.items():
        if value is not None:
            yield param, (table, key, value)
    if given.n_epochs is not None:
        steps = _steps(given.n_epochs, num_tasks, _table(tables, "training"))
        yield f"{_HYPERPARAMETERS}.n_epochs", ("training", "steps", steps)


def _steps(n_epochs: int, num_tasks: int, training: Mapping[str, Any]) -> int:
    """Steps that ask for each task ``n_epochs`` times."""
    groups_per_step = training.get("groups_per_step", 16)
    if not isinstance(groups_per_step, int) or groups_per_step < 1:
        return n_epochs  # the recipe's own check names the wrong batch
    return math.ceil(n_epochs * num_tasks / groups_per_step)


def _table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    table = tables.setdefault(name, {})
    if not isinstance(table, dict):
        raise Problem(400, f"recipe.{name}: must be a table", param=f"recipe.{name}")
    return table


def _put(table: dict[str, Any], key: str, value: int, path: str, param: str) -> None:
    if table.setdefault(key, value) != value:
        raise Problem(
            400,
            f"{param}: asks for {path} = {value}, but the recipe says {table[key]}; give one",
            param=param,
        )


def _put_outcome(reward: dict[str, Any], grader: AnyGrader) -> None:
    for field in ("outcome", "formula"):
        if field in reward:
            message = f"{GRADER}: is the reward's {field}, as recipe.reward.{field} is; give one"
            raise Problem(400, message, param=GRADER)
    reward |= outcome_of(grader, GRADER)


def _named(lines: list[str]) -> list[str]:
    return [line if line.startswith("recipe:") else f"recipe.{line}" for line in lines]
