"""What became of an operation, as the SDK asks for it again and again."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse
from protocol.messages import JobRecord, JobState
from protocol.operations import OperationLog, Result

from services.gateway.errors import Problem, not_found
from services.gateway.jobs.service import JobService
from services.gateway.models.folders import JOB_ID
from services.gateway.openai.job_object import status_of
from services.gateway.tinker.bodies import EPHEMERAL
from services.gateway.tinker.clients import (
    SAMPLERS,
    STATES,
    Kept,
    client_job,
    log_of,
    wake,
)
from services.gateway.tinker.wire import output_of

PROTOBUF = "application/x-protobuf"
WAIT_S = 10.0  # for a result, before the SDK asks again
_LOOK_S = 0.05
_LOOK_AT_JOB_S = 1.0
_ID = re.compile(rf"({JOB_ID.pattern}):(\d{{1,10}}):(\w+)")
_PASSES = {"forward", "forward_backward"}


async def result_of(request_id: str, jobs: JobService, places: Mapping[str, int]) -> Response:
    """The answer to an operation, 408 while it is not done, 410 once it is forgotten.

    ``places`` has the place of each job in the queue.
    """
    if (named := _ID.fullmatch(request_id)) is None:
        raise not_found("request", request_id)
    job_id, number, do = named[1], int(named[2]), named[3]
    log, deadline, record, looked_at = log_of(jobs, job_id), time.monotonic() + WAIT_S, None, 0.0
    while True:
        is_known, result = await asyncio.to_thread(_look, log, number)
        if result is not None:
            return answer(job_id, do, result)
        if not is_known:
            raise gone(request_id)
        if record is not None and record.state.is_final:
            return failed(_why_ended(record), is_users=record.state is JobState.CANCELLED)
        if time.monotonic() > deadline or jobs.service.stopping.is_set():
            return try_again(request_id, *_queue_state(record, places))
        if time.monotonic() - looked_at > _LOOK_AT_JOB_S:
            record, looked_at = await client_job(jobs, job_id, "request_id"), time.monotonic()
            await wake(jobs, record)
            await asyncio.to_thread(log.touch)
        await asyncio.sleep(_LOOK_S)


def _look(log: OperationLog, number: int) -> tuple[bool, Result | None]:
    is_known = log.knows(number)  # first: a result outlives its operation
    return is_known, log.result(number)


def answer(job_id: str, do: str, result: Result) -> Response:
    if result.error:
        return failed(result.error, is_users=result.is_users)
    if do in _PASSES:
        return Response(output_of(result), media_type=PROTOBUF)
    told: dict[str, Any] = {"model_id": job_id}
    if do == "optim_step":
        told = {"metrics": dict(result.metrics)}
    elif do == "save_state":
        told = {"path": Kept(job_id, STATES, result.name).path}
    elif do == "save_sampler" and result.name.startswith(EPHEMERAL):
        told = {"sampling_session_id": f"{job_id}@{result.name}"}
    elif do == "save_sampler":
        told = {"path": Kept(job_id, SAMPLERS, result.name).path}
    return JSONResponse(told)


def failed(error: str, *, is_users: bool) -> Response:
    return JSONResponse({"error": error, "category": "user" if is_users else "server"})


def try_again(request_id: str, queue_state: str, reason: str | None = None) -> Response:
    told = {"type": "try_again", "request_id": request_id, "queue_state": queue_state}
    return JSONResponse(told | {"queue_state_reason": reason}, 408)


def gone(request_id: str) -> Problem:
    why = f"nothing is known of request {request_id!r} any more; send the request itself again"
    return Problem(410, why, param="request_id", code="gone")


def _why_ended(record: JobRecord) -> str:
    why = f": {record.error}" if record.error else ""
    return f"job {record.id} is {status_of(record)}{why}"


def _queue_state(record: JobRecord | None, places: Mapping[str, int]) -> tuple[str, str | None]:
    if record is None or record.state is JobState.RUNNING:
        return "active", None
    if record.state is JobState.PAUSED:
        return "paused_capacity", f"job {record.id} is paused: {record.error or 'see weir why'}"
    place = places.get(record.id)
    return "paused_capacity", f"job {record.id} is queued" + (f", place {place}" if place else "")
