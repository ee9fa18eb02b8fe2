"""A job's events: pages of them, and streams.

However many follow a job, each event is read and made text once.
"""

from __future__ import annotations

import asyncio
import json
import re
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from protocol.exchange.news import MAX_EVENTS
from protocol.messages import JobEvent

from services.chassis.service import set_within
from services.gateway.errors import Problem, in_time
from services.gateway.jobs.service import JobService

_ENTRY_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")  # of two 64-bit numbers
_WAIT_S = 0.5
_SIGN_OF_LIFE_S = 15.0
# What comes sooner is sent together: hundreds may follow a job of fast steps.
_BETWEEN_SENDS_S = 1.0
_PAGE = 200  # events that are read, or sent, at once
Place = tuple[int, int]  # of an event in its stream
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


@dataclass
class Feed:
    """The events of one job as text, and whether it has ended."""

    jobs: JobService
    job_id: str
    place: str = "0"  # in the stream: all up to here has been read
    places: list[Place] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    has_ended: bool = False
    followers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_on(self) -> None:
        """Consumes the job's state and events; produces texts, and wakes who waits for them.

        Waits for: the next event. Unblocked by: an event, the job's end, the service stopping.

        Raises:
            Problem: 404 or 503, if the job cannot be read.
        """
        exchange = self.jobs.exchange
        try:
            while not (self.has_ended or self.jobs.service.stopping.is_set()):
                # The state comes first: what an ended job had to say is then in the stream already.
                ended = (await self.jobs.find(self.job_id)).state.is_final
                rows = await in_time(
                    exchange.events(self.job_id, after=self.place, count=_PAGE, wait_s=_WAIT_S)
                )
                for entry_id, event in rows:
                    self.place = entry_id
                    self.places.append(_place(entry_id))
                    self.texts.append(
                        f"id: {entry_id}\ndata: {json.dumps(event_object(entry_id, event))}\n\n"
                    )
                del self.places[:-MAX_EVENTS], self.texts[:-MAX_EVENTS]
                self.has_ended = ended and not rows
                if rows:
                    self._wake()
                if rows and not ended and len(rows) < _PAGE:  # else there is more to catch up on
                    await set_within(self.jobs.service.stopping, _BETWEEN_SENDS_S)
        finally:
            self._wake()

    def after(self, place: Place) -> tuple[str, Place]:
        """The texts of the next events after a place, and the place of the last of them."""
        begin = bisect_right(self.places, place)
        end = begin + _PAGE
        return "".join(self.texts[begin:end]), (self.places[begin:end] or [place])[-1]

    def _wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Feeds:
    """The feeds of all jobs that somebody follows."""

    def __init__(self, jobs: JobService) -> None:
        self.jobs = jobs
        self._open: dict[str, tuple[Feed, asyncio.Task[None]]] = {}

    async def follow_until_ended(self, job_id: str, after: str) -> AsyncGenerator[str, None]:
        """Consumes the job's events after a place; produces server-sent events, at last ``[DONE]``.

        Waits for: the next event. Unblocked by: an event, the job's end, the service stopping, or a
        silent Redis, after which the client goes on from the last id it saw.

        Raises:
            Problem: 404 or 503, if the job cannot be read.
        """
        place = _place(after)
        async with self._feed(job_id) as (feed, reading):
            while not self.jobs.service.stopping.is_set():
                changed, is_over = feed.changed, reading.done()
                texts, place = feed.after(place)
                if texts:
                    yield texts
                    await asyncio.sleep(0)  # many may have much to catch up on
                elif is_over:
                    reading.result()
                    if feed.has_ended:
                        yield "data: [DONE]\n\n"
                    return
                elif not await set_within(changed, _SIGN_OF_LIFE_S):
                    yield ": still here\n\n"

    @asynccontextmanager
    async def _feed(self, job_id: str) -> AsyncIterator[tuple[Feed, asyncio.Task[None]]]:
        if job_id not in self._open or self._open[job_id][1].done():
            feed = Feed(self.jobs, job_id)
            self._open[job_id] = feed, asyncio.create_task(feed.read_on())
        feed, reading = opened = self._open[job_id]
        feed.followers += 1
        try:
            yield opened
        finally:
            feed.followers -= 1
            if feed.followers == 0:
                reading.cancel()
                if self._open.get(job_id) is opened:
                    del self._open[job_id]


async def end_quietly(stream: AsyncIterator[str]) -> AsyncIterator[str]:
    """Stop a stream whose head is already sent when Redis goes silent; nothing else is caught."""
    try:
        async for chunk in stream:
            yield chunk
    except Problem as problem:
        yield f": {problem.detail}\n\n"


def _place(entry_id: str) -> Place:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)
