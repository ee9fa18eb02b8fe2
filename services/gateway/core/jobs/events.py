"""A job's events: pages of them, streams, and the result file that is made of them."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Literal, NamedTuple

from protocol.messages import EvaluationMetrics, JobEvent, JobRecord, OtherEvaluation, StepMetrics

from services.chassis.service import wait_until_set
from services.gateway.api.openai.job_object import has_results, result_id
from services.gateway.core.jobs.service import JobService
from services.gateway.core.models.folders import JOB_ID
from services.gateway.errors import Problem, in_time, not_found, wrong

_ENTRY_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")  # of two 64-bit numbers
_SIGN_OF_LIFE_S = 15.0
_EVERY_S = 1.0  # what comes sooner is sent together
_PAGE = 200  # events that are read, or sent, at once
Order = Literal["asc", "desc"]
RESULT_NAME = "step_metrics.csv"
_RESULT_ID = re.compile(rf"file-({JOB_ID.pattern})")
_DECODED_AT_ONCE = 100  # events: nobody else is served meanwhile


def event_object(entry_id: str, event: JobEvent) -> dict[str, Any]:
    """An event in OpenAI's shape; its id is its place in the stream, to go on from."""
    return {
        "id": entry_id,
        "object": "fine_tuning.job.event",
        "created_at": int(event.created_at),
        "level": event.level,
        "message": event.message,
        "type": event.type,
        "data": event.data.to_json(),
    }


def checked_place(after: str | None, param: str) -> str | None:
    """The place in the stream to go on after; 400 if it is not the id of an event."""
    if after is not None and not _ENTRY_ID.fullmatch(after):
        raise wrong(param, f"{after!r} is not the id of an event, such as '1763686000000-0'")
    return after


async def events_page(
    jobs: JobService, job_id: str, after: str | None, limit: int, order: Order
) -> tuple[list[dict[str, Any]], bool]:
    if order == "desc":
        found = jobs.exchange.events_back(job_id, before=after, count=limit + 1)
    else:
        found = jobs.exchange.events(job_id, after=after or "0", count=limit + 1)
    rows = await in_time(found)
    return [event_object(*row) for row in rows[:limit]], len(rows) > limit


class _Page(NamedTuple):
    text: str
    place: str  # of its last event
    has_ended: bool  # the job has, and no event follows
    is_newest: bool


async def follow_until_ended(
    jobs: JobService, job_id: str, after: str
) -> AsyncGenerator[str, None]:
    """Consumes the job's events after a place; produces server-sent events, at last ``[DONE]``.

    Waits for: the next event. Unblocked by: an event, the job's end, the service stopping, or a
    silent Redis, after which the client goes on from the last id it saw.

    Raises:
        Problem: 404 or 503, if the job cannot be read.
    """
    told_at = time.monotonic()
    while not jobs.service.stopping.is_set():
        page = await jobs.shared(_read_page, job_id, after)
        after = page.place
        if page.has_ended:
            yield "data: [DONE]\n\n"
            return
        if page.text or time.monotonic() - told_at > _SIGN_OF_LIFE_S:
            told_at = time.monotonic()
            yield page.text or ": still here\n\n"
        if page.is_newest:
            await wait_until_set(jobs.service.stopping, _EVERY_S)


async def _read_page(jobs: JobService, job_id: str, after: str) -> _Page:
    # What an ended job had to say is in the stream before it has ended.
    has_ended = (await jobs.find(job_id)).state.is_final
    rows = await in_time(jobs.exchange.events(job_id, after=after, count=_PAGE))
    text = "".join(_server_sent(*row) for row in rows)
    is_newest = len(rows) < _PAGE and not has_ended
    return _Page(text, rows[-1][0] if rows else after, has_ended and not rows, is_newest)


def _server_sent(entry_id: str, event: JobEvent) -> str:
    return f"id: {entry_id}\ndata: {json.dumps(event_object(entry_id, event))}\n\n"


async def end_quietly(stream: AsyncIterator[str]) -> AsyncIterator[str]:
    """Stop a stream whose head is already sent when Redis goes silent; nothing else is caught."""
    try:
        async for chunk in stream:
            yield chunk
    except Problem as problem:
        yield f": {problem.detail}\n\n"


# ---------------------------------------------------------------------- the result file


def result_job(file_id: str) -> str | None:
    found = _RESULT_ID.fullmatch(file_id)
    return found and found[1]


async def job_with_results(jobs: JobService, job_id: str) -> JobRecord:
    """A job that has a result file; 404 if there is no such job, or it has none (yet)."""
    job = await jobs.find(job_id)
    if not isinstance(job, JobRecord) or not has_results(job):
        raise not_found("file", result_id(job_id))
    return job


async def result_file(jobs: JobService, job_id: str) -> tuple[dict[str, Any], bytes]:
    """A job's result file in OpenAI's shape, and its content: a CSV, made when it is asked for.

    It has a row for each step of the kept events: ``step``, its numbers, and ``evaluation_…`` ones.
    """
    job, rows, place = await job_with_results(jobs, job_id), dict[int, dict[str, float]](), "0"
    async with jobs.one_result:
        while events := await in_time(
            jobs.exchange.events(job_id, after=place, count=_DECODED_AT_ONCE)
        ):
            place = events[-1][0]
            for _, event in events:
                _add(rows, event)
        content = await asyncio.to_thread(_csv, rows)
    described = {
        "id": result_id(job_id),
        "object": "file",
        "bytes": len(content),
        "created_at": int(job.finished_at or job.created_at),
        "expires_at": None,
        "filename": RESULT_NAME,
        "purpose": "fine-tune-results",
        "status": "processed",
        "status_details": None,
    }
    return described, content


def _csv(rows: Mapping[int, Mapping[str, float]]) -> bytes:
    columns = dict.fromkeys(name for row in rows.values() for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"step": step, **rows[step]} for step in sorted(rows))
    return text.getvalue().encode()


def _add(rows: dict[int, dict[str, float]], event: JobEvent) -> None:
    match event.data:
        case StepMetrics() as numbers:
            prefix = ""
        case EvaluationMetrics(evaluation=numbers):
            prefix = "evaluation_"
        case OtherEvaluation(other_evaluation=numbers):
            prefix = f"evaluation_{numbers.name}_"
        case _:
            return
    row = rows.setdefault(numbers.step, {})
    for name, value in numbers.metrics.items():
        if value is not None:
            row[prefix + name] = value
