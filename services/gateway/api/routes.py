"""The routes of files, jobs, graders and models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from protocol.messages import JobRecord, JobState, Requested

from services.chassis.deployment import Deployment
from services.gateway.api.calls.routes import validate_session_name
from services.gateway.api.openai.graders import (
    GraderToRun,
    GraderToValidate,
    refuse_what_graders_lack,
    reward_of,
    run_object,
    run_trial,
)
from services.gateway.api.openai.job_object import (
    CANCELLABLE,
    ENDED,
    AnyJob,
    JobFilter,
    StatusName,
    job_object,
    status_of,
)
from services.gateway.api.openai.submission import JobRequest
from services.gateway.api.places import TRIALS, UPLOADS, WAITING
from services.gateway.core.files.store import StoredFile
from services.gateway.core.jobs.events import (
    RESULT_NAME,
    Order,
    checked_place,
    end_quietly,
    events_page,
    follow_until_ended,
    job_with_results,
    result_file,
    result_job,
)
from services.gateway.core.jobs.folders import remove
from services.gateway.core.jobs.service import Jobs, JobService, Repeat
from services.gateway.core.models.checkpoints import (
    checkpoint_object,
    checkpoint_of,
    kept_checkpoints,
)
from services.gateway.core.models.folders import (
    JOB_ID,
    all_models,
    fault_of,
    find_folder,
    model_file,
    model_files,
    model_object,
)
from services.gateway.errors import Problem, conflict, no_model, not_found, wrong

Json = dict[str, Any]
Limit = Annotated[int, Query(ge=1, le=100)]
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_DOWNLOAD: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file", "content": _BYTES},
    206: {"description": "The part of it that Range asked for", "content": _BYTES},
    416: {"description": "The file is shorter", "content": {"text/plain": {}}},
}
_DOWNLOADS: dict[str, Any] = {
    "response_class": FileResponse,
    "responses": _DOWNLOAD,
    "dependencies": [Depends(WAITING)],
}
_FORM = {
    "type": "object",
    "required": ["purpose", "file"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"const": "fine-tune"},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer"},
    },
}
_UPLOAD = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}}
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page; with stream=true server-sent events, each an `id` and an event of "
        "such a page as `data`, and `[DONE]` at the end",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
_METADATA: dict[str, Any] = {  # the names are the client's, so they are read from the query
    "parameters": [
        {
            "name": "metadata",
            "in": "query",
            "style": "deepObject",
            "explode": True,
            "schema": {"type": "object", "additionalProperties": {"type": "string"}},
        }
    ]
}
_files = APIRouter(prefix="/v1/files", tags=["files"])
_jobs = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["jobs"])
_graders = APIRouter(prefix="/v1/fine_tuning/alpha/graders", tags=["graders"])
_models = APIRouter(prefix="/v1", tags=["models"])
_of_sessions = APIRouter(
    prefix="/rollout/{session}/v1", tags=["models"], dependencies=[Depends(validate_session_name)]
)
ROUTERS = (_files, _jobs, _graders, _models, _of_sessions)


def _page_after(objects: list[Json], after: str | None, limit: int) -> Json:
    if after is not None:
        ids = [each["id"] for each in objects]
        if after not in ids:
            raise wrong("after", f"there is no {after!r} in this list")
        objects = objects[ids.index(after) + 1 :]
    return _page_of(objects[:limit], len(objects) > limit)


def _page_of(objects: Iterable[Json], has_more: bool) -> Json:
    data = list(objects)
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {
        "object": "list",
        "data": data,
        "first_id": first,
        "last_id": last,
        "has_more": has_more,
    }


# ---------------------------------------------------------------------- files


@_files.post("", openapi_extra=_UPLOAD, dependencies=[UPLOADS])
async def upload_file(request: Request) -> StoredFile:
    """Keep a file of tasks; its id names it in a job."""
    return await request.app.state.uploads.receive(request)


@_files.get("")
def list_files(
    jobs: Jobs,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> Json:
    """Every file, newest first unless ``order`` is ``asc``."""
    found = jobs.files.all() if purpose in {None, "fine-tune"} else []
    if order == "asc":
        found.reverse()
    return _page_after([stored.model_dump() for stored in found], after, limit)


@_files.get("/{file_id}")
async def get_file(file_id: str, jobs: Jobs) -> Json:
    """What is known about a file."""
    if job_id := result_job(file_id):
        return (await result_file(jobs, job_id))[0]
    return (await asyncio.to_thread(jobs.files.get, file_id)).model_dump()


@_files.get("/{file_id}/content", **_DOWNLOADS)
async def get_file_content(file_id: str, jobs: Jobs) -> Response:
    """The file as it was uploaded, or what a job's steps measured."""
    if job_id := result_job(file_id):
        headers = {"Content-Disposition": f'attachment; filename="{RESULT_NAME}"'}
        _, content = await result_file(jobs, job_id)
        return Response(content, headers=headers, media_type="application/octet-stream")
    stored = await asyncio.to_thread(jobs.files.get, file_id)
    path = await asyncio.to_thread(jobs.files.content, file_id)
    return FileResponse(path, media_type="application/octet-stream", filename=stored.filename)


@_files.delete("/{file_id}")
async def delete_file(file_id: str, jobs: Jobs) -> Json:
    """Delete a file that no unfinished job uses."""
    if job_id := result_job(file_id):
        await job_with_results(jobs, job_id)
        raise conflict(f"{file_id} goes with its job: DELETE {job_id}", param="file_id")
    await jobs.delete_file(file_id)
    return {"id": file_id, "object": "file", "deleted": True}


# ---------------------------------------------------------------------- jobs


def _repeat(
    request: Request,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
    x_stainless_retry_count: Annotated[int, Header()] = 0,
) -> Repeat:
    _, _, key = request.headers["authorization"].partition(" ")  # however the scheme is spelt
    return Repeat(idempotency_key, f"Bearer {key.strip()}", x_stainless_retry_count)


def _sought(
    request: Request,
    status: Annotated[list[StatusName], Query()] = [],  # noqa: B006  (FastAPI copies it)
    name: str = "",
    model: str = "",
    find: Annotated[str, Query(description="in the id, name, model or a label")] = "",
) -> JobFilter:
    """The jobs that a query names, with the pairs of its ``metadata[name]=value``."""
    labels = {
        key.removeprefix("metadata[").removesuffix("]"): value
        for key, value in request.query_params.items()
        if key.startswith("metadata[") and key.endswith("]")
    }
    return JobFilter.of(status, text=find, name=name, model=model, metadata=labels)


def _some(sought: Annotated[JobFilter, Depends(_sought)]) -> JobFilter:
    if sought.is_empty:
        raise wrong("status", "say which jobs: by status, name, model, find or metadata[name]")
    return sought


Sought = Annotated[JobFilter, Depends(_sought)]
Some = Annotated[JobFilter, Depends(_some)]


@_jobs.post("")
async def submit_job(
    body: JobRequest, jobs: Jobs, repeat: Annotated[Repeat, Depends(_repeat)]
) -> Json:
    """Queue a job."""
    return job_object(await jobs.submit(body, repeat))


def _with_estimate(job: AnyJob, request: Request) -> Json:
    watchdog, told = request.app.state.watchdog, job_object(job)
    place = watchdog.places.get(job.id) if told["status"] == "queued" else None
    own = told["weir"] | {"place": place}
    return told | {"estimated_finish": watchdog.estimated_finish(job), "weir": own}


@_jobs.get("", openapi_extra=_METADATA)
async def list_jobs(
    jobs: Jobs, request: Request, sought: Sought, after: str | None = None, limit: Limit = 20
) -> Json:
    """Jobs, newest first."""
    records, has_more = await jobs.page(after, limit, sought)
    return _page_of((_with_estimate(record, request) for record in records), has_more)


@_jobs.post("/cancel", openapi_extra=_METADATA)
async def cancel_jobs(jobs: Jobs, sought: Some) -> Json:
    """Ask up to 100 jobs to end; ``has_more`` says whether others are left."""
    done = jobs.for_each(sought.among(CANCELLABLE), lambda job_id: cancel_job(job_id, jobs))
    return _page_of(*await done)


@_jobs.delete("", openapi_extra=_METADATA)
async def delete_jobs(jobs: Jobs, sought: Some, background: BackgroundTasks) -> Json:
    """Delete all of up to 100 jobs that have ended; ``has_more`` says whether others are left."""
    done = jobs.for_each(sought.among(ENDED), lambda job_id: delete_job(job_id, jobs, background))
    return _page_of(*await done)


@_jobs.get("/{job_id}")
async def get_job(job_id: str, jobs: Jobs, request: Request) -> Json:
    """One job."""
    return _with_estimate(await jobs.find(job_id), request)


@_jobs.delete("/{job_id}")
async def delete_job(job_id: str, jobs: Jobs, background: BackgroundTasks) -> Json:
    """Delete all of a job that has ended: record, events, samples, checkpoints and model."""
    background.add_task(remove, await jobs.delete(job_id))
    return {"id": job_id, "object": "fine_tuning.job", "deleted": True}


@_jobs.post("/{job_id}/cancel")
async def cancel_job(job_id: str, jobs: Jobs) -> Json:
    """Ask a job to end."""
    return job_object(await jobs.ask(job_id, Requested.CANCEL))


@_jobs.post("/{job_id}/pause")
async def pause_job(job_id: str, jobs: Jobs) -> Json:
    """Ask a job to write a checkpoint and rest."""
    return job_object(await jobs.ask(job_id, Requested.PAUSE))


@_jobs.post("/{job_id}/resume")
async def resume_job(job_id: str, jobs: Jobs) -> Json:
    """Ask a paused job to go on."""
    return job_object(await jobs.ask(job_id, Requested.RUN))


async def _place_of_stream(request: Request, stream: bool = False) -> AsyncIterator[None]:
    with WAITING.take(request) if stream else nullcontext():
        yield


@_jobs.get(
    "/{job_id}/events",
    response_model=None,
    responses=_EVENTS,
    dependencies=[Depends(_place_of_stream)],
)
async def list_events(
    job_id: str,
    jobs: Jobs,
    request: Request,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    order: Order = "desc",
    stream: bool = False,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Json | Response:
    """A job's events, newest first; with ``stream=true`` as server-sent events, oldest first."""
    place = checked_place(after, "after")
    await jobs.find(job_id)
    if not stream:
        return _page_of(*await events_page(jobs, job_id, place, limit, order))
    if last_event_id:
        place = checked_place(last_event_id, "Last-Event-ID")
    chunks = end_quietly(follow_until_ended(jobs, job_id, place or "0"))
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(chunks, 200, headers, media_type="text/event-stream")


@_jobs.get("/{job_id}/why")
async def get_why(job_id: str, request: Request, jobs: Jobs) -> Json:
    """Whether a job moves, what it waits for, and what every process does and stream holds."""
    return request.app.state.watchdog.why(await jobs.find(job_id))


@_jobs.get("/{job_id}/checkpoints")
async def list_checkpoints(
    job_id: str, jobs: Jobs, after: str | None = None, limit: Limit = 10
) -> Json:
    """The checkpoints that a job has kept, newest first."""
    await jobs.find(job_id)
    job_dir = jobs.service.deployment.job_dir(job_id)
    kept = await asyncio.to_thread(lambda: [*map(checkpoint_object, kept_checkpoints(job_dir))])
    return _page_after(kept, after, limit)


@_graders.post("/validate")
async def validate_grader(body: GraderToValidate, jobs: Jobs) -> Json:
    """Say what a job would say about this grader."""
    await refuse_what_graders_lack(jobs.exchange, reward_of(body.grader, "grader"), "grader")
    return body.model_dump(mode="json", exclude_unset=True)


@_graders.post("/run", dependencies=[TRIALS])
async def run_grader(body: GraderToRun, jobs: Jobs) -> Json:
    """Grade one response with this grader, or those of a job, as a job would."""
    reward = None if body.job is None else (await jobs.get(body.job)).recipe.reward
    return run_object(body.grader, await run_trial(jobs.exchange, body.trial(reward)))


# ---------------------------------------------------------------------- models


@_of_sessions.get("/models")
@_models.get("/models")
def list_models(jobs: Jobs) -> Json:
    """Every model that a job can start from: base models, and what jobs have made."""
    return _page_of(all_models(jobs.service.deployment), has_more=False)


@_models.get("/models/{model:path}")
def get_model(model: str, jobs: Jobs) -> Json:
    """One model."""
    deployment = jobs.service.deployment
    folder = _usable(model, deployment)
    is_made = folder.is_relative_to(deployment.jobs_dir.resolve())
    return model_object(model, folder, "weir" if is_made else "system")


@_models.delete("/models/{model:path}")
async def delete_model(model: str, jobs: Jobs) -> Json:
    """Delete the model that a job has trained."""
    if not JOB_ID.fullmatch(model):
        await asyncio.to_thread(_usable, model, jobs.service.deployment)
        message = f"{model!r} was not trained by a job; only models that were can be deleted here"
        raise Problem(403, message, param="id", code="not_deletable")
    await jobs.delete_model(model)
    return {"id": model, "object": "model", "deleted": True}


@_models.get("/fine_tuning/jobs/{job_id}/model")
async def list_model_files(job_id: str, jobs: Jobs) -> Json:
    """The files of the model that a job has trained; with a checkpoint's id, of the one in that."""
    folder = await _made_folder(job_id, jobs)
    return {"object": "list", "data": await asyncio.to_thread(model_files, folder)}


@_models.get("/fine_tuning/jobs/{job_id}/model/{name}", **_DOWNLOADS)
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
        most = "" if record.recipe.client else f" of {record.recipe.training.steps}"
        progress = f"{status_of(record)} at step {record.step}{most}"
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
