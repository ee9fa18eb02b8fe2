"""What became of an operation, as the SDK asks for it again and again."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from protocol.messages import JobRecord, JobState
from protocol.operations import OperationLog, Result
from starlette.requests import ClientDisconnect

from services.gateway.api.openai.job_object import status_of
from services.gateway.api.tinker.bodies import EPHEMERAL
from services.gateway.api.tinker.clients import (
    SAMPLERS,
    STATES,
    Kept,
    client_job,
    log_of,
    wake,
)
from services.gateway.api.tinker.wire import output_of
from services.gateway.core.jobs.service import JobService
from services.gateway.core.models.folders import JOB_ID
from services.gateway.errors import Problem, not_found

PROTOBUF = "application/x-protobuf"
_LOOK_S, _LOOK_EACH_S = 0.05, 0.0025  # between two looks, and for each request that waits
_LOOK_AT_CLIENT_S = 2.0
_ID = re.compile(rf"({JOB_ID.pattern}):(\d{{1,10}}):(\w+)")


def wait_s() -> float:
    """How long a request waits for its result: hundreds that began at once end one by one."""
    return random.uniform(5.0, 15.0)


async def while_asked(request: Request, waits: Coroutine[Any, Any, Response]) -> Response:
    """What comes of ``waits``, unless the client leaves: the place of a request is another's then.

    Raises:
        ClientDisconnect: if the client has left.
    """
    task = asyncio.create_task(waits)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_LOOK_AT_CLIENT_S)
            if await request.is_disconnected():
                raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()


async def result_of(request_id: str, jobs: JobService, places: Mapping[str, int]) -> Response:
    """The answer to an operation, 408 while it is not done, 410 once it is forgotten.

    ``places`` has the place of each job in the queue.
    """
    if (named := _ID.fullmatch(request_id)) is None:
        raise not_found("request", request_id)
    jobs.waiting[named[1]] += 1
    try:
        return await _wait_for_result(request_id, named, jobs, places)
    finally:
        jobs.waiting.subtract([named[1]])
        jobs.waiting += Counter()  # drops the jobs that have none


async def _wait_for_result(
    request_id: str, named: re.Match[str], jobs: JobService, places: Mapping[str, int]
) -> Response:
    job_id, number, do = named[1], int(named[2]), named[3]
    log, deadline, record = log_of(jobs, job_id), time.monotonic() + wait_s(), None
    while True:
        is_known, result = await asyncio.to_thread(_look, log, number)
        if result is not None:
            return answer(job_id, do, result)
        if not is_known or (record is not None and record.state.is_final):
            return await asyncio.to_thread(_never_done, request_id, log, number, record)
        if time.monotonic() > deadline or jobs.service.stopping.is_set():
            return try_again(request_id, *_queue_state(record, places))
        record = await jobs.shared(_look_at_job, job_id)
        await asyncio.sleep(max(_LOOK_S, jobs.waiting[job_id] * _LOOK_EACH_S))


async def _look_at_job(jobs: JobService, job_id: str) -> JobRecord:
    record = await client_job(jobs, job_id, "request_id")
    await wake(jobs, record)
    with suppress(OSError):  # of a disk that takes nothing the learner tells
        await asyncio.to_thread(log_of(jobs, job_id).touch)
    return record


def _look(log: OperationLog, number: int) -> tuple[bool, Result | None]:
    is_known = log.knows(number)  # first: a result outlives its operation
    return is_known, log.result_unless_damaged(number)


def _never_done(
    request_id: str, log: OperationLog, number: int, record: JobRecord | None
) -> Response:
    """The last word on an operation that nobody does; 410 if nothing is known of it."""
    has_ended = record is not None and record.state.is_final
    if log.was_damaged(number):
        why = "its job has ended" if has_ended else "its operation is gone"
        words = f"{log.result_name(number)} was damaged and cannot be made again: {why}"
        return failed(f"{words}; restore it from a backup", is_users=False)
    if record is None or not has_ended or not log.knows(number):
        raise gone(request_id)
    return failed(_why_ended(record), is_users=record.state is JobState.CANCELLED)


def answer(job_id: str, do: str, result: Result) -> Response:
    if result.error:
        return failed(result.error, is_users=result.is_users)
    if result.lengths is not None:
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
