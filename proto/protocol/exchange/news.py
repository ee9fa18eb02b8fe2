"""News of a job, the versions of its policy and its events; and of processes that start."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import cast

from protocol import streams
from protocol.exchange.connection import Connection, Rows, block_ms, flat
from protocol.frames import FrameError, decode, encode
from protocol.messages import JobEvent, PolicyVersion

MAX_EVENTS = 10_000
_FURTHER_PAGE = 200  # entries at least that are read at once where some could not be read
Row = tuple[bytes, dict[bytes, bytes]]
log = logging.getLogger(__name__)


class News(Connection):
    """What the learner announces, and what a job tells its followers."""

    async def announce(self, policy: PolicyVersion) -> None:
        """Tell every rollout about new weights. This works when memory is full.

        Raises:
            Fenced: if the policy's attempt is not the current one.
        """
        keys = [streams.POLICY.key(policy.job_id), streams.job_key(policy.job_id)]
        await self.run("announce", keys, [policy.attempt, *flat(encode(policy))])

    async def newest_policy(self, job_id: str) -> PolicyVersion | None:
        """The last announced policy, if there is one."""
        rows = await self.writer.xrevrange(streams.POLICY.key(job_id), count=1)
        return decode(PolicyVersion, cast(dict[bytes, bytes], rows[0][1])) if rows else None

    async def record_event(self, event: JobEvent) -> bool:
        """Record an event; False if one with its id is among the newest `MAX_EVENTS`, the kept.

        This works when memory is full: who waits for room must be able to say so.
        """
        keys = [streams.EVENTS.key(event.job_id), streams.event_ids_key(event.job_id)]
        args = [MAX_EVENTS, event.id, *flat(encode(event))]
        return bool(await self.run("record_event", keys, args))

    async def events(
        self, job_id: str, *, after: str = "0", count: int = 1000, wait_s: float | None = None
    ) -> list[tuple[str, JobEvent]]:
        """Events recorded after the entry id ``after``, oldest first, each with its entry id.

        One that this release cannot read is left out. Fewer than ``count`` are all there are.
        """
        key = streams.EVENTS.key(job_id)
        deadline = time.monotonic() + (wait_s or 0)

        async def read(place: str, size: int, may_wait: bool) -> list[Row]:
            left_s = deadline - time.monotonic()
            block = block_ms(left_s) if may_wait and left_s > 0 else None
            reply = cast(Rows, await self.reader.xread({key: place}, count=size, block=block))
            return [row for rows in reply.values() for row in rows]

        return await _read_readable(read, after, count)

    async def events_back(
        self, job_id: str, *, before: str | None = None, count: int = 100
    ) -> list[tuple[str, JobEvent]]:
        """Events recorded before the entry id ``before``, newest first; otherwise as `events`."""
        if before is not None and not before.strip("0-"):
            return []  # nothing is before the least id, and Redis does not take it for a bound

        async def read(place: str, size: int, _may_wait: bool) -> list[Row]:
            latest, key = f"({place}" if place else "+", streams.EVENTS.key(job_id)
            return cast(list[Row], await self.reader.xrevrange(key, max=latest, count=size))

        return await _read_readable(read, before or "", count)

    async def count_start(self, service: str) -> None:
        """Count a process that has started. Should the reply be lost, it may count twice."""
        await self.run("count_start", [streams.STARTS], [service])

    async def starts(self) -> dict[str, int]:
        """How many processes of each service have ever started."""
        stored = cast(Awaitable[dict[bytes, bytes]], self.writer.hgetall(streams.STARTS))
        return {service.decode(): int(count) for service, count in (await stored).items()}


async def _read_readable(
    read: Callable[[str, int, bool], Awaitable[list[Row]]], place: str, count: int
) -> list[tuple[str, JobEvent]]:
    """Up to ``count`` events from a place on, however many between them cannot be read."""
    found: list[tuple[str, JobEvent]] = []
    size = count
    while len(found) < count:
        rows = await read(place, size, not found)
        found += _readable(rows)
        if not rows or (found and len(rows) < size):
            break
        place, size = rows[-1][0].decode(), max(count, _FURTHER_PAGE)
    return found[:count]


def _readable(rows: Iterable[Row]) -> Iterator[tuple[str, JobEvent]]:
    for entry_id, fields in rows:
        try:
            yield entry_id.decode(), decode(JobEvent, fields)
        except FrameError as error:
            log.warning("event left out", extra={"entry": entry_id.decode(), "why": str(error)})
