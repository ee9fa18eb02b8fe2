"""What a recipe needs from disk or a hub, and whether it is there. Loads no weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants
from protocol.recipe import Recipe
from protocol.tasks import TaskFileError, read_tasks

from services.learner.model_source import folder_under_roots
from services.learner.planning.shape import (
    BUILT_IN,
    DamagedConfig,
    ModelShape,
    UnknownModel,
    shape_of_config,
)

_HUB_BYTES_PER_PARAMETER = 2  # the models of the table are published in bfloat16


@dataclass(frozen=True)
class ModelProvision:
    """Where a model is, and its shape if that is known."""

    role: str  # policy or critic
    path: str  # as the recipe has it
    folder: Path | None  # none: the job would not find it on this machine
    shape: ModelShape | None
    shape_source: str  # where the shape comes from, or why it is not known
    download_bytes: int | None  # about; none: nothing to download, or not known
    problem: str | None = None  # why the job would refuse what is there


@dataclass(frozen=True)
class TasksProvision:
    """A task file, and how many tasks it holds or what is wrong with it."""

    role: str  # train or held_out
    path: str
    num_tasks: int | None
    problem: str | None


def models_of(recipe: Recipe, roots: tuple[Path, ...], *, hub: bool) -> list[ModelProvision]:
    """The policy's model, and the critic's if the recipe has one, as the job would find them."""
    models = [_model("policy", "model.path", recipe.model.path, roots, hub=hub)]
    if recipe.critic is not None:
        path, field = recipe.critic.path, "critic.path"
        if path is None:
            path, field = recipe.model.path, "model.path"
        models.append(_model("critic", field, path, roots, hub=hub))
    return models


def tasks_of(recipe: Recipe) -> list[TasksProvision]:
    """The task files, read and checked; paths are relative to the current directory."""
    paths = {"train": recipe.tasks.train, "held_out": recipe.tasks.held_out}
    return [_tasks(role, path) for role, path in paths.items() if path is not None]


def _model(
    role: str, field: str, path: str, roots: tuple[Path, ...], *, hub: bool
) -> ModelProvision:
    problem = None
    try:
        folder = folder_under_roots(path, roots, field)
    except (OSError, ValueError) as error:
        folder, problem = None, str(error)
    if folder is None and problem is None and hub:
        folder = next(_downloaded(path), None)
    if folder is not None:
        return ModelProvision(role, path, folder, *_shape_in(folder), None)
    shape = BUILT_IN.get(path)
    if shape is None:
        known = ", ".join(BUILT_IN)
        reason = f"not on this machine, and not in the built-in table ({known})"
        return ModelProvision(role, path, None, None, reason, None, problem)
    size = None if problem else shape.parameters * _HUB_BYTES_PER_PARAMETER
    return ModelProvision(role, path, None, shape, "from the built-in table", size, problem)


def _shape_in(folder: Path) -> tuple[ModelShape | None, str]:
    config = folder / "config.json"
    try:
        return shape_of_config(json.loads(config.read_bytes())), "its config.json"
    except UnknownModel as error:
        return None, f"{folder}: {error}"
    except DamagedConfig as error:
        return None, f"{config} is damaged: {error}"
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{config} is damaged: not valid JSON: {error}"


def _downloaded(path: str) -> Iterator[Path]:
    """Where `huggingface_hub` keeps a model that it has downloaded, weights included."""
    cache = Path(constants.HF_HUB_CACHE) / f"models--{path.replace('/', '--')}"
    for folder in sorted(cache.glob("snapshots/*")):
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            yield folder


def _tasks(role: str, path: str) -> TasksProvision:
    try:
        return TasksProvision(role, path, len(read_tasks(Path(path))), None)
    except TaskFileError as error:
        cause = error.__cause__
        problem = cause.strerror if isinstance(cause, OSError) else error.problems[0]
        return TasksProvision(role, path, None, problem)
