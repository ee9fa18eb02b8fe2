"""Following a job's events: however many follow, each event is read and made text once."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from protocol.messages import JobEvent

from services.chassis.service import set_within
from services.gateway.errors import Problem, in_time
from services.gateway.events import event_object
from services.gateway.jobs import JobDesk

_WAIT_S = 0.5
_SIGN_OF_LIFE_S = 15.0
_KEPT = 256  # events, for followers that are a little behind; others read from Redis
_PAGE = 1000  # events
Chunk = tuple[str, str]  # an event's place in the stream, and its text


@dataclass
class Feed:
    """The newest events of one job, and whether it has ended."""

    desk: JobDesk
    job_id: str
    place: str  # in the stream: all up to here has been read
    reach: str  # the chunks are all that come after this place
    chunks: deque[Chunk] = field(default_factory=deque)
    has_ended: bool = False
    followers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_on(self) -> None:
        """Consumes the job's state and events; produces chunks, and wakes who waits for them.

        Waits for: the next event. Unblocked by: an event, the job's end, the service stopping.

        Raises:
            Problem: 404 or 503, if the job cannot be read.
        """
        try:
            while not (self.has_ended or self.desk.service.stopping.is_set()):
                # The state comes first: what an ended job had to say is then in the stream already.
                ended = (await self.desk.find(self.job_id)).state.is_final
                events = self.desk.exchange.events(self.job_id, after=self.place, wait_s=_WAIT_S)
                rows = await in_time(events)
                for entry_id, event in rows:
                    self._keep(entry_id, event)
                self.has_ended = ended and not rows
                if rows:
                    self._wake()
        finally:
            self._wake()

    def after(self, place: str) -> list[Chunk] | None:
        """The chunks after a place; None if the feed does not reach back so far."""
        if _number(place) < _number(self.reach):
            return None
        newest_first: list[Chunk] = []
        for chunk in reversed(self.chunks):
            if _number(chunk[0]) <= _number(place):
                break
            newest_first.append(chunk)
        return newest_first[::-1]

    def _keep(self, entry_id: str, event: JobEvent) -> None:
        self.place = entry_id
        self.chunks.append((entry_id, _text(entry_id, event)))
        if len(self.chunks) > _KEPT:
            self.reach, _ = self.chunks.popleft()

    def _wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Feeds:
    """The feeds of all jobs that somebody follows."""

    def __init__(self, desk: JobDesk) -> None:
        self.desk = desk
        self._open: dict[str, tuple[Feed, asyncio.Task[None]]] = {}

    async def follow_until_ended(self, job_id: str, place: str) -> AsyncGenerator[str, None]:
        """Consumes the job's events after a place; produces server-sent events, at last ``[DONE]``.

        Waits for: the next event. Unblocked by: an event, the job's end, the service stopping, or a
        silent Redis, after which the client goes on from the last id it saw.

        Raises:
            Problem: 404 or 503, if the job cannot be read.
        """
        async with self._feed(job_id) as (feed, reading):
            while not self.desk.service.stopping.is_set():
                changed, is_over = feed.changed, reading.done()
                chunks = feed.after(place)
                if chunks is None:
                    chunks = await self._from_redis(job_id, place)
                for entry_id, text in chunks:
                    place = entry_id
                    yield text
                if chunks:
                    continue
                if is_over:
                    reading.result()
                    if feed.has_ended:
                        yield "data: [DONE]\n\n"
                    return
                if not await set_within(changed, _SIGN_OF_LIFE_S):
                    yield ": still here\n\n"

    @asynccontextmanager
    async def _feed(self, job_id: str) -> AsyncIterator[tuple[Feed, asyncio.Task[None]]]:
        newest = await in_time(self.desk.exchange.events_back(job_id, count=1))
        if job_id not in self._open or self._open[job_id][1].done():
            place = newest[0][0] if newest else "0"
            feed = Feed(self.desk, job_id, place, reach=place)
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

    async def _from_redis(self, job_id: str, place: str) -> list[Chunk]:
        rows = await in_time(self.desk.exchange.events(job_id, after=place, count=_PAGE))
        return [(entry_id, _text(entry_id, event)) for entry_id, event in rows]


async def end_quietly(stream: AsyncIterator[str]) -> AsyncIterator[str]:
    """Stop a stream whose head is already sent when Redis goes silent; nothing else is caught."""
    try:
        async for chunk in stream:
            yield chunk
    except Problem as problem:
        yield f": {problem.detail}\n\n"


def _text(entry_id: str, event: JobEvent) -> str:
    return f"id: {entry_id}\ndata: {json.dumps(event_object(entry_id, event))}\n\n"


def _number(place: str) -> tuple[int, int]:
    milliseconds, _, sequence = place.partition("-")
    return int(milliseconds), int(sequence or 0)
