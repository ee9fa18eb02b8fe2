"""The routes of jobs, their events and their checkpoints."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from protocol.bill import make_bill
from protocol.messages import JobRecord, Requested
from pydantic import Field

from services.gateway.api.dependencies import Jobs
from services.gateway.api.openai.body import Part
from services.gateway.api.openai.events import (
    check_entry_id,
    end_on_problem,
    event_object,
    follow_until_ended,
)
from services.gateway.api.openai.job_object import (
    CANCELLABLE,
    ENDED,
    JobFilter,
    StatusName,
    checkpoint_object,
    job_object,
)
from services.gateway.api.openai.lists import Json, list_after, list_object
from services.gateway.api.openai.submission import JobRequest
from services.gateway.api.places import WAITING
from services.gateway.core.jobs.service import AnyJob, Repeat
from services.gateway.core.models.checkpoints import list_checkpoints
from services.gateway.core.models.folders import find_listed_name, remove
from services.gateway.errors import await_exchange, wrong

_LABEL = re.compile(r"metadata\[(.*)\]", re.DOTALL)
Limit = Annotated[int, Query(ge=1, le=100)]
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page; with stream=true server-sent events, each an `id` and an event of "
        "such a page as `data`, and `[DONE]` at the end",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
_METADATA: dict[str, Any] = {  # clients choose the names, so FastAPI cannot declare them
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


def _read_repeat(
    request: Request,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
    x_stainless_retry_count: Annotated[int, Header()] = 0,
) -> Repeat:
    _, _, key = request.headers["authorization"].partition(" ")  # the scheme's case may vary
    return Repeat(idempotency_key, f"Bearer {key.strip()}", x_stainless_retry_count)


def _read_filter(
    request: Request,
    status: Annotated[list[StatusName], Query()] = [],  # noqa: B006  (FastAPI copies it)
    name: str = "",
    model: str = "",
    find: Annotated[str, Query(description="in the id, name, model or a label")] = "",
) -> JobFilter:
    """Filters for jobs, with the pairs ``metadata[name]=value``."""
    labels = {}
    for param, value in request.query_params.items():
        match = _LABEL.fullmatch(param)
        if match is not None:
            labels[match[1]] = value
    return JobFilter.from_statuses(status, text=find, name=name, model=model, metadata=labels)


Filter = Annotated[JobFilter, Depends(_read_filter)]


def _require_filter(filters: Filter) -> JobFilter:
    if filters.is_empty:
        raise wrong("status", "name the jobs: by status, name, model, find or metadata[name]")
    return filters


RequiredFilter = Annotated[JobFilter, Depends(_require_filter)]


@router.post("")
async def submit_job(
    body: JobRequest, jobs: Jobs, repeat: Annotated[Repeat, Depends(_read_repeat)]
) -> Json:
    """Queue a job."""
    deployment = jobs.service.deployment
    listed_model = await asyncio.to_thread(find_listed_name, body.model, deployment)
    submission = body.to_submission(listed_model, jobs.defaults)
    return job_object(await jobs.submit(submission, repeat))


async def _add_estimate(job: AnyJob, jobs: Jobs, request: Request) -> Json:
    watchdog = request.app.state.watchdog
    fields = job_object(job)
    fields["estimated_finish"] = watchdog.estimate_finish(job)
    place = None
    if fields["status"] == "queued":
        place = watchdog.queue_places.get(job.id)
    fields["weir"] = {**fields["weir"], "place": place}
    if isinstance(job, JobRecord):
        cost = await await_exchange(jobs.exchange.cost(job.id))
        bill = make_bill(cost, job.recipe.machine)
        fields["weir"]["bill"] = {**bill, "budget_gpu_hours": job.budget}
    history = request.app.state.fleet.histories.get(job.id)
    forecast = await asyncio.to_thread(history.forecast) if history else None
    fields["weir"]["forecast"] = asdict(forecast) if forecast else None
    return fields


@router.get("", openapi_extra=_METADATA)
async def list_jobs(
    jobs: Jobs, request: Request, filters: Filter, after: str | None = None, limit: Limit = 20
) -> Json:
    """Jobs, newest first."""
    records, has_more = await jobs.page(after, limit, filters)
    objects = await asyncio.gather(*(_add_estimate(record, jobs, request) for record in records))
    return list_object(objects, has_more)


@router.post("/cancel", openapi_extra=_METADATA)
async def cancel_jobs(jobs: Jobs, filters: RequiredFilter) -> Json:
    """Ask up to 100 jobs to end; ``has_more`` says whether others remain."""
    cancellable = filters.restrict(CANCELLABLE)
    results = jobs.for_each(cancellable, lambda job_id: cancel_job(job_id, jobs))
    return list_object(*await results)


@router.delete("", openapi_extra=_METADATA)
async def delete_jobs(jobs: Jobs, filters: RequiredFilter, background: BackgroundTasks) -> Json:
    """Delete up to 100 jobs that have ended; ``has_more`` says whether others remain."""
    ended = filters.restrict(ENDED)
    results = jobs.for_each(ended, lambda job_id: delete_job(job_id, jobs, background))
    return list_object(*await results)


@router.get("/{job_id}")
async def get_job(job_id: str, jobs: Jobs, request: Request) -> Json:
    """One job."""
    return await _add_estimate(await jobs.find(job_id), jobs, request)


@router.delete("/{job_id}")
async def delete_job(job_id: str, jobs: Jobs, background: BackgroundTasks) -> Json:
    """Delete a job that has ended: record, events, samples, checkpoints and model."""
    background.add_task(remove, await jobs.delete(job_id))
    return {"id": job_id, "object": "fine_tuning.job", "deleted": True}


@router.post("/{job_id}/cancel")
async def cancel_job(job_id: str, jobs: Jobs) -> Json:
    """Ask a job to end."""
    return job_object(await jobs.ask(job_id, Requested.CANCEL))


@router.post("/{job_id}/pause")
async def pause_job(job_id: str, jobs: Jobs) -> Json:
    """Ask a job to write a checkpoint and pause."""
    return job_object(await jobs.ask(job_id, Requested.PAUSE))


class Resumption(Part):
    budget_gpu_hours: float | None = Field(default=None, gt=0, le=2**40)


@router.post("/{job_id}/resume")
async def resume_job(job_id: str, jobs: Jobs, body: Resumption | None = None) -> Json:
    """Ask a paused or failed job to continue, perhaps with another budget."""
    budget = None if body is None else body.budget_gpu_hours
    return job_object(await jobs.ask(job_id, Requested.RUN, budget))


async def _take_stream_place(request: Request, stream: bool = False) -> AsyncIterator[None]:
    with WAITING.take(request) if stream else nullcontext():
        yield


@router.get(
    "/{job_id}/events",
    response_model=None,
    responses=_EVENTS,
    dependencies=[Depends(_take_stream_place)],
)
async def list_events(
    job_id: str,
    jobs: Jobs,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    order: Literal["asc", "desc"] = "desc",
    stream: bool = False,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Json | Response:
    """A job's events, newest first; with ``stream=true`` as server-sent events, oldest first."""
    place = check_entry_id(after, "after")
    await jobs.find(job_id)
    if stream:
        if last_event_id:
            place = check_entry_id(last_event_id, "Last-Event-ID")
        chunks = end_on_problem(follow_until_ended(jobs, job_id, place or "0"))
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(chunks, 200, headers, media_type="text/event-stream")
    if order == "desc":
        events = jobs.exchange.events_back(job_id, before=place, count=limit + 1)
    else:
        events = jobs.exchange.events(job_id, after=place or "0", count=limit + 1)
    entries = await await_exchange(events)
    page = [event_object(*entry) for entry in entries[:limit]]
    return list_object(page, len(entries) > limit)


@router.get("/{job_id}/why")
async def get_why(job_id: str, request: Request, jobs: Jobs) -> Json:
    """Whether a job moves, the reason if it waits, and the state of every process and stream."""
    return request.app.state.watchdog.progress_object(await jobs.find(job_id))


@router.get("/{job_id}/checkpoints")
async def get_checkpoints(
    job_id: str, jobs: Jobs, after: str | None = None, limit: Limit = 10
) -> Json:
    """The checkpoints of a job on the disk that hold a model, newest first."""
    await jobs.find(job_id)
    job_dir = jobs.service.deployment.job_dir(job_id)
    objects = await asyncio.to_thread(
        lambda: [
            checkpoint_object(checkpoint)
            for checkpoint in list_checkpoints(job_dir)
            if checkpoint.model.is_dir()
        ]
    )
    return list_after(objects, after, limit)
