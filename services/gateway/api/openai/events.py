"""A job's events in OpenAI's shape, also as server-sent events."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, NamedTuple

from protocol.messages import JobEvent

from services.chassis.service import wait_until_set
from services.gateway.core.jobs.service import JobService
from services.gateway.errors import Problem, await_exchange, wrong

EVENTS_PER_READ = 200
POLL_S = 1.0  # newer events are sent together
KEEPALIVE_S = 15.0
_ENTRY_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")  # two 64-bit numbers


def event_object(entry_id: str, event: JobEvent) -> dict[str, Any]:
    """Its id is its place in the stream, after which a client can continue."""
    return {
        "id": entry_id,
        "object": "fine_tuning.job.event",
        "created_at": int(event.created_at),
        "level": event.level,
        "message": event.message,
        "type": event.type,
        "data": event.data.to_json(),
    }


def check_entry_id(after: str | None, param: str) -> str | None:
    """Return ``after``; 400 if it is not the id of an event."""
    if after is not None and not _ENTRY_ID.fullmatch(after):
        raise wrong(param, f"{after!r} is not the id of an event, such as '1763686000000-0'")
    return after


class _Page(NamedTuple):
    text: str
    last_id: str
    has_ended: bool  # the job has ended, and no event follows
    is_newest: bool


async def follow_until_ended(
    jobs: JobService, job_id: str, after: str
) -> AsyncGenerator[str, None]:
    """Consume the job's events after an entry; produce server-sent events, at last ``[DONE]``.

    Waits for: the next event. Unblocked by: an event, the job's end, the service stopping, or a
    silent Redis, after which the client continues from the last id that it saw.

    Raises:
        Problem: 404 or 503, if the job cannot be read.
    """
    sent_at = time.monotonic()
    while not jobs.service.stopping.is_set():
        page = await jobs.shared(_read_page, job_id, after)
        after = page.last_id
        if page.has_ended:
            yield "data: [DONE]\n\n"
            return
        if page.text or time.monotonic() - sent_at > KEEPALIVE_S:
            sent_at = time.monotonic()
            yield page.text or ": still here\n\n"
        if page.is_newest:
            await wait_until_set(jobs.service.stopping, POLL_S)


async def _read_page(jobs: JobService, job_id: str, after: str) -> _Page:
    # A job ends after its last event, so its state is read first.
    has_ended = (await jobs.find(job_id)).state.is_final
    entries = await await_exchange(jobs.exchange.events(job_id, after=after, count=EVENTS_PER_READ))
    text = "".join(_server_sent_event(*entry) for entry in entries)
    last_id = entries[-1][0] if entries else after
    is_newest = len(entries) < EVENTS_PER_READ and not has_ended
    return _Page(text, last_id, has_ended and not entries, is_newest)


def _server_sent_event(entry_id: str, event: JobEvent) -> str:
    return f"id: {entry_id}\ndata: {json.dumps(event_object(entry_id, event))}\n\n"


async def end_on_problem(stream: AsyncIterator[str]) -> AsyncIterator[str]:
    """End a stream with a comment if Redis goes silent: its status is sent already."""
    try:
        async for chunk in stream:
            yield chunk
    except Problem as problem:
        yield f": {problem.detail}\n\n"
