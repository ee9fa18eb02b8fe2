"""A job's result file, as OpenAI gives one: a CSV of what each step measured, made when asked."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from typing import Any, Literal

from protocol.messages import JobEvent
from pydantic import BaseModel

from services.gateway.errors import in_time
from services.gateway.jobs.desk import JobDesk
from services.gateway.models.folders import JOB_ID
from services.gateway.openai.job_object import result_id

_RESULT_ID = re.compile(rf"file-({JOB_ID.pattern})")
_AT_ONCE = 1000  # events
_NUMBERS = {int, float}  # a bool is none


class ResultFile(BaseModel):
    """What is known about a result file, in OpenAI's shape."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str = "step_metrics.csv"
    purpose: Literal["fine-tune-results"] = "fine-tune-results"
    status: Literal["processed"] = "processed"
    status_details: None = None


def result_job(file_id: str) -> str | None:
    """The job that a file's id names, if it is the id of a result file."""
    found = _RESULT_ID.fullmatch(file_id)
    return found and found[1]


async def result_file(desk: JobDesk, job_id: str) -> ResultFile:
    """What is known about a job's result file.

    Raises:
        Problem: 404 if there is no such job.
    """
    content = await result_content(desk, job_id)
    job = await desk.find(job_id)
    created_at = int(getattr(job, "finished_at", None) or 0)
    return ResultFile(id=result_id(job_id), bytes=len(content), created_at=created_at)


async def result_content(desk: JobDesk, job_id: str) -> bytes:
    """A row for each step of the kept events: ``step``, its numbers, and ``evaluation_…`` ones.

    Raises:
        Problem: 404 if there is no such job.
    """
    await desk.find(job_id)
    rows: dict[int, dict[str, float]] = {}
    place = "0"
    while events := await in_time(desk.exchange.events(job_id, after=place, count=_AT_ONCE)):
        place = events[-1][0]
        for _, event in events:
            _add(rows, event)
    columns = dict.fromkeys(name for row in rows.values() for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"step": step, **rows[step]} for step in sorted(rows))
    return text.getvalue().encode()


def _add(rows: dict[int, dict[str, float]], event: JobEvent) -> None:
    evaluation, prefix = event.data.get("evaluation"), ""
    told: Any = event.data
    if isinstance(evaluation, Mapping):
        told, prefix = evaluation, "evaluation_"
    if event.type == "metrics" and isinstance(step := told.get("step"), int):
        numbers = {
            f"{prefix}{k}": v for k, v in told.items() if type(v) in _NUMBERS and k != "step"
        }
        rows.setdefault(step, {}).update(numbers)
