"""The folders of jobs that are deleted: put aside by one rename, then removed."""

from __future__ import annotations

import shutil
from pathlib import Path

from protocol import weights
from protocol.recipe import Recipe

from services.chassis.deployment import Deployment
from services.gateway.errors import conflict

_ASIDE = ".deleted-"
COPIES = "base"  # of the models that a job starts from: all that its submission leaves


def holds_work(folder: Path) -> bool:
    """Whether a job has left more in its folder than its submission did."""
    return folder.is_dir() and any(path.name != COPIES for path in folder.iterdir())


def put_aside(folder: Path) -> Path:
    """Take a job's folder out of sight, if there is one; returns where it is to be removed."""
    aside = folder.with_name(_ASIDE + folder.name)
    if folder.exists():
        remove(aside)
        folder.rename(aside)
    return aside


def remove(aside: Path) -> None:
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(jobs: Path) -> None:
    """Remove what a gateway left that ended before it had removed it."""
    for aside in jobs.glob(f"{_ASIDE}*"):
        remove(aside)


def with_own_models(recipe: Recipe, deployment: Deployment, job_id: str) -> Recipe:
    """The recipe of a new job, with copies in its own folder for what other jobs have made.

    They share their content with the original where the disk can do that, and take no room.

    Raises:
        Problem: 409 if the model went meanwhile, or there is no room for a copy.
    """
    jobs_dir, changes = deployment.jobs_dir.resolve(), {}
    copies = jobs_dir / job_id / COPIES
    shutil.rmtree(copies, ignore_errors=True)  # of an earlier try
    for name, part in (("model", recipe.model), ("critic", recipe.critic)):
        if part is None or part.path is None or not Path(part.path).is_relative_to(jobs_dir):
            continue
        try:
            weights.copy(Path(part.path), copies / name)
        except OSError as error:
            remove(copies.parent)
            why = f"{name}: it cannot be copied for the new job: {error.strerror}"
            raise conflict(f"{why}; GET /v1/models lists what there is", param=name) from error
        changes[name] = part.model_copy(update={"path": str(copies / name)})
    return recipe.model_copy(update=changes)
