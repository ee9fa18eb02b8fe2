"""The prompts of a recipe's task files, as the model's own template makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from protocol.tasks import TaskFileError, read_tasks

from services.chassis.renderer import check_prompts
from services.learner.planning.plan import Plan


def prompt_remarks(plan: Plan) -> Iterator[str]:
    """How many prompts do not fit; nothing where the model is not here, or an environment asks."""
    recipe, folder = plan.recipe, plan.models[0].folder
    if folder is None or recipe.environment is not None:
        return
    files = [(recipe.tasks.train, recipe.rollout.sampling)]
    for name, evaluation in recipe.evaluations.items():
        files.append((recipe.held_out_files[name], recipe.sampling_of(evaluation)))
    for path, sampling in files:
        with suppress(TaskFileError):  # which has a warning of its own
            tasks = read_tasks(Path(path))
            measured = check_prompts(tasks, folder, recipe.model, sampling.max_tokens)
            if text := asyncio.run(measured):
                yield f"{path}: {text}"
