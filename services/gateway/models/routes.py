"""The routes of models."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

from services.chassis.deployment import Deployment
from services.gateway.errors import Problem, not_found
from services.gateway.jobs.desk import Desk, JobDesk
from services.gateway.models.catalog import all_models, model_object
from services.gateway.models.checkpoints import checkpoint_of
from services.gateway.models.files import (
    folder_of_checkpoint,
    folder_of_job,
    model_file,
    model_files,
)
from services.gateway.models.folders import JOB_ID, fault_of, find_folder
from services.gateway.openapi import DOWNLOAD, problems
from services.gateway.paging import Json, page_of

models = APIRouter(prefix="/v1", tags=["models"])


@models.get("/models")
def list_models(desk: Desk) -> Json:
    """Every model that a job can start from: base models, and what jobs have made."""
    return page_of(all_models(desk.service.deployment), has_more=False)


@models.get("/models/{model:path}")
def get_model(model: str, desk: Desk) -> Json:
    """One model."""
    deployment = desk.service.deployment
    folder = _usable(model, deployment)
    is_made = folder.is_relative_to(deployment.jobs_dir.resolve())
    return model_object(model, folder, "weir" if is_made else "system")


@models.delete("/models/{model:path}", responses=problems(409))
async def delete_model(model: str, desk: Desk) -> Json:
    """Delete the model that a job has trained."""
    if not JOB_ID.fullmatch(model):
        await asyncio.to_thread(_usable, model, desk.service.deployment)
        message = f"{model!r} was not trained by a job; only models that were can be deleted here"
        raise Problem(403, message, param="id", code="not_deletable")
    await desk.delete_model(model)
    return {"id": model, "object": "model", "deleted": True}


@models.get("/fine_tuning/jobs/{job_id}/model", responses=problems(409))
async def list_model_files(job_id: str, desk: Desk) -> Json:
    """The files of the model that a job has trained; with a checkpoint's id, of the one in that."""
    folder = await _made_folder(job_id, desk)
    return {"object": "list", "data": await asyncio.to_thread(model_files, folder)}


@models.get(
    "/fine_tuning/jobs/{job_id}/model/{name}",
    response_class=FileResponse,
    responses=problems(409) | DOWNLOAD,
)
async def get_model_file(job_id: str, name: str, desk: Desk) -> FileResponse:
    """One of them; ``Range`` and ``If-Range`` go on with an interrupted download."""
    folder = await _made_folder(job_id, desk)
    path = await asyncio.to_thread(model_file, folder, name)
    return FileResponse(path, media_type="application/octet-stream", filename=name)


def _usable(model: str, deployment: Deployment) -> Path:
    """The folder of a model that a job can start from.

    Raises:
        Problem: 404 if there is none.
    """
    folder = find_folder(model, deployment)
    if folder is None or fault_of(folder, deployment):
        raise not_found("model", model)
    return folder


async def _made_folder(made_by: str, desk: JobDesk) -> Path:
    deployment = desk.service.deployment
    if (checkpoint := checkpoint_of(made_by, deployment.jobs_dir)) is not None:
        return await asyncio.to_thread(folder_of_checkpoint, checkpoint)
    if await desk.is_forgotten(made_by):
        folder = find_folder(made_by, deployment)
        if folder is None:
            raise not_found("model", made_by)
        return folder
    return folder_of_job(await desk.get(made_by), deployment.job_dir(made_by))
