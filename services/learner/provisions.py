"""What a recipe needs from disk or a hub, and whether it is there. Loads no weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.recipe import Recipe
from protocol.tasks import TaskFileError, read_tasks

from services.learner.model_shape import BUILT_IN, ModelShape, UnknownModel, shape_of_config

_HUB_BYTES_PER_PARAMETER = 2  # the models of the table are published in bfloat16


@dataclass(frozen=True)
class ModelProvision:
    """Where a model is, and its shape if that is known."""

    role: str  # policy or critic
    path: str  # as the recipe has it
    folder: Path | None  # none: not on this machine
    shape: ModelShape | None
    shape_source: str  # where the shape comes from, or why it is not known
    download_bytes: int | None  # about; none: nothing to download, or not known


@dataclass(frozen=True)
class TasksProvision:
    """A task file, and how many tasks it holds or what is wrong with it."""

    role: str  # train or held_out
    path: str
    num_tasks: int | None
    problem: str | None


def models_of(
    recipe: Recipe, roots: tuple[Path, ...], environment: Mapping[str, str] = os.environ
) -> list[ModelProvision]:
    """The policy's model, and the critic's if the recipe has one."""
    paths = {"policy": recipe.model.path}
    if recipe.critic is not None:
        paths["critic"] = recipe.critic.path or recipe.model.path
    return [_model(role, path, roots, environment) for role, path in paths.items()]


def tasks_of(recipe: Recipe) -> list[TasksProvision]:
    """The task files, read and checked; paths are relative to the current directory."""
    paths = {"train": recipe.tasks.train, "held_out": recipe.tasks.held_out}
    return [_tasks(role, path) for role, path in paths.items() if path is not None]


def _model(
    role: str, path: str, roots: tuple[Path, ...], environment: Mapping[str, str]
) -> ModelProvision:
    cached = sorted(_hub_cache(path, environment).glob("snapshots/*"))
    for folder in (Path(path), *(root / path for root in roots), *cached):
        if (folder / "config.json").is_file():
            shape, source = _shape_in(folder)
            return ModelProvision(role, path, folder, shape, source, None)
    shape = BUILT_IN.get(path)
    if shape is None:
        known = ", ".join(BUILT_IN)
        reason = f"not on this machine, and not in the built-in table ({known})"
        return ModelProvision(role, path, None, None, reason, None)
    size = shape.parameters * _HUB_BYTES_PER_PARAMETER
    return ModelProvision(role, path, None, shape, "from the built-in table", size)


def _shape_in(folder: Path) -> tuple[ModelShape | None, str]:
    config = folder / "config.json"
    try:
        return shape_of_config(json.loads(config.read_bytes())), "its config.json"
    except UnknownModel as error:
        return None, f"{folder}: {error}"
    except (ValueError, KeyError) as error:
        return None, f"{config} is damaged: {error!r}"


def _hub_cache(path: str, environment: Mapping[str, str]) -> Path:
    """Where `huggingface_hub` keeps a model that it has downloaded."""
    home = environment.get("HF_HOME", "~/.cache/huggingface")
    cache = environment.get("HF_HUB_CACHE", f"{home}/hub")
    return Path(cache).expanduser() / f"models--{path.replace('/', '--')}"


def _tasks(role: str, path: str) -> TasksProvision:
    if not Path(path).is_file():
        return TasksProvision(role, path, None, "no such file")
    try:
        return TasksProvision(role, path, len(read_tasks(Path(path))), None)
    except TaskFileError as error:
        return TasksProvision(role, path, None, error.problems[0])
