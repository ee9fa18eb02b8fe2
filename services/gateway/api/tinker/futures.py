"""Futures of operations, which the SDK retrieves again and again until there is a result."""

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

from services.gateway.api.tinker.bodies import EPHEMERAL
from services.gateway.api.tinker.training_runs import (
    SAMPLERS,
    STATES,
    Checkpoint,
    describe_end,
    get_client_job,
    operation_log,
    resume,
)
from services.gateway.api.tinker.wire import encode_output
from services.gateway.core.jobs.service import JobService
from services.gateway.core.models.folders import JOB_ID
from services.gateway.errors import Problem, not_found

PROTOBUF = "application/x-protobuf"
POLL_S = 0.05
POLL_S_PER_REQUEST = 0.0025  # hundreds that wait for one job share the disk
DISCONNECT_POLL_S = 2.0
_ID = re.compile(rf"({JOB_ID.pattern}):(\d{{1,10}}):(\w+)")


def random_timeout_s() -> float:
    """Return how long a request waits for its result, so that requests do not end all at once."""
    return random.uniform(5.0, 15.0)


async def await_while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Await ``work`` while the client waits, since another request could have its place.

    Raises:
        ClientDisconnect: if the client has left.
    """
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=DISCONNECT_POLL_S)
            if await request.is_disconnected():
                raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()


async def retrieve_future(
    request_id: str, jobs: JobService, queue_places: Mapping[str, int]
) -> Response:
    """Respond with the result of an operation, 408 if it is not done, 410 if it is forgotten."""
    match = _ID.fullmatch(request_id)
    if match is None:
        raise not_found("request", request_id)
    job_id = match[1]
    jobs.waiting[job_id] += 1
    try:
        return await _poll_future(match, jobs, queue_places)
    finally:
        jobs.waiting.subtract([job_id])
        jobs.waiting += Counter()  # drops the jobs that have none


async def _poll_future(
    match: re.Match[str], jobs: JobService, queue_places: Mapping[str, int]
) -> Response:
    job_id, digits, kind = match.groups()
    number = int(digits)
    log = operation_log(jobs, job_id)
    record: JobRecord | None = None
    deadline = time.monotonic() + random_timeout_s()
    while True:
        is_known, result = await asyncio.to_thread(_read_result, log, number)
        if result is not None:
            return to_response(job_id, kind, result)
        if not is_known or (record is not None and record.state.is_final):
            return await asyncio.to_thread(_give_up, match[0], log, number, record)
        if time.monotonic() > deadline or jobs.service.stopping.is_set():
            return try_again(match[0], *_queue_state(record, queue_places))
        record = await jobs.shared(_refresh_job, job_id)
        await asyncio.sleep(max(POLL_S, jobs.waiting[job_id] * POLL_S_PER_REQUEST))


async def _refresh_job(jobs: JobService, job_id: str) -> JobRecord:
    record = await get_client_job(jobs, job_id, "request_id")
    await resume(jobs, record)
    with suppress(OSError):  # the learner reports a full disk
        await asyncio.to_thread(operation_log(jobs, job_id).touch)
    return record


def _read_result(log: OperationLog, number: int) -> tuple[bool, Result | None]:
    # In this order, since a result outlives its operation.
    is_known = log.knows(number)
    return is_known, log.result_unless_damaged(number)


def _give_up(request_id: str, log: OperationLog, number: int, record: JobRecord | None) -> Response:
    """Respond about an operation that will have no result; 410 if it is unknown."""
    has_ended = record is not None and record.state.is_final
    if log.was_damaged(number):
        reason = "its job has ended" if has_ended else "its operation is gone"
        message = f"{log.result_name(number)} was damaged and cannot be made again: {reason}"
        return failure(f"{message}; restore it from a backup", is_users=False)
    if record is None or not has_ended or not log.knows(number):
        raise unknown_future(request_id)
    return failure(describe_end(record), is_users=record.state is JobState.CANCELLED)


def to_response(job_id: str, kind: str, result: Result) -> Response:
    if result.error:
        return failure(result.error, is_users=result.is_users)
    if result.lengths is not None:
        return Response(encode_output(result), media_type=PROTOBUF)
    fields: dict[str, Any] = {"model_id": job_id}
    if kind == "optim_step":
        fields = {"metrics": dict(result.metrics)}
    elif kind == "save_state":
        fields = {"path": Checkpoint(job_id, STATES, result.name).path}
    elif kind == "save_sampler" and result.name.startswith(EPHEMERAL):
        fields = {"sampling_session_id": f"{job_id}@{result.name}"}
    elif kind == "save_sampler":
        fields = {"path": Checkpoint(job_id, SAMPLERS, result.name).path}
    return JSONResponse(fields)


def failure(error: str, *, is_users: bool) -> Response:
    return JSONResponse({"error": error, "category": "user" if is_users else "server"})


def try_again(request_id: str, queue_state: str, reason: str | None = None) -> Response:
    fields = {
        "type": "try_again",
        "request_id": request_id,
        "queue_state": queue_state,
        "queue_state_reason": reason,
    }
    return JSONResponse(fields, 408)


def unknown_future(request_id: str) -> Problem:
    reason = f"request {request_id!r} is no longer known; send the request itself again"
    return Problem(410, reason, param="request_id", code="gone")


def _queue_state(
    record: JobRecord | None, queue_places: Mapping[str, int]
) -> tuple[str, str | None]:
    if record is None or record.state is JobState.RUNNING:
        return "active", None
    if record.state is JobState.PAUSED:
        return "paused_capacity", f"job {record.id} is paused: {record.error or 'see weir why'}"
    place = queue_places.get(record.id)
    place_text = f", place {place}" if place else ""
    return "paused_capacity", f"job {record.id} is queued{place_text}"
