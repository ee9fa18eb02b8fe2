"""A job's events: pages of them, and streams."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Literal

from protocol.messages import JobEvent

from services.chassis.service import set_within
from services.gateway.errors import Problem, in_time
from services.gateway.jobs.service import JobService

_ENTRY_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")  # of two 64-bit numbers
_WAIT_S = 1.0
_SIGN_OF_LIFE_S = 15.0
# What comes sooner is sent together: hundreds may follow a job of fast steps.
_BETWEEN_SENDS_S = 1.0
_PAGE = 200  # events that are read, or sent, at once
Order = Literal["asc", "desc"]


def event_object(entry_id: str, event: JobEvent) -> dict[str, Any]:
    """An event in OpenAI's shape; its id is its place in the stream, to go on from."""
    return {
        "id": entry_id,
        "object": "fine_tuning.job.event",
        "created_at": int(event.created_at),
        "level": event.level,
        "message": event.message,
        "type": event.type,
        "data": dict(event.data),
    }


def checked_place(after: str | None, param: str) -> str | None:
    """The place in the stream to go on after, if one is given.

    Raises:
        Problem: 400 if it is not the id of an event.
    """
    if after is not None and not _ENTRY_ID.fullmatch(after):
        message = f"{param}: {after!r} is not the id of an event, such as '1763686000000-0'"
        raise Problem(400, message, param=param)
    return after


async def events_page(
    jobs: JobService, job_id: str, after: str | None, limit: int, order: Order
) -> tuple[list[dict[str, Any]], bool]:
    """Up to ``limit`` events in this order of time, and whether there are more."""
    if order == "desc":
        found = jobs.exchange.events_back(job_id, before=after, count=limit + 1)
    else:
        found = jobs.exchange.events(job_id, after=after or "0", count=limit + 1)
    rows = await in_time(found)
    return [event_object(*row) for row in rows[:limit]], len(rows) > limit


async def follow_until_ended(
    jobs: JobService, job_id: str, after: str
) -> AsyncGenerator[str, None]:
    """Consumes the job's events after a place; produces server-sent events, at last ``[DONE]``.

    Waits for: the next event. Unblocked by: an event, the job's end, the service stopping, or a
    silent Redis, after which the client goes on from the last id it saw.

    Raises:
        Problem: 404 or 503, if the job cannot be read.
    """
    ended, told_at = False, time.monotonic()
    while not jobs.service.stopping.is_set():
        wait_s = 0.0 if ended else _WAIT_S
        rows = await in_time(
            jobs.exchange.events(job_id, after=after, count=_PAGE, wait_s=wait_s), wait_s
        )
        if rows:
            after, told_at = rows[-1][0], time.monotonic()
            yield "".join(_server_sent(*row) for row in rows)
        elif ended:
            yield "data: [DONE]\n\n"
            return
        elif time.monotonic() - told_at > _SIGN_OF_LIFE_S:
            told_at = time.monotonic()
            yield ": still here\n\n"
        if len(rows) < _PAGE:
            # What an ended job had to say is in the stream before it has ended.
            ended = (await jobs.find(job_id)).state.is_final
            if rows and not ended:
                await set_within(jobs.service.stopping, _BETWEEN_SENDS_S)


def _server_sent(entry_id: str, event: JobEvent) -> str:
    return f"id: {entry_id}\ndata: {json.dumps(event_object(entry_id, event))}\n\n"


async def end_quietly(stream: AsyncIterator[str]) -> AsyncIterator[str]:
    """Stop a stream whose head is already sent when Redis goes silent; nothing else is caught."""
    try:
        async for chunk in stream:
            yield chunk
    except Problem as problem:
        yield f": {problem.detail}\n\n"
