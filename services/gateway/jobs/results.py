"""A job's result file, as OpenAI gives one: a CSV of what each step measured, made when asked."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from collections.abc import Mapping
from typing import Any

from protocol.exchange import UnreadableRecord
from protocol.messages import JobEvent, JobRecord

from services.gateway.errors import in_time, not_found
from services.gateway.jobs.service import JobService
from services.gateway.models.folders import JOB_ID
from services.gateway.openai.job_object import has_results, result_id

RESULT_NAME = "step_metrics.csv"
_RESULT_ID = re.compile(rf"file-({JOB_ID.pattern})")
_AT_ONCE = 100  # events: nobody else is served while they are decoded
_NUMBERS = {int, float}  # a bool is none


def result_job(file_id: str) -> str | None:
    """The job that a file's id names, if it is the id of a result file."""
    found = _RESULT_ID.fullmatch(file_id)
    return found and found[1]


async def job_with_results(jobs: JobService, job_id: str) -> JobRecord:
    """A job that has a result file.

    Raises:
        Problem: 404 if there is no such job, or it has none (yet).
    """
    job = await jobs.find(job_id)
    if isinstance(job, UnreadableRecord) or not has_results(job):
        raise not_found("file", result_id(job_id))
    return job


async def result_file(jobs: JobService, job_id: str) -> dict[str, Any]:
    """What is known about a job's result file, in OpenAI's shape.

    Raises:
        Problem: 404 if there is none.
    """
    job, content = await job_with_results(jobs, job_id), await result_content(jobs, job_id)
    return {
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


async def result_content(jobs: JobService, job_id: str) -> bytes:
    """A row for each step of the kept events: ``step``, its numbers, and ``evaluation_…`` ones.

    Raises:
        Problem: 404 if there is none.
    """
    await job_with_results(jobs, job_id)
    async with jobs.one_result:
        rows: dict[int, dict[str, float]] = {}
        place = "0"
        while events := await in_time(jobs.exchange.events(job_id, after=place, count=_AT_ONCE)):
            place = events[-1][0]
            for _, event in events:
                _add(rows, event)
        return await asyncio.to_thread(_csv, rows)


def _csv(rows: Mapping[int, Mapping[str, float]]) -> bytes:
    columns = dict.fromkeys(name for row in rows.values() for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"step": step, **rows[step]} for step in sorted(rows))
    return text.getvalue().encode()


def _add(rows: dict[int, dict[str, float]], event: JobEvent) -> None:
    evaluation, prefix = event.data.get("evaluation"), ""
    other = event.data.get("other_evaluation")
    told: Any = event.data
    if isinstance(evaluation, Mapping):
        told, prefix = evaluation, "evaluation_"
    elif isinstance(other, Mapping):
        told, prefix = other, f"evaluation_{other['name']}_"
    if (event.type == "metrics" or told is other) and isinstance(step := told.get("step"), int):
        numbers = {
            f"{prefix}{k}": v for k, v in told.items() if type(v) in _NUMBERS and k != "step"
        }
        rows.setdefault(step, {}).update(numbers)
