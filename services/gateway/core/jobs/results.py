"""The result file of a job: a table of what its steps and evaluations measured."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Mapping

from protocol.messages import (
    EvaluationMetrics,
    JobEvent,
    JobRecord,
    OtherEvaluation,
    StepMetrics,
)

from services.gateway.core.jobs.service import AnyJob, JobService
from services.gateway.errors import await_exchange

EVENTS_PER_READ = 100  # decoding them blocks all other requests


def has_results(job: AnyJob) -> bool:
    if not isinstance(job, JobRecord) or not job.state.is_final:
        return False
    return job.step > 0 or bool(job.result.get("evaluated"))


async def read_results(jobs: JobService, job_id: str) -> bytes:
    """Return a job's result file, a CSV that is made from the stored events.

    It has a row for each step: ``step``, its metrics, and those of evaluations, whose names begin
    with ``evaluation_``.
    """
    rows = dict[int, dict[str, float]]()
    place = "0"
    async with jobs.one_result:
        while events := await await_exchange(
            jobs.exchange.events(job_id, after=place, count=EVENTS_PER_READ)
        ):
            place = events[-1][0]
            for _, event in events:
                _add_event(rows, event)
        return await asyncio.to_thread(_write_csv, rows)


def _write_csv(rows: Mapping[int, Mapping[str, float]]) -> bytes:
    columns = dict.fromkeys(name for row in rows.values() for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"step": step, **rows[step]} for step in sorted(rows))
    return text.getvalue().encode()


def _add_event(rows: dict[int, dict[str, float]], event: JobEvent) -> None:
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
