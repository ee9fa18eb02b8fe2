"""A job's events, as pages."""

from __future__ import annotations

import re
from typing import Any, Literal

from protocol.messages import JobEvent

from services.gateway.errors import Problem, in_time
from services.gateway.jobs.desk import JobDesk

_ENTRY_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")  # of two 64-bit numbers
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
    desk: JobDesk, job_id: str, after: str | None, limit: int, order: Order
) -> tuple[list[dict[str, Any]], bool]:
    """Up to ``limit`` events in this order of time, and whether there are more."""
    if order == "desc":
        found = desk.exchange.events_back(job_id, before=after, count=limit + 1)
    else:
        found = desk.exchange.events(job_id, after=after or "0", count=limit + 1)
    rows = await in_time(found)
    return [event_object(*row) for row in rows[:limit]], len(rows) > limit
