"""The routes of models: the list, one model, and the files of trained models."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import APIRouter, Depends
from fastapi.responses import FileResponse
from protocol.messages import JobRecord, JobState

from services.chassis.deployment import Deployment
from services.gateway.api.calls.routes import validate_session_name
from services.gateway.api.dependencies import Jobs
from services.gateway.api.files import DOWNLOAD
from services.gateway.api.openai.job_object import job_status
from services.gateway.api.openai.lists import Json, list_object
from services.gateway.core.jobs.service import JobService
from services.gateway.core.models.checkpoints import parse_checkpoint_id
from services.gateway.core.models.folders import (
    JOB_ID,
    find_base_models,
    find_fault,
    find_folder,
    find_trained_models,
    list_files,
)
from services.gateway.errors import Problem, conflict, no_model, not_found

router = APIRouter(prefix="/v1", tags=["models"])
session_router = APIRouter(
    prefix="/rollout/{session}/v1", tags=["models"], dependencies=[Depends(validate_session_name)]
)


def model_object(name: str, folder: Path, *, is_trained: bool) -> Json:
    try:
        created = int(folder.stat().st_mtime)
    except OSError:  # just deleted
        created = 0
    owner = "weir" if is_trained else "system"
    return {"id": name, "object": "model", "created": created, "owned_by": owner}


@session_router.get("/models")
@router.get("/models")
def list_models(jobs: Jobs) -> Json:
    """Every model that a job can start from: base models by name, then those of jobs."""
    deployment = jobs.service.deployment
    base = find_base_models(deployment)
    trained = find_trained_models(deployment)
    objects = [model_object(name, folder, is_trained=True) for name, folder in trained.items()]
    objects.sort(key=lambda model: model["created"], reverse=True)
    base_objects = [model_object(name, folder, is_trained=False) for name, folder in base.items()]
    return list_object(base_objects + objects, has_more=False)


@router.get("/models/{model:path}")
def get_model(model: str, jobs: Jobs) -> Json:
    """One model."""
    deployment = jobs.service.deployment
    folder = _usable_folder(model, deployment)
    is_trained = folder.is_relative_to(deployment.jobs_dir.resolve())
    return model_object(model, folder, is_trained=is_trained)


@router.delete("/models/{model:path}")
async def delete_model(model: str, jobs: Jobs) -> Json:
    """Delete the model that a job has trained."""
    if not JOB_ID.fullmatch(model):
        await asyncio.to_thread(_usable_folder, model, jobs.service.deployment)
        message = f"only models that a job has trained can be deleted here, got {model!r}"
        raise Problem(403, message, param="id", code="not_deletable")
    await jobs.delete_model(model)
    return {"id": model, "object": "model", "deleted": True}


@router.get("/fine_tuning/jobs/{job_id}/model")
async def list_model_files(job_id: str, jobs: Jobs) -> Json:
    """The files of a job's model, or of a checkpoint's, if the id is one."""
    folder = await _trained_folder(job_id, jobs)
    files = await asyncio.to_thread(list_files, folder)
    objects = [
        {"name": name, "bytes": file.st_size, "modified_us": file.st_mtime_ns // 1000}
        for name, file in sorted(files.items())
    ]
    return {"object": "list", "data": objects}


@router.get("/fine_tuning/jobs/{job_id}/model/{name}", **DOWNLOAD)
async def get_model_file(job_id: str, name: str, jobs: Jobs) -> FileResponse:
    """One file; ``Range`` and ``If-Range`` resume an interrupted download."""
    folder = await _trained_folder(job_id, jobs)
    if name not in await asyncio.to_thread(list_files, folder):
        raise not_found("file in this model,", name)
    return FileResponse(folder / name, media_type="application/octet-stream", filename=name)


def _usable_folder(model: str, deployment: Deployment) -> Path:
    """Return the folder of a model; 404 if no job can start from it."""
    folder = find_folder(model, deployment)
    if folder is None or find_fault(folder, deployment):
        raise not_found("model", model)
    return folder


async def _trained_folder(model: str, jobs: JobService) -> Path:
    """Return the folder of a job's or a checkpoint's model; 404 or 409 says why there is none."""
    deployment = jobs.service.deployment
    checkpoint = parse_checkpoint_id(model, deployment.jobs_dir)
    if checkpoint is not None:
        if not await asyncio.to_thread(checkpoint.model.is_dir):
            raise no_model(
                f"checkpoint {checkpoint.id} has no model: a newer checkpoint has replaced it; "
                f"{checkpoint.job_id} has those of {_list_steps(checkpoint.folder.parent)}"
            )
        return checkpoint.model
    if await jobs.is_forgotten(model):
        folder = find_folder(model, deployment)
        if folder is None:
            raise not_found("model", model)
        return folder
    return _job_model_folder(await jobs.get(model), deployment.job_dir(model))


def _list_steps(checkpoints: Path) -> str:
    """Return the steps of a job's checkpoints in words."""
    names = sorted(folder.parent.name for folder in checkpoints.glob("step-*/model"))
    steps = [str(int(name.removeprefix("step-"))) for name in names]
    return f"the steps {', '.join(steps)}" if steps else "no step"


def _job_model_folder(record: JobRecord, job_dir: Path) -> Path:
    if not record.state.is_final:
        total = "" if record.recipe.client else f" of {record.recipe.training.steps}"
        progress = f"{job_status(record)} at step {record.step}{total}"
        message = (
            f"job {record.id} is {progress}; it has a model once it has succeeded, and now "
            f"{record.id}@STEP of {_list_steps(job_dir / 'checkpoints')}"
        )
        raise conflict(message, param="id")
    if record.state is not JobState.SUCCEEDED:
        reason = f": {record.error}" if record.error else ""
        raise no_model(f"job {record.id} {record.state}, so it has no model{reason}")
    path = record.result.get("model")
    if not isinstance(path, str):
        raise no_model(f"job {record.id} succeeded without writing a model")
    folder = Path(path).resolve()
    if job_dir.resolve() not in folder.parents or not folder.is_dir():
        raise no_model(
            f"the model of job {record.id} is not in the job's folder: was it deleted, or does "
            "WEIR_DATA_DIR differ between gateway and learner?"
        )
    return folder
