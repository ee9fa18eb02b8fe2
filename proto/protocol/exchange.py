"""The exchange: typed work streams over Redis or Valkey, where nothing is lost or done twice.

Work moves by an exclusive *hand-off*: one script acknowledges and deletes the input and appends the
result, so a result appears exactly once, whoever else was working on the same input. Whoever works
shows life by a *heartbeat*; entries without one go to another worker. What the learner writes
carries its *attempt*, and an older attempt is refused. Every write may be repeated without effect,
so a lost reply is simply sent again.

This is the only file that imports redis.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from redis import exceptions as errors
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from protocol import streams
from protocol.frames import decode, encode
from protocol.messages import (
    ActiveJob,
    GradedGroup,
    JobEvent,
    JobRecord,
    JobRef,
    JobState,
    Message,
    PolicyVersion,
    Requested,
    RolloutRequest,
)
from protocol.recipe import Purpose
from protocol.streams import Stream

M = TypeVar("M", bound=Message)
T = TypeVar("T")
MAX_DEATHS = 3
MAX_FAILURES = 3

_LEARNER = "learner"  # one learner per stack: its next life finds what the last one had claimed
_JOB_INDEX = streams.PREFIX + "job_index"
_Rows = dict[bytes, list[tuple[bytes, dict[bytes, bytes]]]]  # of a read, by stream key
_MEMORY_FULL_PAUSE_S = 0.2
_LONGEST_BLOCK_S = 20.0
_READER_ANSWER_S = 30.0  # beyond the longest block: then the server has vanished without a word
_WRITER_ANSWER_S = 10.0


class _Script:
    def __init__(self, path: Path) -> None:
        self.text = path.read_text()
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()


_SCRIPTS = {path.stem: _Script(path) for path in Path(__file__).parent.glob("lua/*.lua")}


class Fenced(RuntimeError):
    """A newer attempt of the learner has taken over; this one must stop without another word."""


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


@dataclass
class Exchange:
    """A connection to the exchange, for one life of one process.

    ``me`` names that life, and no later one: what an earlier life had claimed is not ours.
    """

    me: str
    writer: Redis
    reader: Redis
    backpressure_seconds: float = 0.0

    # ------------------------------------------------------------------ work

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
        args = [request.attempt, request.key, *_flat(encode(request))]
        return bool(await self._produce("ask", keys, args))

    async def claim(
        self, inputs: Sequence[Stream[M]], job_id: str, *, count: int, wait_s: float
    ) -> list[Delivery[M]]:
        """Claim up to ``count`` (at least 1) new entries, earlier inputs first.

        If there are none it waits for ``wait_s``, but 20 s at the longest, and then claims at most
        one entry per input. No entries also if the job has ended.
        """
        claimed = await _if_job_ended(None, self._claim(inputs, job_id, count, wait_s))
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
        rows: list[Any] = await _if_job_ended([], self._run("reclaim", keys, args))
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
            beat = self._run("heartbeat", [key], [group, self.me, *entry_ids])
            rows = await _if_job_ended([entry_id.encode() for entry_id in entry_ids], beat)
            lost |= {row.decode() for row in rows}
        return lost

    async def hand_off(self, delivery: Delivery, output: Stream[M], result: M) -> bool:
        """Replace a claimed entry by its result; False if someone else did, or the job has ended.

        This works when memory is full: the script frees the input before it adds the result.
        """
        job_id = delivery.job_id
        keys = [delivery.stream.key(job_id), output.key(job_id), streams.faults_key(job_id)]
        place = [delivery.stream.group, delivery.entry_id, delivery.stream.name, delivery.key]
        return bool(await self._run("hand_off", keys, [*place, *_flat(encode(result))]))

    async def release(self, delivery: Delivery, *, failed: bool) -> int:
        """Give an entry back to all workers.

        Returns how often it has failed by now (0 if not ``failed``), -1 if it was no longer ours.
        """
        keys = [delivery.stream.key(delivery.job_id), streams.faults_key(delivery.job_id)]
        verdict = "failed" if failed else "unharmed"
        args = [delivery.stream.group, self.me, delivery.entry_id, delivery.stream.name, verdict]
        return int(await _if_job_ended(-1, self._run("release", keys, args)))

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
        return bool(await self._run("take_in", keys, args))

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
        pending: dict[str, Any] = await _if_job_ended({"pending": 0}, summary)
        return Backlog(entries, int(pending["pending"]))

    # ------------------------------------------------------------------ policy and events

    async def announce(self, policy: PolicyVersion) -> None:
        """Tell every rollout about new weights. This works when memory is full.

        Raises:
            Fenced: if the policy's attempt is not the current one.
        """
        keys = [streams.POLICY.key(policy.job_id), streams.job_key(policy.job_id)]
        await self._run("announce", keys, [policy.attempt, *_flat(encode(policy))])

    async def newest_policy(self, job_id: str) -> PolicyVersion | None:
        """The last announced policy, if there is one."""
        rows = await self.writer.xrevrange(streams.POLICY.key(job_id), count=1)
        return decode(PolicyVersion, cast(dict[bytes, bytes], rows[0][1])) if rows else None

    async def record_event(self, event: JobEvent) -> bool:
        """Record an event; False if one with its id was recorded before."""
        keys = [streams.EVENTS.key(event.job_id), streams.event_ids_key(event.job_id)]
        return bool(await self._produce("record_event", keys, [event.id, *_flat(encode(event))]))

    async def events(
        self, job_id: str, *, after: str = "0", count: int = 1000, wait_s: float | None = None
    ) -> list[tuple[str, JobEvent]]:
        """Events recorded after the entry id ``after``, oldest first, each with its entry id."""
        block = _block_ms(wait_s) if wait_s else None
        key = streams.EVENTS.key(job_id)
        reply = await self.reader.xread({key: after}, count=count, block=block)
        return [
            (entry_id.decode(), decode(JobEvent, fields))
            for rows in cast(_Rows, reply).values()
            for entry_id, fields in rows
        ]

    # ------------------------------------------------------------------ jobs

    async def submit(self, record: JobRecord) -> bool:
        """Queue a job; False if one with its id exists."""
        values = _record_fields(record)
        keys = [streams.job_key(record.id), streams.JOBS.key(), _JOB_INDEX]
        args = [record.id, record.created_at, len(values), *_flat(values)]
        entry = _flat(encode(JobRef(job_id=record.id)))
        return bool(await self._produce("submit", keys, [*args, *entry]))

    async def job(self, job_id: str) -> JobRecord | None:
        """A job's record, if there is such a job."""
        stored = await cast(
            Awaitable[dict[bytes, bytes]], self.writer.hgetall(streams.job_key(job_id))
        )
        if not stored:
            return None
        values = {name.decode(): json.loads(value) for name, value in stored.items()}
        return JobRecord.model_validate(values)

    async def job_ids(self) -> list[str]:
        """The ids of all jobs, newest first."""
        rows = cast(list[bytes], await self.writer.zrevrange(_JOB_INDEX, 0, -1))
        return [row.decode() for row in rows]

    async def request_state(self, job_id: str, requested: Requested) -> JobState | None:
        """Say what the user wants of a job; returns its state, None if there is no such job.

        Who has asked to cancel cannot change their mind. This works when memory is full.
        """
        args = [json.dumps(requested), json.dumps(time.time())]
        state = await self._run("request_state", [streams.job_key(job_id)], args)
        return None if state is None else JobState(json.loads(state))

    async def requested_state(self, job_id: str) -> Requested | None:
        """What the user wants of a job, None if there is no such job."""
        value = await cast(
            Awaitable[bytes | None], self.writer.hget(streams.job_key(job_id), "requested")
        )
        return None if value is None else Requested(json.loads(value))

    async def next_job(self, wait_s: float) -> Delivery[JobRef] | None:
        """The job to work on: the one already taken up, else the next in the queue."""
        key, group = streams.JOBS.key(), str(streams.JOBS.group)
        await self._run("create_group", [key], [group])
        for position, block in (("0", None), (">", _block_ms(wait_s) if wait_s else None)):
            reply = await self.reader.xreadgroup(
                group, _LEARNER, {key: position}, count=1, block=block
            )
            for entry_id, fields in cast(_Rows, reply).get(key.encode(), []):
                ref = decode(JobRef, fields)
                return Delivery(streams.JOBS, ref.job_id, entry_id.decode(), ref.job_id, fields)
        return None

    async def begin_attempt(self, job_id: str) -> int:
        """Begin a life of the learner: make the job's streams, and fence every earlier attempt.

        Raises:
            Fenced: if there is no such job, or it has ended.
        """
        keys = [streams.job_key(job_id), _attempt_token_key(job_id)]
        attempt = int(await self._run("begin_attempt", keys, [secrets.token_hex(8)]))
        for stream in streams.WORK_STREAMS:
            await self._run("create_group", [stream.key(job_id)], [str(stream.group)])
        return attempt

    async def activate(self, active: ActiveJob) -> None:
        """Name the job that this stack works on.

        Raises:
            Fenced: if its attempt is not the current one.
        """
        keys = [streams.ACTIVE, streams.job_key(active.job_id)]
        await self._run("activate", keys, [active.attempt, active.model_dump_json()])

    async def active(self) -> ActiveJob | None:
        """The job that this stack works on, if any."""
        stored = await self.writer.get(streams.ACTIVE)
        return None if stored is None else ActiveJob.model_validate_json(cast(bytes, stored))

    async def update_job(self, job_id: str, attempt: int, **values: Any) -> None:
        """Write fields of a job's record.

        Raises:
            Fenced: if ``attempt`` is not the current one.
        """
        fields = {name.encode(): json.dumps(value).encode() for name, value in values.items()}
        await self._run("update_job", [streams.job_key(job_id)], [attempt, *_flat(fields)])

    async def close_job(self, delivery: Delivery[JobRef], attempt: int, **values: Any) -> None:
        """End a job: write its last word, delete its work streams, and free the stack.

        Raises:
            Fenced: if ``attempt`` is not the current one.
        """
        job_id = delivery.job_id
        fields = {name.encode(): json.dumps(value).encode() for name, value in values.items()}
        doomed = [stream.key(job_id) for stream in (*streams.WORK_STREAMS, streams.POLICY)]
        doomed += [streams.under_way_key(job_id), streams.faults_key(job_id)]
        doomed.append(_attempt_token_key(job_id))
        keys = [streams.job_key(job_id), streams.JOBS.key(), streams.ACTIVE, *doomed]
        args = [attempt, job_id, str(streams.JOBS.group), delivery.entry_id, *_flat(fields)]
        await self._run("close_job", keys, args)

    async def forget_queued(self, delivery: Delivery[JobRef]) -> None:
        """Take a job that ended before it began out of the queue."""
        args = [str(streams.JOBS.group), delivery.entry_id]
        await self._run("forget_queued", [streams.JOBS.key()], args)

    # ------------------------------------------------------------------ verdicts

    async def recall_verdict(self, digest: str) -> str | None:
        """What was remembered under the digest of a question to a judge, if it still is."""
        args = [digest, time.time()]
        stored = await self._run("recall_verdict", [streams.VERDICTS, streams.VERDICT_USES], args)
        return None if stored is None else cast(bytes, stored).decode()

    async def remember_verdict(self, digest: str, verdict: str, max_bytes: int) -> None:
        """Remember a verdict, in the place of those used longest ago if all exceed ``max_bytes``.

        Each counts with its bytes and 256 for its bookkeeping. When the server's memory is full
        nothing is remembered: that is no reason to wait.
        """
        keys = [streams.VERDICTS, streams.VERDICT_USES, streams.VERDICT_BYTES]
        with suppress(errors.OutOfMemoryError):
            await self._run("remember_verdict", keys, [digest, verdict, time.time(), max_bytes])

    # ------------------------------------------------------------------ the server

    async def ping(self) -> None:
        """Raise unless the server answers."""
        await cast(Awaitable[bool], self.writer.ping())

    async def memory_limit(self) -> int | None:
        """The server's ``maxmemory`` in bytes, None if it has no limit."""
        return int((await self.writer.info("memory"))["maxmemory"]) or None

    # ------------------------------------------------------------------ inside

    async def _run(self, name: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        script = _SCRIPTS[name]
        try:
            try:
                return await self.writer.evalsha(script.sha, len(keys), *keys, *args)
            except errors.NoScriptError:
                # Loading it and calling it by its hash would fail if the server went in between.
                return await self.writer.eval(script.text, len(keys), *keys, *args)
        except errors.ResponseError as error:
            if str(error).startswith("FENCED"):
                raise Fenced(str(error)) from error
            raise

    async def _produce(self, name: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        return await self._until_memory(lambda: self._run(name, keys, args))

    async def _until_memory(self, write: Callable[[], Awaitable[Any]]) -> Any:
        """Memory full is back-pressure: whoever adds work waits while others drain it."""
        while True:
            try:
                return await write()
            except errors.OutOfMemoryError:
                self.backpressure_seconds += _MEMORY_FULL_PAUSE_S
                await asyncio.sleep(_MEMORY_FULL_PAUSE_S)

    async def _claim(
        self, inputs: Sequence[Stream[M]], job_id: str, count: int, wait_s: float
    ) -> list[Delivery[M]]:
        claimed: list[Delivery[M]] = []
        for stream in inputs:
            if len(claimed) < count:
                claimed += await self._read([stream], job_id, count - len(claimed), None)
        if claimed or wait_s <= 0:
            return claimed
        return await self._read(inputs, job_id, 1, _block_ms(wait_s))

    async def _read(
        self, inputs: Sequence[Stream[M]], job_id: str, count: int, block_ms: int | None
    ) -> list[Delivery[M]]:
        by_key = {stream.key(job_id).encode(): stream for stream in inputs}
        reply = await self.reader.xreadgroup(
            str(inputs[0].group), self.me, {key: ">" for key in by_key}, count=count, block=block_ms
        )
        return [
            _delivery(by_key[key], job_id, entry_id, fields)
            for key, rows in cast(_Rows, reply).items()
            for entry_id, fields in rows
        ]


class _PatientRedis(Redis):
    """A client that repeats a command while the server is away, but not for ever.

    redis-py's own retries are switched off: they multiply (those of connecting within those of the
    command) and would wait two minutes for a wrong password to become right. So is its socket
    timeout: it writes within `asyncio.wait_for`, which in Python 3.11 can swallow a cancellation.
    """

    patience_s = 0.0
    answer_s = 0.0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command; connection errors surface after ``patience_s`` of them."""
        deadline, pause_s = None, 0.02
        while True:
            try:
                return await self._execute_once(*args, **options)
            except (errors.AuthenticationError, errors.AuthorizationError):
                raise
            except (errors.ConnectionError, errors.TimeoutError):
                deadline = deadline or time.monotonic() + self.patience_s
                if time.monotonic() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    async def _execute_once(self, *args: Any, **options: Any) -> Any:
        try:
            async with asyncio.timeout(self.answer_s):
                return await super().execute_command(*args, **options)
        except TimeoutError as error:
            text = f"Redis did not answer {args[0]} within {self.answer_s:g} s"
            raise errors.TimeoutError(text) from error


@asynccontextmanager
async def connect(url: str, *, me: str, patience_s: float = 120.0) -> AsyncIterator[Exchange]:
    """Open an exchange. Commands are repeated for ``patience_s`` while the server is away."""
    settings: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,
        "legacy_responses": False,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    # Reads block on the server, each on a connection of its own. Writes take turns on a few.
    reading = ConnectionPool.from_url(url, max_connections=10_000, **settings)
    writing = BlockingConnectionPool.from_url(url, max_connections=16, timeout=None, **settings)
    reader = cast(_PatientRedis, _PatientRedis.from_pool(reading))
    writer = cast(_PatientRedis, _PatientRedis.from_pool(writing))
    reader.patience_s = writer.patience_s = patience_s
    reader.answer_s, writer.answer_s = _READER_ANSWER_S, _WRITER_ANSWER_S
    try:
        yield Exchange(me=me, writer=writer, reader=reader)
    finally:
        await writer.aclose()
        await reader.aclose()


async def _if_job_ended(fallback: T, command: Awaitable[T]) -> T:
    """What a command on a job's streams returns, or ``fallback`` if the job took them with it."""
    try:
        return await command
    except errors.ResponseError as error:
        # Redis 7.0 says UNBLOCKED to who waits on a stream that goes, later ones say NOGROUP.
        if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
            raise
        return fallback


def _block_ms(wait_s: float) -> int:
    """BLOCK in milliseconds; 0 would mean for ever."""
    return max(1, round(min(wait_s, _LONGEST_BLOCK_S) * 1000))


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


def _attempt_token_key(job_id: str) -> str:
    return f"{streams.job_key(job_id)}:attempt_token"


def _record_fields(record: JobRecord) -> dict[bytes, bytes]:
    values = record.model_dump(mode="json")
    return {name.encode(): json.dumps(value).encode() for name, value in values.items()}


def _flat(fields: Mapping[bytes, bytes]) -> list[bytes]:
    return [part for pair in fields.items() for part in pair]


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
