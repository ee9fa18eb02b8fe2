"""A job's own copy of a model that another job has made, so that it does not matter what becomes of
that one: a running job keeps its two newest checkpoints, and a result can be deleted.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from protocol import weights
from protocol.recipe import Recipe

from services.chassis.deployment import Deployment
from services.gateway.errors import conflict
from services.gateway.jobs.folders import COPIES


def with_own_models(recipe: Recipe, deployment: Deployment, job_id: str) -> Recipe:
    """The recipe of a new job, with copies in its own folder for what other jobs have made.

    They share their content with the original where the disk can do that, and take no room.

    Raises:
        Problem: 409 if the model went meanwhile, or there is no room for a copy.
    """
    jobs_dir, changes = deployment.jobs_dir.resolve(), {}
    for name, part in (("model", recipe.model), ("critic", recipe.critic)):
        if part is None or part.path is None or not Path(part.path).is_relative_to(jobs_dir):
            continue
        own = jobs_dir / job_id / COPIES / name
        try:
            shutil.rmtree(own, ignore_errors=True)
            weights.copy(Path(part.path), own)
        except OSError as error:
            why = f"{name}: it cannot be copied for the new job: {error.strerror}"
            raise conflict(f"{why}; GET /v1/models lists what there is", param=name) from error
        changes[name] = part.model_copy(update={"path": str(own)})
    return recipe.model_copy(update=changes)
