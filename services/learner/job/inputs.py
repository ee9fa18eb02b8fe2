"""What a job starts from: its tasks, and the models, checked before any rank loads them."""

from __future__ import annotations

import os
from pathlib import Path

from protocol.messages import Task
from protocol.recipe import Recipe
from protocol.tasks import TaskFileError, read_tasks

from deploy.placement import parse
from services.chassis.deployment import Deployment
from services.learner.model_source import model_folder
from services.learner.training.model_check import check_models, check_split, check_targets


def tasks_of(recipe: Recipe, files: Path) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """The tasks to train on, and those that are held out, as many as an evaluation takes."""
    train = _read_tasks(files / f"{recipe.tasks.train}.jsonl")
    if recipe.evaluation is None or recipe.tasks.held_out is None:
        return train, ()
    held_out = _read_tasks(files / f"{recipe.tasks.held_out}.jsonl")
    return train, held_out[: recipe.evaluation.tasks]


def _read_tasks(path: Path) -> tuple[Task, ...]:
    try:
        return read_tasks(path)
    except TaskFileError as error:
        if isinstance(error.__cause__, OSError):  # then its content is not to blame
            raise error.__cause__ from None
        raise


def checked_models(recipe: Recipe, deployment: Deployment) -> tuple[Path, Path | None]:
    """Where the policy and the critic start from; the stack can train them, and sample from one."""
    policy, critic = _model_folders(recipe, deployment)
    check_models(policy, critic, recipe.model.max_context)
    check_targets(policy, recipe.model.lora)
    line = os.environ.get("WEIR_GPUS")
    check_split(policy, parse(line) if line else None)
    return policy, critic


def _model_folders(recipe: Recipe, deployment: Deployment) -> tuple[Path, Path | None]:
    """Where the policy starts from, and the critic if there is one."""
    policy = model_folder(recipe.model.path, deployment)
    if recipe.critic is None:
        return policy, None
    if recipe.critic.path is None:
        return policy, policy
    return policy, model_folder(recipe.critic.path, deployment, "critic.path")
