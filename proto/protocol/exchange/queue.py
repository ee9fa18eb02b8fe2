"""Work streams: requests, claims, hand-offs, releases and ingestion of groups."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, cast

from protocol import streams
from protocol.exchange.connection import Connection, Rows, block_ms, flat, if_job_ended, pairs
from protocol.exchange.rows import name_bad_row, read_count, readable
from protocol.frames import decode, encode
from protocol.messages import FailureKind, GradedGroup, GroupFailure, Message, RolloutRequest
from protocol.recipe import Purpose
from protocol.streams import Stream

M = TypeVar("M", bound=Message)
Place = tuple[str, str]  # the key of a stream, and the id of an entry
Verdict = Literal["unharmed", "failures", "deaths"]
CLAIM_BYTES = 64 * 2**20
_KEY = re.compile(rf"({'|'.join(Purpose)}):[0-9]{{1,18}}")
_REPLICA_MEMORY = 4  # a replica is remembered for this many timeouts of a worker


@dataclass(frozen=True, eq=False)
class Delivery(Generic[M]):
    """One claimed entry, with the workers that died or failed with it before."""

    stream: Stream[M]
    job_id: str
    entry_id: str
    key: str
    fields: Mapping[bytes, bytes] = field(repr=False)
    deaths: tuple[str, ...] = ()  # the workers that died with it
    failures: tuple[str, ...] = ()  # the workers where it failed

    @property
    def place(self) -> Place:
        """The stream and the entry id, which is unique only within its stream."""
        return (self.stream.key(self.job_id), self.entry_id)

    def message(self) -> M:
        """Decode the entry; a `FrameError` if it is no frame of the stream's type."""
        return decode(self.stream.carries, self.fields)

    def purpose_and_number(self) -> tuple[Purpose, int]:
        """Read the group's purpose and number, even if the frame is unreadable."""
        purpose, number = self.key.split(":")
        return Purpose(purpose), int(number)

    @property
    def names_group(self) -> bool:
        """Whether its key is one that a learner asks for."""
        return _KEY.fullmatch(self.key) is not None

    def as_failed(self, kind: FailureKind, message: str) -> GradedGroup:
        purpose, number = self.purpose_and_number()
        failure = GroupFailure(kind=kind, message=message)
        return GradedGroup(purpose=purpose, number=number, failure=failure)


@dataclass(frozen=True)
class Backlog:
    """The numbers of all and of claimed entries of a stream, and its oldest entry."""

    entries: int
    claimed: int
    oldest_s: float = field(default=0.0, compare=False)  # age of the oldest entry, or 0
    oldest_key: str = field(default="", compare=False)  # of its group

    @property
    def waiting(self) -> int:
        return self.entries - self.claimed


@dataclass(frozen=True)
class Heartbeat:
    """The reply to a heartbeat."""

    # By worker; negative if it claims nothing, 0 if it never sent a heartbeat.
    beats: Mapping[str, int]
    lost: frozenset[Place]  # entries that other workers have claimed


def replica_name(life: str) -> str:
    """Return the part of a worker's name that survives a restart."""
    return life.rpartition(".")[0] or life


@dataclass
class WorkerRegistry:
    """The liveness of workers by the clock of one observer. Times are in seconds.

    The server's clock may jump, the server may hang or fail over, and the observer may be stopped.
    So silence is measured between looks, and the time between two looks counts for at most two
    heartbeats.
    """

    idle_s: float  # a worker is dead after this silence
    heartbeat_s: float  # between two heartbeats
    _looked_at: float | None = None
    _beats: dict[str, int] = field(default_factory=dict)
    silence: dict[str, float] = field(default_factory=dict)  # by worker
    _replicas: dict[str, float] = field(
        default_factory=dict
    )  # since a worker there was willing to claim

    def look(self, lives: Mapping[str, int], now: float) -> None:
        """Update from the beats of all workers; ``now`` is of the monotonic clock."""
        passed = 0.0 if self._looked_at is None else now - self._looked_at
        passed = min(passed, 2 * self.heartbeat_s)
        self._looked_at = now
        self.silence = {
            life: self.silence.get(life, 0.0) + passed if self._beats.get(life) == beats else 0.0
            for life, beats in lives.items()
        }
        self._beats = dict(lives)
        self._replicas = {
            replica: silence + passed
            for replica, silence in self._replicas.items()
            if silence + passed < _REPLICA_MEMORY * self.idle_s
        }
        willing = (life for life, beats in lives.items() if beats > 0 and not self.silence[life])
        self._replicas |= dict.fromkeys(map(replica_name, willing), 0.0)

    def dead(self, me: str) -> Iterable[tuple[str, int]]:
        """Yield the workers with too long silence, with their last beats."""
        for life, silence in self.silence.items():
            if silence >= self.idle_s and life != me:
                yield life, self._beats[life]

    @property
    def num_alive(self) -> int:
        """The number of live workers, willing to claim or not."""
        return sum(silence < self.idle_s for silence in self.silence.values())

    @property
    def replicas(self) -> frozenset[str]:
        """Replicas willing to claim now or recently: a restarting worker is back soon."""
        return frozenset(self._replicas)


class Work(Connection):
    async def ask(self, request: RolloutRequest) -> bool:
        """Request a group once. Waits while memory is full."""
        keys = [
            streams.request_stream(request.purpose, request.in_environment).key(request.job_id),
            streams.pending_key(request.job_id),
            streams.job_key(request.job_id),
        ]
        args = [request.attempt, request.key, *flat(encode(request))]
        return bool(await self.produce("ask", keys, args))

    async def withdraw(
        self, stream: Stream[RolloutRequest], job_id: str, attempt: int, keep: Iterable[str]
    ) -> None:
        """Withdraw all requests except for those to ``keep``; heartbeats inform the workers."""
        keys = [stream.key(job_id), streams.pending_key(job_id), streams.job_key(job_id)]
        args = [attempt, stream.group, stream.name, *keep]
        await self.run("withdraw", [*keys, streams.faults_key(job_id)], args)

    async def claim(
        self, inputs: Sequence[Stream[M]], job_id: str, *, count: int, wait_s: float
    ) -> list[Delivery[M]]:
        """Claim up to ``count`` new entries, or `CLAIM_BYTES` of them, earlier inputs first.

        If there are none, wait up to ``wait_s``, at most 20 s, for one entry per input. After the
        end of the job the wait is short, since the next one may begin.
        """
        claimed = await if_job_ended(None, self._claim(inputs, job_id, count, wait_s))
        if claimed is None:
            await asyncio.sleep(min(wait_s, 0.1))
        return claimed or []

    async def reclaim(
        self,
        stream: Stream[M],
        job_id: str,
        *,
        count: int,
        leases: Iterable[Delivery] = (),
        replicas: Iterable[str] = (),
        only_troubled: bool = False,
    ) -> list[Delivery[M]]:
        """Claim up to ``count`` released entries, or own entries that are not in ``leases``.

        ``replicas`` are those with workers that may claim. An entry that failed on this replica, or
        that two workers died with, is left to the replicas on which it has not failed yet.
        ``only_troubled`` claims no other released entries.
        """
        other_replicas = sorted(set(replicas) - {replica_name(self.me)})
        own_ids = [d.entry_id for d in leases if d.place[0] == stream.key(job_id)]
        keys = [stream.key(job_id), streams.faults_key(job_id)]
        head = [stream.group, self.me, replica_name(self.me), stream.name, int(only_troubled)]

        async def next_one(claimed: Sequence[Delivery[M]]) -> Delivery[M] | None:
            ids = [*own_ids, *(delivery.entry_id for delivery in claimed)]
            row: Any = await if_job_ended(
                None, self.run("reclaim", keys, [*head, len(other_replicas), *other_replicas, *ids])
            )
            return row and _delivery(stream, job_id, row[0], pairs(row[1]), *row[2:])

        return await self._claim_each(count, next_one)

    async def adopt(self, stream: Stream[M], job_id: str, *, count: int) -> list[Delivery[M]]:
        """Claim up to ``count`` entries that workers have claimed, for an idle only reader."""
        key = stream.key(job_id)

        async def next_one(claimed: Sequence[Delivery[M]]) -> Delivery[M] | None:
            after = claimed[-1].entry_id if claimed else "0"
            row = await if_job_ended(None, self.run("adopt", [key], [stream.group, self.me, after]))
            return row and _delivery(stream, job_id, row[0], pairs(row[1]))

        return await self._claim_each(count, next_one)

    async def heartbeat(
        self,
        group: str,
        inputs: Sequence[Stream] = (),
        job_id: str = "",
        *,
        leases: Iterable[Delivery] = (),
        may_claim: bool = True,
    ) -> Heartbeat:
        """Send a heartbeat and return those of all workers; ``leases`` are of the inputs."""
        index_of = {stream.key(job_id): number for number, stream in enumerate(inputs, start=1)}
        places = [delivery.place for delivery in leases]
        entries = [part for key, entry_id in places for part in (index_of[key], entry_id)]
        names = [stream.name for stream in inputs]
        args = [group, self.me, int(may_claim), len(names), *names, *entries]
        keys = [streams.lives_key(group), streams.faults_key(job_id), *index_of]
        lives, lost = await self.run("heartbeat", keys, args, client=self.pulse)
        of_index = {str(number).encode(): key for key, number in index_of.items()}
        workers = dict(readable(keys[0], pairs(lives).items(), read_count))
        for life, beats in pairs(lives).items() if len(workers) < len(lives) // 2 else ():
            if _as_text(life) not in workers:  # no worker writes such a row: release its entries
                await self.expire_worker(group, life, beats, inputs, job_id)
        return Heartbeat(
            workers,
            frozenset((of_index[index], entry_id.decode()) for index, entry_id in lost),
        )

    async def expire_worker(
        self,
        group: str,
        life: str | bytes,
        beats: int | bytes,
        inputs: Sequence[Stream] = (),
        job_id: str = "",
    ) -> int:
        """Release the entries of a dead worker, and count its death for each.

        Return their number, or -1 if the worker has sent more than these beats.
        """
        keys = [streams.lives_key(group), streams.faults_key(job_id)]
        args = [group, life, beats, *(stream.name for stream in inputs)]
        return int(await self.run("expire_worker", [*keys, *(s.key(job_id) for s in inputs)], args))

    async def leave(self, group: str) -> None:
        await self.run("leave", [streams.lives_key(group)], [self.me])

    async def hand_off(self, delivery: Delivery, output: Stream[M], result: M) -> bool:
        """Replace a claimed entry by its result; return False if it is gone or the job has ended.

        This works when memory is full: the script frees the input before it adds the result.
        """
        job_id = delivery.job_id
        keys = [delivery.stream.key(job_id), output.key(job_id), streams.faults_key(job_id)]
        place = [delivery.stream.group, delivery.entry_id, delivery.stream.name, delivery.key]
        return bool(await self.run("hand_off", keys, [*place, *flat(encode(result))]))

    async def release(self, delivery: Delivery, verdict: Verdict = "unharmed") -> bool:
        """Release an entry to all workers; return False if this worker had lost it.

        The verdict is "failures" if it failed here, "deaths" if a part of this worker died.
        """
        keys = [delivery.stream.key(delivery.job_id), streams.faults_key(delivery.job_id)]
        args = [delivery.stream.group, self.me, delivery.entry_id, delivery.stream.name, verdict]
        return int(await if_job_ended(-1, self.run("release", keys, args))) == 0

    async def clear_failures(self, job_id: str, deliveries: Iterable[Delivery]) -> None:
        """Clear the failures of entries here, because this worker caused them."""
        entries = [part for d in deliveries for part in (d.stream.name, d.entry_id)]
        await self.run("clear_failures", [streams.faults_key(job_id)], [self.me, *entries])

    async def ingest(self, delivery: Delivery[GradedGroup], attempt: int) -> bool:
        """Remove a graded group that is logged on disk; return False if it was gone."""
        job_id = delivery.job_id
        keys = [delivery.stream.key(job_id), streams.pending_key(job_id), streams.job_key(job_id)]
        args = [attempt, delivery.stream.group, delivery.entry_id, delivery.key]
        return bool(await self.run("ingest", keys, args))

    async def pending_keys(self, job_id: str) -> set[str]:
        members = self.writer.smembers(streams.pending_key(job_id))
        return {member.decode() for member in await cast(Awaitable[set[bytes]], members)}

    async def queued(self, stream: Stream, job_id: str) -> tuple[int, int]:
        """Count the waiting entries of a work stream, and the claimed or released ones."""
        waiting, claimed = await self.run("queued", [stream.key(job_id)], [str(stream.group)])
        return waiting, claimed

    async def backlog(self, stream: Stream, job_id: str = "") -> Backlog:
        reply = await self.run("backlog", [stream.key(job_id)], [str(stream.group)])
        length, claimed, age_ms, key = reply
        return Backlog(length, claimed, age_ms / 1000, _as_text(key))

    async def _claim(
        self, inputs: Sequence[Stream[M]], job_id: str, count: int, wait_s: float
    ) -> list[Delivery[M]]:
        async def next_one(_: object) -> Delivery[M] | None:
            for stream in inputs:
                if claimed := await self._read([stream], job_id, None):
                    return claimed[0]
            return None

        claimed = await self._claim_each(count, next_one)
        if claimed or wait_s <= 0:
            return claimed
        return await self._named(await self._read(inputs, job_id, block_ms(wait_s)))

    async def _claim_each(
        self,
        count: int,
        next_one: Callable[[Sequence[Delivery[M]]], Awaitable[Delivery[M] | None]],
    ) -> list[Delivery[M]]:
        """Claim entries one by one: Redis cannot limit claims by bytes, and groups are large."""
        claimed: list[Delivery[M]] = []
        num_bytes = 0
        while len(claimed) < count and num_bytes < CLAIM_BYTES:
            delivery = await next_one(claimed)
            if delivery is None:
                break
            claimed += await self._named([delivery])
            num_bytes += sum(map(len, delivery.fields.values()))
        return claimed

    async def _named(self, deliveries: Sequence[Delivery[M]]) -> list[Delivery[M]]:
        """Return the deliveries that name a group; delete all others."""
        named: list[Delivery[M]] = []
        for delivery in deliveries:
            if delivery.names_group:
                named.append(delivery)
                continue
            key, entry_id = delivery.place
            name_bad_row(key, f"entry {entry_id} is of no group: {delivery.key!r}")
            await cast(Awaitable[int], self.writer.xack(key, str(delivery.stream.group), entry_id))
            await cast(Awaitable[int], self.writer.xdel(key, entry_id))
        return named

    async def _read(
        self, inputs: Sequence[Stream[M]], job_id: str, block_ms: int | None
    ) -> list[Delivery[M]]:
        by_key = {stream.key(job_id).encode(): stream for stream in inputs}
        reply = await self.reader.xreadgroup(
            str(inputs[0].group), self.me, {key: ">" for key in by_key}, count=1, block=block_ms
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
    *lives: bytes,
) -> Delivery[M]:
    key = _as_text(fields.get(b"key", b""))
    faults = (tuple(_as_text(names).split()) for names in lives)  # deaths, and failures
    return Delivery(stream, job_id, entry_id.decode(), key, fields, *faults)


def _as_text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")
