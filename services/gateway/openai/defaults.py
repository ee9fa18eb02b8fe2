"""What a recipe says where a body does not: the deployment's tables, then what suits the model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from protocol.recipe import RecipeError, load_tables, parse_recipe

from services.chassis.deployment import DeploymentError, variable
from services.gateway.models.folders import NOTHING_KNOWN, ModelFacts

_VARIABLE = "WEIR_RECIPE_DEFAULTS"
_TOGETHER = ("algorithm", "outcome", "process")  # their settings mean something only together
_MAX_CONTEXT = 4096
_FEWEST_STEPS, _MOST_EPOCHS = 100, 10
_EVALUATIONS = 10  # beside the first

Tables = dict[str, Any]


def tables_of_the_deployment(environment: Mapping[str, str] = os.environ) -> Tables:
    """The tables of the file that ``WEIR_RECIPE_DEFAULTS`` names, none without it.

    Raises:
        DeploymentError: naming the file, and each field that could not be one of a recipe.
    """
    path = variable(environment, _VARIABLE)
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
    parse_recipe(completed(with_deployment(tables, job), NOTHING_KNOWN, num_tasks=1))


def merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Tables:
    """``given``, and from ``defaults`` each key that is not in it."""
    both = {
        key: merged(defaults[key], value)
        for key, value in given.items()
        if key not in _TOGETHER and isinstance(value, dict) and isinstance(defaults.get(key), dict)
    }
    return {**defaults, **given, **both}


def with_deployment(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Tables:
    """What a job gives, completed by the deployment's tables as far as they suit it."""
    left_out = set()
    if "algorithm" in given:
        left_out.add("critic")  # which belongs to the deployment's own algorithm
    if given["tasks"]["held_out"] is None:
        left_out.add("evaluation")
    kept = {name: table for name, table in defaults.items() if name not in left_out}
    return merged(kept, given)


def completed(tables: Tables, facts: ModelFacts, num_tasks: int) -> Tables:
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
    full = deepcopy(merged(needed, tables))
    if facts.has_chat_template is False:
        _set_default(full, "model", "prompt_template", "{prompt}")
    context, sampling = _at(full, "model", "max_context"), _at(full, "rollout", "sampling")
    if isinstance(context, int) and isinstance(sampling, dict):
        sampling.setdefault("max_tokens", context // 2)
    _set_default(full, "training", "steps", steps_of(_epochs(full, num_tasks), num_tasks, full))
    if not _at(full, "reward", "process") and not full.get("critic"):
        _set_default(full, "algorithm", "advantage", "grpo")
    return full


def evaluated(tables: Tables) -> Tables:
    """The tables with an evaluation of the held-out tasks at every tenth of the steps."""
    steps = _at(tables, "training", "steps")
    every = math.ceil(steps / _EVALUATIONS) if isinstance(steps, int) else 1
    return merged({"evaluation": {"every": max(1, every)}}, tables)


def steps_of(n_epochs: int, num_tasks: int, tables: Tables) -> int:
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
