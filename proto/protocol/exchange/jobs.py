"""Jobs: their records, their queue, and which one the stack works on."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, cast

from pydantic import ValidationError
from pydantic_core import from_json

from protocol import __version__, streams
from protocol.exchange.connection import Connection, Rows, block_ms, flat
from protocol.exchange.work import Delivery
from protocol.frames import FrameError, decode, encode
from protocol.messages import ActiveJob, JobRecord, JobRef, JobState, Requested
from protocol.recipe import explain

_LEARNER = "learner"  # one learner per stack: its next life finds what the last one had claimed
_JOB_INDEX = streams.PREFIX + "job_index"


class UnreadableRecord(Exception):
    """A job's record is damaged, or another release has written it; no other job is concerned.

    Such a job cannot be worked on: its ``state`` is failed, or cancelled if the user wants that.
    """

    def __init__(self, job_id: str, problem: str, stored: Mapping[bytes, bytes]) -> None:
        super().__init__(
            f"release {__version__} of Weir cannot read the record of job {job_id}: {problem}; run "
            "the release that wrote it, or cancel the job and submit it again"
        )
        self.id = job_id
        is_cancelled = stored.get(b"requested") == json.dumps(Requested.CANCEL).encode()
        self.state = JobState.CANCELLED if is_cancelled else JobState.FAILED


class Lease(NamedTuple):
    """Which learner takes up jobs, and how many heartbeats it has shown."""

    holder: str
    beats: int


class Jobs(Connection):
    """What the gateway and the learner do with jobs."""

    async def submit(self, record: JobRecord) -> bool:
        """Queue a job; False if one with its id exists."""
        values = _record_fields(record)
        keys = [streams.job_key(record.id), streams.JOBS.key(), _JOB_INDEX]
        args = [record.id, record.created_at, len(values), *flat(values)]
        entry = flat(encode(JobRef(job_id=record.id)))
        return bool(await self.produce("submit", keys, [*args, *entry]))

    async def job(self, job_id: str) -> JobRecord | None:
        """A job's record, if there is such a job.

        Raises:
            UnreadableRecord: if this release cannot read it.
        """
        if ":" in job_id:
            return None  # another key of a job's
        stored = await cast(
            Awaitable[dict[bytes, bytes]], self.writer.hgetall(streams.job_key(job_id))
        )
        if not stored:
            return None
        try:
            return _read_record(stored)
        except ValueError as error:
            raise UnreadableRecord(job_id, str(error), stored) from error

    async def job_ids(self) -> list[str]:
        """The ids of all jobs, newest first."""
        rows = cast(list[bytes], await self.writer.zrevrange(_JOB_INDEX, 0, -1))
        return [row.decode() for row in rows]

    async def queue(self) -> list[str]:
        """The ids of the jobs that have not ended, in the order in which they are worked on.

        An entry that is not readable, which the learner will set aside, is left out.
        """
        rows = cast(
            list[tuple[bytes, dict[bytes, bytes]]],
            await self.writer.xrange(streams.JOBS.key()),
        )
        ids: list[str] = []
        for _, fields in rows:
            with suppress(FrameError):
                ids.append(decode(JobRef, fields).job_id)
        return ids

    async def request_state(self, job_id: str, requested: Requested) -> None:
        """Say what the user wants of a job, if there is such a job and it has not ended.

        Who has asked to cancel cannot change their mind. This works when memory is full.
        """
        args = [json.dumps(requested), json.dumps(time.time())]
        await self.run("request_state", [streams.job_key(job_id)], args)

    async def requested_state(self, job_id: str) -> Requested | None:
        """What the user wants of a job, None if there is no such job.

        Raises:
            ValueError: if this release cannot read it.
        """
        value = await cast(
            Awaitable[bytes | None], self.writer.hget(streams.job_key(job_id), "requested")
        )
        return None if value is None else Requested(json.loads(value))

    async def revive(self, job_id: str) -> None:
        """Queue a failed job again, to go on from its last checkpoint; no other job is touched."""
        keys = [streams.job_key(job_id), streams.JOBS.key()]
        await self.produce("revive", keys, flat(encode(JobRef(job_id=job_id))))

    async def hold_lease(self, instead_of: Lease | None = None) -> Lease:
        """Show that the lease on the learner's role is still ours, or take it if nobody holds it.

        Args:
            instead_of: take it from this holder too, unless it has shown life since.

        Returns:
            Who holds it now.
        """
        holder, beats = await self.run(
            "hold_lease", [streams.LEARNER], [self.me, *(instead_of or ("", ""))]
        )
        return Lease(holder.decode(), int(beats))

    async def release_lease(self) -> None:
        """Give up the lease on the learner's role, if it is ours."""
        await self.run("release_lease", [streams.LEARNER], [self.me])

    async def next_job(self, wait_s: float) -> Delivery[JobRef] | None:
        """The job to work on: the one already taken up, else the next in the queue."""
        key, group = streams.JOBS.key(), str(streams.JOBS.group)
        await self.run("create_group", [key], [group])
        for position, block in (("0", None), (">", block_ms(wait_s) if wait_s else None)):
            reply = await self.reader.xreadgroup(
                group, _LEARNER, {key: position}, count=1, block=block
            )
            for entry_id, fields in cast(Rows, reply).get(key.encode(), []):
                ref = decode(JobRef, fields)
                return Delivery(streams.JOBS, ref.job_id, entry_id.decode(), ref.job_id, fields)
        return None

    async def begin_attempt(self, job_id: str) -> int:
        """Begin a life of the learner: make the job's streams, and fence every earlier attempt.

        Raises:
            Fenced: if there is no such job, or it has ended, or another learner holds the lease.
        """
        keys = [streams.job_key(job_id), _attempt_token_key(job_id), streams.LEARNER]
        attempt = int(await self.run("begin_attempt", keys, [secrets.token_hex(8), self.me]))
        for stream in streams.WORK_STREAMS:
            await self.run("create_group", [stream.key(job_id)], [str(stream.group)])
        return attempt

    async def activate(self, active: ActiveJob) -> None:
        """Name the job that this stack works on.

        Raises:
            Fenced: if its attempt is not the current one.
            ValueError: if no worker could read it.
        """
        keys, stored = [streams.ACTIVE, streams.job_key(active.job_id)], active.model_dump_json()
        ActiveJob.model_validate_json(stored)
        await self.run("activate", keys, [active.attempt, stored])

    async def active(self) -> ActiveJob | None:
        """The job that this stack works on, if any that this release can read."""
        stored = await self.writer.get(streams.ACTIVE)
        try:
            return None if stored is None else ActiveJob.model_validate_json(cast(bytes, stored))
        except ValidationError:
            return None

    async def update_job(self, job_id: str, attempt: int, **values: Any) -> None:
        """Write fields of a job's record.

        Raises:
            Fenced: if ``attempt`` is not the current one.
        """
        fields = {name.encode(): json.dumps(value).encode() for name, value in values.items()}
        await self.run("update_job", [streams.job_key(job_id)], [attempt, *flat(fields)])

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
        args = [attempt, job_id, str(streams.JOBS.group), delivery.entry_id, *flat(fields)]
        await self.run("close_job", keys, args)

    async def forget_queued(self, delivery: Delivery[JobRef]) -> None:
        """Take a job that ended before it began out of the queue."""
        args = [str(streams.JOBS.group), delivery.entry_id]
        await self.run("forget_queued", [streams.JOBS.key()], args)


def _attempt_token_key(job_id: str) -> str:
    return f"{streams.job_key(job_id)}:attempt_token"


def _read_record(stored: Mapping[bytes, bytes]) -> JobRecord:
    values: dict[str, Any] = {}
    for name, value in stored.items():
        field = name.decode(errors="backslashreplace")
        try:
            values[field] = from_json(value)  # which refuses what could not be written again
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from error
    try:
        return JobRecord.model_validate(values)
    except ValidationError as error:
        raise ValueError(explain(error, whole="record")) from error


def _record_fields(record: JobRecord) -> dict[bytes, bytes]:
    values = record.model_dump(mode="json")
    return {name.encode(): json.dumps(value).encode() for name, value in values.items()}
