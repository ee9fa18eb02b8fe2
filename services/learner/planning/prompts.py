"""Whether the prompts of a recipe's task files fit, as the model's own template renders them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from protocol.tasks import TaskFileError, read_tasks

from services.chassis.renderer import check_prompts
from services.learner.planning.plan import Plan


def prompt_remarks(plan: Plan) -> Iterator[str]:
    """Count the prompts that do not fit, unless the model is missing or an environment asks."""
    recipe = plan.recipe
    folder = plan.models[0].folder
    if folder is None or recipe.environment is not None:
        return
    files = [(path, recipe.rollout.sampling) for path in recipe.tasks.train_files.values()]
    for name, evaluation in recipe.evaluations.items():
        files.append((recipe.held_out_files[name], recipe.evaluation_sampling(evaluation)))
    for path, sampling in files:
        with suppress(TaskFileError):  # it has a problem of its own
            tasks = read_tasks(Path(path))
            problem = asyncio.run(check_prompts(tasks, folder, recipe.model, sampling.max_tokens))
            if problem:
                yield f"{path}: {problem}"
