"""The routes of models."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse
from protocol.messages import JobRecord, JobState

from services.chassis.deployment import Deployment
from services.gateway.errors import Problem, conflict, no_model, not_found
from services.gateway.jobs.service import Jobs, JobService
from services.gateway.models.catalog import all_models, model_file, model_files, model_object
from services.gateway.models.checkpoints import checkpoint_of
from services.gateway.models.folders import JOB_ID, fault_of, find_folder
from services.gateway.openai.job_object import status_of
from services.gateway.routes.answers import DOWNLOAD, Json, page_of

router = APIRouter(prefix="/v1", tags=["models"])


@router.get("/models")
def list_models(jobs: Jobs) -> Json:
    """Every model that a job can start from: base models, and what jobs have made."""
    return page_of(all_models(jobs.service.deployment), has_more=False)


@router.get("/models/{model:path}")
def get_model(model: str, jobs: Jobs) -> Json:
    """One model."""
    deployment = jobs.service.deployment
    folder = _usable(model, deployment)
    is_made = folder.is_relative_to(deployment.jobs_dir.resolve())
    return model_object(model, folder, "weir" if is_made else "system")


@router.delete("/models/{model:path}")
async def delete_model(model: str, jobs: Jobs) -> Json:
    """Delete the model that a job has trained."""
    if not JOB_ID.fullmatch(model):
        await asyncio.to_thread(_usable, model, jobs.service.deployment)
        message = f"{model!r} was not trained by a job; only models that were can be deleted here"
        raise Problem(403, message, param="id", code="not_deletable")
    await jobs.delete_model(model)
    return {"id": model, "object": "model", "deleted": True}


@router.get("/fine_tuning/jobs/{job_id}/model")
async def list_model_files(job_id: str, jobs: Jobs) -> Json:
    """The files of the model that a job has trained; with a checkpoint's id, of the one in that."""
    folder = await _made_folder(job_id, jobs)
    return {"object": "list", "data": await asyncio.to_thread(model_files, folder)}


@router.get(
    "/fine_tuning/jobs/{job_id}/model/{name}",
    response_class=FileResponse,
    responses=DOWNLOAD,
)
async def get_model_file(job_id: str, name: str, jobs: Jobs) -> FileResponse:
    """One of them; ``Range`` and ``If-Range`` go on with an interrupted download."""
    folder = await _made_folder(job_id, jobs)
    path = await asyncio.to_thread(model_file, folder, name)
    return FileResponse(path, media_type="application/octet-stream", filename=name)


def _usable(model: str, deployment: Deployment) -> Path:
    """The folder of a model; 404 if no job can start from it."""
    folder = find_folder(model, deployment)
    if folder is None or fault_of(folder, deployment):
        raise not_found("model", model)
    return folder


async def _made_folder(made_by: str, jobs: JobService) -> Path:
    """404 or 409 says why there is no model."""
    deployment = jobs.service.deployment
    if (checkpoint := checkpoint_of(made_by, deployment.jobs_dir)) is not None:
        if not await asyncio.to_thread(checkpoint.model.is_dir):
            raise no_model(
                f"there is no model of checkpoint {checkpoint.id}: a newer one has taken its "
                f"place; the checkpoints of {checkpoint.job_id} are listed"
            )
        return checkpoint.model
    if await jobs.is_forgotten(made_by):
        folder = find_folder(made_by, deployment)
        if folder is None:
            raise not_found("model", made_by)
        return folder
    return _folder_of_job(await jobs.get(made_by), deployment.job_dir(made_by))


def _folder_of_job(record: JobRecord, job_dir: Path) -> Path:
    if not record.state.is_final:
        progress = f"{status_of(record)} at step {record.step} of {record.recipe.training.steps}"
        message = f"job {record.id} is {progress}; it has a model once it has succeeded"
        raise conflict(message, param="id")
    if record.state is not JobState.SUCCEEDED:
        reason = f": {record.error}" if record.error else ""
        raise no_model(f"job {record.id} {record.state}, so it has no model{reason}")
    named = record.result.get("model")
    if not isinstance(named, str):
        raise no_model(f"job {record.id} succeeded without writing a model")
    folder = Path(named).resolve()
    if job_dir.resolve() not in folder.parents or not folder.is_dir():
        raise no_model(
            f"the model of job {record.id} is not in the job's folder, where this gateway looks: "
            "was it deleted, or is WEIR_DATA_DIR another one than the learner's?"
        )
    return folder
