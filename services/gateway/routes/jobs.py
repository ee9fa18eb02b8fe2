"""The routes of jobs, and of the graders that they may have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from protocol.messages import Requested

from services.gateway.jobs.events import (
    Order,
    checked_place,
    end_quietly,
    events_page,
    follow_until_ended,
)
from services.gateway.jobs.folders import remove
from services.gateway.jobs.service import Jobs, Repeat
from services.gateway.models.checkpoints import checkpoint_object, kept_checkpoints
from services.gateway.openai.graders import GraderToValidate, refuse_what_graders_lack, reward_of
from services.gateway.openai.job_object import AnyJob, job_object
from services.gateway.openai.submission import JobRequest
from services.gateway.openai.trials import GraderToRun, run_object, run_trial
from services.gateway.routes.answers import Json, Limit, after_id, page_of

_EVENT = {  # of the stream, as its reader takes it apart
    "type": "object",
    "properties": {"id": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page; with stream=true server-sent events, each an `id` and an event of "
        "such a page as `data`, and `[DONE]` at the end",
        "content": {"text/event-stream": {"itemSchema": _EVENT}},
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
router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["jobs"])
graders = APIRouter(prefix="/v1/fine_tuning/alpha/graders", tags=["graders"])


def _repeat(
    request: Request,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
    x_stainless_retry_count: Annotated[int, Header()] = 0,
) -> Repeat:
    _, _, key = request.headers["authorization"].partition(" ")  # however the scheme is spelt
    return Repeat(idempotency_key, f"Bearer {key.strip()}", x_stainless_retry_count)


def _metadata(request: Request) -> dict[str, str]:
    """The pairs of ``metadata[name]=value`` in the query."""
    return {
        name.removeprefix("metadata[").removesuffix("]"): value
        for name, value in request.query_params.items()
        if name.startswith("metadata[") and name.endswith("]")
    }


@router.post("")
async def submit_job(
    body: JobRequest, jobs: Jobs, repeat: Annotated[Repeat, Depends(_repeat)]
) -> Json:
    """Queue a job."""
    return job_object(await jobs.submit(body, repeat))


def _with_estimate(job: AnyJob, request: Request) -> Json:
    return job_object(job) | {"estimated_finish": request.app.state.watchdog.estimated_finish(job)}


@router.get("", openapi_extra=_METADATA)
async def list_jobs(
    jobs: Jobs,
    request: Request,
    metadata: Annotated[dict[str, str], Depends(_metadata)],
    after: str | None = None,
    limit: Limit = 20,
) -> Json:
    """Jobs, newest first."""
    records, has_more = await jobs.page(after, limit, metadata)
    return page_of((_with_estimate(record, request) for record in records), has_more)


@router.get("/{job_id}")
async def get_job(job_id: str, jobs: Jobs, request: Request) -> Json:
    """One job."""
    return _with_estimate(await jobs.find(job_id), request)


@router.delete("/{job_id}")
async def delete_job(job_id: str, jobs: Jobs, background: BackgroundTasks) -> Json:
    """Delete all of a job that has ended: record, events, samples, checkpoints and model."""
    background.add_task(remove, await jobs.delete(job_id))
    return {"id": job_id, "object": "fine_tuning.job", "deleted": True}


@router.post("/{job_id}/cancel")
async def cancel_job(job_id: str, jobs: Jobs) -> Json:
    """Ask a job to end."""
    return job_object(await jobs.ask(job_id, Requested.CANCEL))


@router.post("/{job_id}/pause")
async def pause_job(job_id: str, jobs: Jobs) -> Json:
    """Ask a job to write a checkpoint and rest."""
    return job_object(await jobs.ask(job_id, Requested.PAUSE))


@router.post("/{job_id}/resume")
async def resume_job(job_id: str, jobs: Jobs) -> Json:
    """Ask a paused job to go on."""
    return job_object(await jobs.ask(job_id, Requested.RUN))


@router.get("/{job_id}/events", response_model=None, responses=_EVENTS)
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
        return page_of(*await events_page(jobs, job_id, place, limit, order))
    if last_event_id:
        place = checked_place(last_event_id, "Last-Event-ID")
    chunks = end_quietly(follow_until_ended(jobs, job_id, place or "0"))
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(chunks, 200, headers, media_type="text/event-stream")


@router.get("/{job_id}/why")
async def get_why(job_id: str, request: Request, jobs: Jobs) -> Json:
    """Whether a job moves, what it waits for, and what every process does and stream holds."""
    return request.app.state.watchdog.why(await jobs.find(job_id))


@router.get("/{job_id}/checkpoints")
async def list_checkpoints(
    job_id: str, jobs: Jobs, after: str | None = None, limit: Limit = 10
) -> Json:
    """The checkpoints that a job has kept, newest first."""
    await jobs.find(job_id)
    return await asyncio.to_thread(
        _checkpoints, jobs.service.deployment.job_dir(job_id), after, limit
    )


def _checkpoints(job_dir: Path, after: str | None, limit: int) -> Json:
    kept = list(map(checkpoint_object, kept_checkpoints(job_dir)))
    return page_of(*after_id(kept, after, limit))


@graders.post("/validate")
async def validate_grader(body: GraderToValidate, jobs: Jobs) -> Json:
    """Say what a job would say about this grader."""
    await refuse_what_graders_lack(jobs.exchange, reward_of(body.grader, "grader"), "grader")
    return body.model_dump(mode="json", exclude_unset=True)


@graders.post("/run")
async def run_grader(body: GraderToRun, jobs: Jobs) -> Json:
    """Grade one response with this grader, as a job would."""
    return run_object(body.grader, await run_trial(jobs.exchange, body.trial()))
