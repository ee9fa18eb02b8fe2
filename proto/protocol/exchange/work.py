"""Work streams: groups are asked for, claimed, handed off, released, and taken in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from protocol import streams
from protocol.exchange.connection import Connection, Rows, block_ms, flat, if_job_ended
from protocol.frames import decode, encode
from protocol.messages import GradedGroup, Message, RolloutRequest
from protocol.recipe import Purpose
from protocol.streams import Stream

M = TypeVar("M", bound=Message)
MAX_DEATHS = 3
MAX_FAILURES = 3


@dataclass(frozen=True, eq=False)
class Delivery(Generic[M]):
    """One claimed entry: what it carries, and what happened to it before."""

    stream: Stream[M]
    job_id: str
    entry_id: str
    key: str
    fields: Mapping[bytes, bytes] = field(repr=False)
    deaths: int = 0
    failures: int = 0

    def message(self) -> M:
        """Decode what the entry carries.

        Raises:
            FrameError: if it is not a frame of the stream's type.
        """
        return decode(self.stream.carries, self.fields)

    def purpose_and_number(self) -> tuple[Purpose, int]:
        """What the group was asked for, readable even if the frame is not."""
        purpose, number = self.key.split(":")
        return Purpose(purpose), int(number)

    def as_failed(self, reason: str) -> GradedGroup:
        """The message that tells the learner not to wait for this group."""
        purpose, number = self.purpose_and_number()
        return GradedGroup(purpose=purpose, number=number, failure=reason)


@dataclass(frozen=True)
class Backlog:
    """How much lies in a stream, and how much of it is claimed and being worked on."""

    entries: int
    claimed: int


class Work(Connection):
    """What producers and workers do with the work streams."""

    async def ask(self, request: RolloutRequest) -> bool:
        """Ask for a group, unless it was asked for already. Waits while memory is full.

        Raises:
            Fenced: if the request's attempt is not the current one, or the job has ended.
        """
        keys = [
            streams.requests_for(request.purpose).key(request.job_id),
            streams.under_way_key(request.job_id),
            streams.job_key(request.job_id),
        ]
        args = [request.attempt, request.key, *flat(encode(request))]
        return bool(await self.produce("ask", keys, args))

    async def claim(
        self, inputs: Sequence[Stream[M]], job_id: str, *, count: int, wait_s: float
    ) -> list[Delivery[M]]:
        """Claim up to ``count`` (at least 1) new entries, earlier inputs first.

        If there are none it waits for ``wait_s``, but 20 s at the longest, and then claims at most
        one entry per input. No entries also if the job has ended.
        """
        claimed = await if_job_ended(None, self._claim(inputs, job_id, count, wait_s))
        if claimed is None:
            await asyncio.sleep(wait_s)
        return claimed or []

    async def reclaim(
        self, stream: Stream[M], job_id: str, *, idle_s: float, count: int
    ) -> list[Delivery[M]]:
        """Claim entries that were released, or whose worker has shown no life for ``idle_s``.

        While the server has been up for less than ``idle_s``, only released ones: nobody could
        show life while it was away.
        """
        keys = [stream.key(job_id), streams.faults_key(job_id)]
        args = [stream.group, self.me, round(idle_s * 1000), count, stream.name]
        rows: list[Any] = await if_job_ended([], self.run("reclaim", keys, args))
        return [
            _delivery(stream, job_id, entry_id, _pairs(flat), int(deaths), int(failures))
            for entry_id, flat, deaths, failures in rows
        ]

    async def heartbeat(self, deliveries: Iterable[Delivery]) -> set[str]:
        """Show life for claimed entries; returns the entry ids that others have taken over."""
        by_stream: dict[tuple[str, str], list[str]] = {}
        for delivery in deliveries:
            place = (delivery.stream.key(delivery.job_id), str(delivery.stream.group))
            by_stream.setdefault(place, []).append(delivery.entry_id)
        lost: set[str] = set()
        for (key, group), entry_ids in by_stream.items():
            beat = self.run("heartbeat", [key], [group, self.me, *entry_ids])
            rows = await if_job_ended([entry_id.encode() for entry_id in entry_ids], beat)
            lost |= {row.decode() for row in rows}
        return lost

    async def hand_off(self, delivery: Delivery, output: Stream[M], result: M) -> bool:
        """Replace a claimed entry by its result; False if someone else did, or the job has ended.

        This works when memory is full: the script frees the input before it adds the result.
        """
        job_id = delivery.job_id
        keys = [delivery.stream.key(job_id), output.key(job_id), streams.faults_key(job_id)]
        place = [delivery.stream.group, delivery.entry_id, delivery.stream.name, delivery.key]
        return bool(await self.run("hand_off", keys, [*place, *flat(encode(result))]))

    async def release(self, delivery: Delivery, *, failed: bool) -> int:
        """Give an entry back to all workers.

        Returns how often it has failed by now (0 if not ``failed``), -1 if it was no longer ours.
        """
        keys = [delivery.stream.key(delivery.job_id), streams.faults_key(delivery.job_id)]
        verdict = "failed" if failed else "unharmed"
        args = [delivery.stream.group, self.me, delivery.entry_id, delivery.stream.name, verdict]
        return int(await if_job_ended(-1, self.run("release", keys, args)))

    async def take_in(self, delivery: Delivery[GradedGroup], attempt: int) -> bool:
        """Remove a graded group that is safely logged; False if it was gone already.

        Raises:
            Fenced: if ``attempt`` is not the current one.
        """
        job_id = delivery.job_id
        keys = [
            delivery.stream.key(job_id),
            streams.under_way_key(job_id),
            streams.job_key(job_id),
        ]
        args = [attempt, delivery.stream.group, delivery.entry_id, delivery.key]
        return bool(await self.run("take_in", keys, args))

    async def under_way(self, job_id: str) -> set[str]:
        """The keys of all groups that were asked for and not yet taken in."""
        members = await cast(
            Awaitable[set[bytes]], self.writer.smembers(streams.under_way_key(job_id))
        )
        return {member.decode() for member in members}

    async def backlog(self, stream: Stream, job_id: str = "") -> Backlog:
        """How full a work stream is."""
        key = stream.key(job_id)
        entries = int(await self.writer.xlen(key))
        summary = self.writer.xpending(key, str(stream.group))
        pending: dict[str, Any] = await if_job_ended({"pending": 0}, summary)
        return Backlog(entries, int(pending["pending"]))

    async def _claim(
        self, inputs: Sequence[Stream[M]], job_id: str, count: int, wait_s: float
    ) -> list[Delivery[M]]:
        claimed: list[Delivery[M]] = []
        for stream in inputs:
            if len(claimed) < count:
                claimed += await self._read([stream], job_id, count - len(claimed), None)
        if claimed or wait_s <= 0:
            return claimed
        return await self._read(inputs, job_id, 1, block_ms(wait_s))

    async def _read(
        self, inputs: Sequence[Stream[M]], job_id: str, count: int, block_ms: int | None
    ) -> list[Delivery[M]]:
        by_key = {stream.key(job_id).encode(): stream for stream in inputs}
        reply = await self.reader.xreadgroup(
            str(inputs[0].group), self.me, {key: ">" for key in by_key}, count=count, block=block_ms
        )
        return [
            _delivery(by_key[key], job_id, entry_id, fields)
            for key, rows in cast(Rows, reply).items()
            for entry_id, fields in rows
        ]


def _delivery(
    stream: Stream[M],
    job_id: str,
    entry_id: bytes,
    fields: Mapping[bytes, bytes],
    deaths: int = 0,
    failures: int = 0,
) -> Delivery[M]:
    key = fields.get(b"key", b"").decode()
    return Delivery(stream, job_id, entry_id.decode(), key, fields, deaths, failures)


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
