"""A new job, and the settings that its recipe leaves out.

They come from the deployment's tables, then from what suits the model and the tasks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

from protocol.recipe import Model, Recipe, parse_recipe
from protocol.recipe_files import RecipeError, Tables, load_tables, merge_tables
from pydantic import JsonValue

from services.chassis.deployment import DeploymentError, read_variable
from services.gateway.core.models.folders import UNKNOWN_FACTS, ModelFacts

DEFAULTS_VARIABLE = "WEIR_RECIPE_DEFAULTS"
MAX_CONTEXT = 4096  # tokens, if the recipe names no context
MIN_STEPS = 100
MAX_EPOCHS = 10
NUM_EVALUATIONS = 10  # after the first one
GROUPS_PER_STEP = 16  # the recipe's default
DTYPES = get_args(Model.model_fields["dtype"].annotation)
# The settings of these fields mean something only together.
_COUPLED_FIELDS = ("algorithm", "outcome", "process")


class RecipeBuilder(Protocol):
    def __call__(self, model_path: str, num_tasks: int, facts: ModelFacts) -> Recipe: ...


@dataclass(frozen=True)
class Submission:
    """A job that a client wants. Its recipe depends on the model's facts and on the tasks."""

    model: str
    training_files: Mapping[str, str]  # by the field of the request
    validation_file: str | None
    request: dict[str, JsonValue]  # is stored with the job; a retry must send the same
    build_recipe: RecipeBuilder
    outcome_field: str | None = None  # of the request, if not of the recipe


def load_defaults(environment: Mapping[str, str] = os.environ) -> Tables:
    """Read the tables of the file that ``WEIR_RECIPE_DEFAULTS`` names; {} without it.

    Raises:
        DeploymentError: naming the file, and each field that no recipe could have.
    """
    path = read_variable(environment, DEFAULTS_VARIABLE)
    if path is None:
        return {}
    try:
        tables = load_tables(Path(path))
        _check_defaults(tables)
    except RecipeError as error:
        raise DeploymentError(f"{DEFAULTS_VARIABLE}={path!r}: {error}") from error
    return tables


def _check_defaults(tables: Tables) -> None:
    for name, table in tables.items():
        if name in {"name", "tasks"}:
            raise RecipeError(f"{name}: every job has its own; remove it")
        if not isinstance(table, dict):
            raise RecipeError(f"{name}: must be a table")
        if name == "model" and "path" in table:
            raise RecipeError("model.path: every job has its own; remove it")
    job = {
        "name": "any",
        "model": {"path": "any"},
        "tasks": {"train": "a", "held_out": "b"},
    }
    merged = merge_defaults(tables, job)
    parse_recipe(complete(merged, UNKNOWN_FACTS, num_tasks=1))


def merge_defaults(defaults: Mapping[str, Any], tables: Mapping[str, Any]) -> Tables:
    """Return a job's tables on top of the deployment's, as far as those suit the job."""
    unsuitable = set()
    if "algorithm" in tables:
        unsuitable.add("critic")  # it belongs to the deployment's algorithm
    if tables["tasks"]["held_out"] is None:
        unsuitable.add("evaluation")
    suitable = {name: table for name, table in defaults.items() if name not in unsuitable}
    return merge_tables(suitable, tables, _COUPLED_FIELDS)


def complete(tables: Tables, facts: ModelFacts, num_tasks: int) -> Tables:
    """Add the settings that a recipe must have, as they suit the model and the tasks.

    The context is the model's, 4,096 tokens at most, and half of it a response's. The tasks are
    repeated until there are 100 steps, ten times at most. Without a process score the advantage is
    GRPO's.
    """
    required: Tables = {
        "model": {"max_context": min(MAX_CONTEXT, facts.context or MAX_CONTEXT)},
        "rollout": {"sampling": {}},
        "training": {},
        "algorithm": {},
    }
    completed = deepcopy(merge_tables(required, tables))
    if facts.has_chat_template is False:
        _set_default(completed, "model", "prompt_template", "{prompt}")
    if _lookup(completed, "training", "steps") == 0 and facts.dtype in DTYPES:
        _set_default(completed, "model", "dtype", facts.dtype)
    context = _lookup(completed, "model", "max_context")
    sampling = _lookup(completed, "rollout", "sampling")
    if isinstance(context, int) and isinstance(sampling, dict):
        sampling.setdefault("max_tokens", context // 2)
    epochs = math.ceil(MIN_STEPS * _groups_per_step(completed) / num_tasks)
    steps = count_steps(min(MAX_EPOCHS, epochs), num_tasks, completed)
    _set_default(completed, "training", "steps", steps)
    if not _lookup(completed, "reward", "process") and not completed.get("critic"):
        _set_default(completed, "algorithm", "advantage", "grpo")
    return completed


def add_evaluation(tables: Tables) -> Tables:
    """Add an evaluation of the held-out tasks at every tenth of the steps."""
    steps = _lookup(tables, "training", "steps")
    every = math.ceil(steps / NUM_EVALUATIONS) if isinstance(steps, int) else 1
    return merge_tables({"evaluation": {"every": max(1, every)}}, tables)


def count_steps(num_epochs: int, num_tasks: int, tables: Tables) -> int:
    return math.ceil(num_epochs * num_tasks / _groups_per_step(tables))


def _groups_per_step(tables: Tables) -> int:
    groups = _lookup(tables, "training", "groups_per_step")
    is_valid = isinstance(groups, int) and groups > 0
    return groups if is_valid else GROUPS_PER_STEP  # the recipe's check refuses an invalid number


def _lookup(tables: Tables, table_name: str, key: str) -> Any:
    table = tables.get(table_name)
    return table.get(key) if isinstance(table, dict) else None


def _set_default(tables: Tables, table_name: str, key: str, value: Any) -> None:
    if isinstance(tables[table_name], dict):
        tables[table_name].setdefault(key, value)
