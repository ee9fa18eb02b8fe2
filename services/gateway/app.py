"""The routes of the REST surface, in the shape of OpenAI's fine-tuning API, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from protocol.messages import Requested

from services.chassis.service import Service
from services.gateway import errors
from services.gateway.door import Bounded, Guarded, Measured
from services.gateway.errors import Problem
from services.gateway.events import (
    checked_place,
    checkpoints,
    events_page,
)
from services.gateway.files import MAX_FILE_BYTES, FileShelf, StoredFile, read_upload
from services.gateway.following import Feeds, end_quietly
from services.gateway.graders import GraderToValidate, checks_of
from services.gateway.jobs import JobDesk, Repeat, job_object
from services.gateway.page import routes as page
from services.gateway.samples.reading import Samples
from services.gateway.samples.routes import samples
from services.gateway.submission import JobRequest
from services.gateway.trained_model import model_file, model_files
from services.gateway.watch.watchdog import Watchdog

files = APIRouter(prefix="/v1/files", tags=["files"])
jobs = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["jobs"])
graders = APIRouter(prefix="/v1/fine_tuning/alpha/graders", tags=["graders"])


def create_app(
    service: Service, *, watchdog: Watchdog | None = None, max_file_bytes: int = MAX_FILE_BYTES
) -> FastAPI:
    """The gateway's application; the chassis adds /healthz, /readyz and the like in front of it."""
    app = FastAPI(title="Weir", description="Reinforcement learning for language models")
    shelf = FileShelf(service.deployment.files_dir, max_file_bytes)
    app.state.desk = JobDesk(service, shelf)
    app.state.feeds = Feeds(app.state.desk)
    app.state.samples = Samples()
    app.state.watchdog = watchdog or Watchdog()
    app.include_router(files)
    app.include_router(jobs)
    app.include_router(samples)
    app.include_router(graders)
    page.install(app)
    errors.install(app)
    # The last one added is the first one passed.
    app.add_middleware(Bounded, max_file_bytes=max_file_bytes)
    app.add_middleware(Guarded, keys=service.deployment.api_keys)
    app.add_middleware(Measured)
    return app


def _desk(request: Request) -> JobDesk:
    return request.app.state.desk


def _repeat(
    request: Request,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
    x_stainless_retry_count: Annotated[int, Header()] = 0,
) -> Repeat:
    return Repeat(idempotency_key, request.headers["authorization"], x_stainless_retry_count)


def _metadata(request: Request) -> dict[str, str]:
    """The pairs of ``metadata[name]=value`` in the query."""
    return {
        name.removeprefix("metadata[").removesuffix("]"): value
        for name, value in request.query_params.items()
        if name.startswith("metadata[") and name.endswith("]")
    }


Json = dict[str, Any]
Limit = Annotated[int, Query(ge=1, le=100)]
LongLimit = Annotated[int, Query(ge=1, le=1000)]
Desk = Annotated[JobDesk, Depends(_desk)]


@files.post("")
async def upload_file(request: Request, desk: Desk) -> StoredFile:
    """Keep a file of tasks; its id names it in a job."""
    async with request.form(max_files=1, max_fields=8) as form:
        source, name = read_upload(form)
        return await asyncio.to_thread(desk.files.put, source, name)


@files.get("")
def list_files(desk: Desk, after: str | None = None, limit: LongLimit = 1000) -> Json:
    """Every file, newest first."""
    return _page(*_after([stored.model_dump() for stored in desk.files.all()], after, limit))


@files.get("/{file_id}")
def get_file(file_id: str, desk: Desk) -> StoredFile:
    """What is known about a file."""
    return desk.files.get(file_id)


@files.get("/{file_id}/content")
def get_file_content(file_id: str, desk: Desk) -> FileResponse:
    """The file as it was uploaded."""
    stored = desk.files.get(file_id)
    return FileResponse(desk.files.path(file_id), 200, filename=stored.filename)


@files.delete("/{file_id}")
async def delete_file(file_id: str, desk: Desk) -> Json:
    """Delete a file that no unfinished job uses."""
    await desk.delete_file(file_id)
    return {"id": file_id, "object": "file", "deleted": True}


@jobs.post("")
async def submit_job(
    body: JobRequest, desk: Desk, repeat: Annotated[Repeat, Depends(_repeat)]
) -> Json:
    """Queue a job."""
    return job_object(await desk.submit(body, repeat))


@jobs.get("")
async def list_jobs(
    desk: Desk,
    metadata: Annotated[dict[str, str], Depends(_metadata)],
    after: str | None = None,
    limit: Limit = 20,
) -> Json:
    """Jobs, newest first."""
    records, has_more = await desk.page(after, limit, metadata)
    return _page(map(job_object, records), has_more)


@jobs.get("/{job_id}")
async def get_job(job_id: str, desk: Desk) -> Json:
    """One job."""
    return job_object(await desk.find(job_id))


@jobs.post("/{job_id}/cancel")
async def cancel_job(job_id: str, desk: Desk) -> Json:
    """Ask a job to end."""
    return job_object(await desk.ask(job_id, Requested.CANCEL))


@jobs.post("/{job_id}/pause")
async def pause_job(job_id: str, desk: Desk) -> Json:
    """Ask a job to write a checkpoint and rest."""
    return job_object(await desk.ask(job_id, Requested.PAUSE))


@jobs.post("/{job_id}/resume")
async def resume_job(job_id: str, desk: Desk) -> Json:
    """Ask a paused job to go on."""
    return job_object(await desk.ask(job_id, Requested.RUN))


@jobs.get("/{job_id}/events", response_model=None)
async def list_events(
    job_id: str,
    desk: Desk,
    request: Request,
    after: str | None = None,
    limit: LongLimit = 20,
    stream: bool = False,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Json | Response:
    """A job's events, oldest first; with ``stream=true`` as server-sent events."""
    place = checked_place(after, "after")
    await desk.find(job_id)
    if not stream:
        return _page(*await events_page(desk, job_id, place, limit))
    if last_event_id:
        place = checked_place(last_event_id, "Last-Event-ID")
    feeds: Feeds = request.app.state.feeds
    chunks = end_quietly(feeds.follow_until_ended(job_id, place))
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(chunks, 200, headers, media_type="text/event-stream")


@jobs.get("/{job_id}/why")
async def get_why(job_id: str, request: Request, desk: Desk) -> Json:
    """Whether a job moves, what it waits for, and what every process does and stream holds."""
    return request.app.state.watchdog.why(await desk.find(job_id))


@jobs.get("/{job_id}/checkpoints")
async def list_checkpoints(
    job_id: str, desk: Desk, after: str | None = None, limit: Limit = 10
) -> Json:
    """The checkpoints that a job has kept, newest first."""
    await desk.find(job_id)
    kept = await checkpoints(desk.service.deployment.job_dir(job_id), job_id)
    return _page(*_after(kept, after, limit))


@jobs.get("/{job_id}/model")
async def list_model_files(job_id: str, desk: Desk) -> Json:
    """The files of the model that a job has trained."""
    record, folder = await desk.get(job_id), desk.service.deployment.job_dir(job_id)
    return {"object": "list", "data": await asyncio.to_thread(model_files, record, folder)}


@jobs.get("/{job_id}/model/{name}")
async def get_model_file(job_id: str, name: str, desk: Desk) -> FileResponse:
    """One of them; ``Range`` and ``If-Range`` go on with an interrupted download."""
    record, folder = await desk.get(job_id), desk.service.deployment.job_dir(job_id)
    return FileResponse(await asyncio.to_thread(model_file, record, folder, name), filename=name)


@graders.post("/validate")
def validate_grader(body: GraderToValidate) -> Json:
    """Say what a job would say about this grader."""
    checks_of(body.grader, "grader")
    return body.model_dump(mode="json", exclude_unset=True)


def _after(objects: list[Json], after: str | None, limit: int) -> tuple[list[Json], bool]:
    ids = [item["id"] for item in objects]
    if after is not None and after not in ids:
        raise Problem(400, f"after: there is no {after!r} in this list", param="after")
    rest = objects if after is None else objects[ids.index(after) + 1 :]
    return rest[:limit], len(rest) > limit


def _page(objects: Iterable[Json], has_more: bool) -> Json:
    data = list(objects)
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {
        "object": "list",
        "data": data,
        "first_id": first,
        "last_id": last,
        "has_more": has_more,
    }
