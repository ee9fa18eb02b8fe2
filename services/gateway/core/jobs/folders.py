"""The folders of jobs: copies of models for new jobs, and removal of deleted jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protocol import weights
from protocol.names import Table
from protocol.recipe import Recipe

from services.chassis.deployment import Deployment
from services.gateway.core.models.folders import DELETED_PREFIX, remove
from services.gateway.errors import conflict

MODEL_COPIES = "base"  # the only folder that exists before a job has begun


def holds_work(job_dir: Path) -> bool:
    """Whether a job has left more in its folder than its submission did."""
    return job_dir.is_dir() and any(path.name != MODEL_COPIES for path in job_dir.iterdir())


def remove_leftovers(jobs_dir: Path) -> None:
    """Remove the folders that an earlier gateway process could not remove before it ended."""
    for folder in jobs_dir.glob(f"{DELETED_PREFIX}*"):
        remove(folder)


def copy_models(recipe: Recipe, deployment: Deployment, job_id: str) -> Recipe:
    """Copy the models of other jobs into a new job's folder, and return the recipe with the copies.

    The copies share disk space with the originals if the file system can do that.

    Raises:
        Problem: 409 if the model is gone, or there is no room for a copy.
    """
    jobs_dir = deployment.jobs_dir.resolve()
    copies = jobs_dir / job_id / MODEL_COPIES
    remove(copies)  # an earlier try may have left some

    def copy(part: Table | None, name: str, field: str = "path") -> Any:
        path = Path(getattr(part, field, None) or "")
        if part is None or not path.is_relative_to(jobs_dir):
            return part
        try:
            weights.copy(path, copies / name)
        except OSError as error:
            remove(copies.parent)
            reason = f"{name}: cannot be copied for the new job: {error.strerror}"
            raise conflict(f"{reason}; GET /v1/models lists all models", param=name) from error
        return part.model_copy(update={field: str(copies / name)})

    lora = copy(recipe.model.lora, "adapter", "adapter")
    model = copy(recipe.model, "model").model_copy(update={"lora": lora})
    return recipe.model_copy(update={"model": model, "critic": copy(recipe.critic, "critic")})
