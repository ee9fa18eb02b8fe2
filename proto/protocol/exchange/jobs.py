"""Jobs: their records, their queue, and the active job."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import starmap
from typing import Any, NamedTuple, cast

from pydantic import ValidationError
from pydantic_core import from_json

from protocol import STORED_VERSION, __version__, streams
from protocol.exchange.connection import Connection, block_ms, flat, pairs
from protocol.exchange.queue import Delivery
from protocol.frames import encode
from protocol.messages import ActiveJob, Fault, JobError, JobRecord, JobRef, JobState, Requested
from protocol.recipe_files import explain

JOB_INDEX = streams.PREFIX + "job_index"
RECORD = streams.job_key("")  # the prefix of the keys of records
_SCAN_SIZE = 1000  # records in one script, which blocks the server
_MEASURED_JOBS = 500  # in one script
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_CHANGING = sorted(set(JobRecord.model_fields) - {"recipe", "request"})
_as_active = lru_cache(maxsize=1)(ActiveJob.model_validate_json)  # all services read it often
_HELD_UP = streams.PREFIX + "held_up"  # the ids of jobs that wait for a repair


class UnreadableRecord(Exception):
    """A job's record is damaged or from another release; other jobs are not affected.

    Such a job cannot run: its ``state`` is failed, or cancelled if the user requested that.
    """

    def __init__(self, job_id: str, problem: str, stored: Mapping[bytes, bytes]) -> None:
        super().__init__(
            f"release {__version__} of Weir cannot read the record of job {job_id}: {problem}; run "
            "the release that wrote it, or cancel the job and submit it again"
        )
        self.id = job_id
        is_cancelled = stored.get(b"requested") == json.dumps(Requested.CANCEL).encode()
        self.state = JobState.CANCELLED if is_cancelled else JobState.FAILED


AnyRecord = JobRecord | UnreadableRecord


class Lease(NamedTuple):
    """The learner that may start jobs, and the number of its heartbeats."""

    holder: str
    beats: int


class Queue(NamedTuple):
    """The next job, or "", the begun jobs, and the jobs that can run, in order."""

    first: str
    begun: Sequence[str]
    order: Sequence[str]


@dataclass(frozen=True)
class JobQuery:
    """A search for jobs; an empty field matches all."""

    states: Sequence[JobState] = ()
    text: str = ""  # of the id, the recipe's name, the model or a label, in any case
    name: str = ""  # of the recipe
    model: str = ""  # as the request names it
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any((self.states, self.text, self.name, self.model, self.metadata))

    def args(self) -> list[str]:
        """Return the texts of matching JSON for the script; other jobs may match them as well."""
        model = [_pair("model", self.model)] if self.model else []
        name = _pair("name", self.name) if self.name else ""
        # The script folds the case of ASCII only.
        text = json.dumps(max(_NOT_ASCII.split(self.text.lower()), key=len))[1:-1]
        states = " ".join(map(json.dumps, self.states))
        return [states, text, name, *model, *starmap(_pair, self.metadata.items())]

    def fits(self, record: AnyRecord) -> bool:
        """Whether a job matches; an unreadable one matches only an empty query."""
        if self.is_empty:
            return True
        if not isinstance(record, JobRecord):
            return False
        metadata = record.request.get("metadata")
        labels = metadata if isinstance(metadata, dict) else {}
        name = record.recipe.name
        model = record.request.get("model")
        texts = (record.id, name, str(model), *map(str, labels.values()))
        return (
            (not self.states or record.state in self.states)
            and any(self.text.lower() in text.lower() for text in texts)
            and self.name in ("", name)
            and self.model in ("", model)
            and self.metadata.items() <= labels.items()
        )


ALL_JOBS = JobQuery()


class Jobs(Connection):
    async def submit(self, record: JobRecord) -> bool:
        """Queue a job; return False if its id exists."""
        fields = _fields({"version": STORED_VERSION, **record.model_dump(mode="json")})
        keys = [streams.job_key(record.id), streams.JOBS.key(), JOB_INDEX]
        args = [record.id, record.created_at, len(fields), *fields]
        entry = flat(encode(JobRef(job_id=record.id)))
        return bool(await self.produce("submit", keys, [*args, *entry]))

    async def job(self, job_id: str) -> JobRecord | None:
        """Return a job's record or None, or raise its `UnreadableRecord`."""
        if ":" in job_id:
            return None  # the id would name another key
        (record,) = await self.records([job_id]) or [None]
        if isinstance(record, UnreadableRecord):
            raise record
        return record

    async def job_ids(self, count: int = 0) -> list[str]:
        """Return the ids of the newest ``count`` jobs, or of all, newest first."""
        rows = cast(list[bytes], await self.writer.zrevrange(JOB_INDEX, 0, count - 1))
        return [row.decode() for row in rows]

    async def queue(self) -> Queue:
        first, *lists = await self.run("queue", [streams.JOBS.key(), _HELD_UP], [RECORD])
        return Queue(first.decode(), *([job_id.decode() for job_id in ids] for ids in lists))

    async def request_state(
        self, job_id: str, requested: Requested, budget: float | None = None
    ) -> None:
        """Store the user's request for a job, if there is such a job and it has not ended.

        A ``budget`` in GPU-hours replaces the job's, even if it has ended.
        The learner obeys for the active job; any other is paused, queued again or cancelled at
        once. A cancel request is final. This works when memory is full.
        """
        keys = [streams.job_key(job_id), streams.ACTIVE, _HELD_UP, *_work_keys(job_id)]
        args = [json.dumps(requested), json.dumps(time.time()), job_id, json.dumps(budget)]
        await self.run("request_state", keys, args)

    async def requested_state(self, job_id: str) -> Requested | None:
        """Return the user's request, None if there is no job; ValueError if unreadable."""
        value = self.pulse.hget(streams.job_key(job_id), "requested")
        wish = await cast(Awaitable[bytes | None], value)
        return None if wish is None else Requested(json.loads(wish))

    async def changed_budget(self, job_id: str) -> float | None:
        """Return the budget that has replaced the recipe's, if one has."""
        value = self.pulse.hget(streams.job_key(job_id), "budget_gpu_hours")
        stored = await cast(Awaitable[bytes | None], value)
        return None if stored is None else json.loads(stored)

    async def revive(self, job_id: str) -> None:
        """Queue a failed job again, to resume from its last checkpoint."""
        keys = [streams.job_key(job_id), streams.JOBS.key()]
        await self.produce("revive", keys, flat(encode(JobRef(job_id=job_id))))

    async def renew_lease(self, instead_of: Lease | None = None) -> Lease:
        """Take or renew the learner's lease if it is free, or if ``instead_of`` is unchanged."""
        args = [self.me, *(instead_of or ("", ""))]
        holder, beats = await self.run("renew_lease", [streams.LEARNER], args, client=self.pulse)
        return Lease(holder.decode(), int(beats))

    async def release_lease(self) -> None:
        await self.run("release_lease", [streams.LEARNER], [self.me])

    async def next_job(self, wait_s: float) -> Delivery[JobRef] | None:
        """Return the active job, or the oldest one that can run, for an idle learner.

        A paused job keeps its place in the queue. A held-up job waits until a job ends or is
        paused, or until it is the only one.
        """
        job = await self._next_job()
        if job is None and wait_s:
            # A submission ends the wait; the next call finds a resumed job.
            block = block_ms(wait_s)
            if await self.reader.xread({streams.JOBS.key(): "$"}, count=1, block=block):
                job = await self._next_job()
        return job

    async def begin_attempt(self, job_id: str) -> int:
        """Begin an attempt: create the job's streams, and fence earlier attempts."""
        keys = [
            streams.job_key(job_id),
            _attempt_token_key(job_id),
            streams.LEARNER,
            streams.BILLED,
        ]
        keys += [stream.key(job_id) for stream in streams.WORK_STREAMS]
        groups = [str(stream.group) for stream in streams.WORK_STREAMS]
        args = [secrets.token_hex(8), self.me, job_id, *groups]
        return int(await self.run("begin_attempt", keys, args))

    async def activate(self, active: ActiveJob) -> None:
        """Set the active job; raise ValueError if no worker could read it."""
        job_key = streams.job_key(active.job_id)
        keys = [streams.ACTIVE, job_key, streams.LEARNER, streams.BILLED]
        stored = active.model_dump_json()
        ActiveJob.model_validate_json(stored)
        await self.run("activate", keys, [active.attempt, stored, self.me, active.job_id])

    async def active(self) -> ActiveJob | None:
        """Return the active job, or None if there is none that this release can read."""
        stored = await self.pulse.get(streams.ACTIVE)
        try:
            return None if stored is None else _as_active(cast(bytes, stored))
        except ValidationError:
            return None

    async def update_job(self, job_id: str, attempt: int, **values: Any) -> None:
        """Write fields of a job's record, if ``attempt`` is the current one."""
        args = [attempt, *self._stored(values)]
        await self.run("update_job", [streams.job_key(job_id)], args)

    async def pause_job(
        self,
        job_id: str,
        attempt: int,
        error: JobError | str | None,
        held_up_by: Fault | None = None,
    ) -> bool:
        """Pause a job, so that the stack works on another one.

        A held-up job keeps its work, and continues when ``error`` is repaired. The work of a job
        that waits for a person is deleted to free memory, and the next attempt requests it again.
        Return False if the job was resumed or cancelled meanwhile.
        """
        keys = [streams.job_key(job_id), streams.ACTIVE, _HELD_UP, *_work_keys(job_id)]
        keys.append(streams.BILLED)
        args = [attempt, job_id, json.dumps(held_up_by), json.dumps(self._redact(error))]
        return bool(await self.run("pause_job", keys, args))

    async def close_job(self, delivery: Delivery[JobRef], attempt: int, **values: Any) -> None:
        """End a job: write its last fields, delete its work streams, and free the stack."""
        job_id = delivery.job_id
        keys = [streams.job_key(job_id), streams.JOBS.key(), streams.ACTIVE, _HELD_UP]
        args = [attempt, job_id, delivery.entry_id, *self._stored(values)]
        await self.run("close_job", [*keys, *_work_keys(job_id), streams.BILLED], args)

    async def forget_queued(self, delivery: Delivery[JobRef]) -> None:
        """Remove a job from the queue that can neither run nor end."""
        await cast(Awaitable[int], self.writer.xdel(streams.JOBS.key(), delivery.entry_id))

    async def records(self, job_ids: Sequence[str]) -> list[AnyRecord]:
        if not job_ids:
            return []
        rows = await self.run("records", [RECORD + job_id for job_id in job_ids], [])
        stored = zip(job_ids, rows, strict=True)
        return [_readable_or_not(job_id, flat) for job_id, flat in stored if flat]

    async def changing(self, job_ids: Sequence[str]) -> dict[str, list[bytes | None]]:
        """Return the stored fields of these jobs that may change: not recipe and request."""
        if not job_ids:
            return {}
        keys = [RECORD + job_id for job_id in job_ids]
        return dict(zip(job_ids, await self.run("records", keys, _CHANGING), strict=True))

    async def find_jobs(
        self, after: str | None, count: int, query: JobQuery = ALL_JOBS
    ) -> list[AnyRecord] | None:
        """Return up to ``count`` matching jobs, newest first; None if ``after`` does not exist."""
        matches: list[AnyRecord] = []
        place = after or ""
        while len(matches) < count:
            scan_size = count if query.is_empty else _SCAN_SIZE
            args = [RECORD, place, count - len(matches), scan_size, *query.args()]
            reply = await self.run("find_jobs", [JOB_INDEX], args)
            if reply is None:
                return matches if place != (after or "") else None
            records = await self.records([job_id.decode() for job_id in reply[1]])
            matches += [record for record in records if query.fits(record)]
            place = reply[0].decode()
            if not place:
                break
        return matches

    async def count_states(self) -> dict[JobState, int]:
        """Count the jobs in each state; unknown states count as failed."""
        flat = await self.run("count_states", [JOB_INDEX], [RECORD])
        counts = dict.fromkeys(JobState, 0)
        for stored, count in pairs(flat).items():
            name = stored.decode(errors="replace").strip('"')
            counts[JobState(name) if name in set(JobState) else JobState.FAILED] += count
        return counts

    async def find_mentions(self, text: str) -> list[AnyRecord]:
        job_ids = await self.run("find_mentions", [streams.JOBS.key()], [RECORD, text])
        return await self.records([job_id.decode() for job_id in job_ids])

    async def submitted_since(self, moment: float, request: Mapping[str, object]) -> str | None:
        """Return the newest uncancelled job of this request since ``moment``, or None."""
        job_id = await self.run("submitted", [JOB_INDEX], [RECORD, moment, json.dumps(request)])
        return None if job_id is None else job_id.decode()

    async def forget_job(self, job_id: str) -> bool:
        """Delete the record, events and cost of an ended job; return False if it has not ended."""
        keys = [streams.job_key(job_id), JOB_INDEX]
        keys += [*streams.event_keys(job_id), streams.cost_key(job_id)]
        return bool(await self.run("forget_job", keys, [job_id]))

    async def forget_oldest(self, max_bytes: int) -> list[str]:
        """Forget the oldest ended jobs beyond ``max_bytes`` of memory; return their ids."""
        total = 0
        doomed: list[str] = []
        async for job_id, size in self._job_sizes():
            total += size
            if size and total > max_bytes:
                doomed.append(job_id)
        return [job_id for job_id in reversed(doomed) if await self.forget_job(job_id)]

    async def _job_sizes(self) -> AsyncIterator[tuple[str, int]]:
        """Yield each job, newest first, with its bytes in memory if it has ended."""
        kept_keys = [*streams.event_keys("%s"), streams.cost_key("%s")]
        first = 0
        while True:
            args = [RECORD, *kept_keys, first, first + _MEASURED_JOBS - 1]
            flat = await self.run("measure_jobs", [JOB_INDEX], args)
            for job_id, size in pairs(flat).items():
                yield job_id.decode(), size
            if len(flat) < 2 * _MEASURED_JOBS:
                return
            first += _MEASURED_JOBS

    def _redact(self, error: JobError | str | None) -> dict[str, Any] | None:
        """Return the error as a record stores it; a text becomes an error."""
        if not error:
            return None
        if isinstance(error, str):
            error = JobError(message=error)
        return error.model_dump() | {"message": self.redact(error.message)}

    def _stored(self, values: dict[str, Any]) -> list[str]:
        if "error" in values:
            values = values | {"error": self._redact(values["error"])}
        return _fields(values)

    async def _next_job(self) -> Delivery[JobRef] | None:
        keys = [streams.JOBS.key(), streams.ACTIVE, _HELD_UP, streams.BILLED]
        entry = await self.run("next_job", keys, [RECORD])
        if entry is None:
            return None
        entry_id, job_id = (part.decode() for part in entry)
        return Delivery(streams.JOBS, job_id, entry_id, job_id, {})


def _work_keys(job_id: str) -> list[str]:
    work = [stream.key(job_id) for stream in (*streams.WORK_STREAMS, streams.POLICY)]
    work += [streams.pending_key(job_id), streams.faults_key(job_id), _attempt_token_key(job_id)]
    return work


def _attempt_token_key(job_id: str) -> str:
    return f"{streams.job_key(job_id)}:attempt_token"


def _fields(values: Mapping[str, Any]) -> list[str]:
    """Return alternating names and values of a record."""
    return [part for name, value in values.items() for part in (name, json.dumps(value))]


def _readable_or_not(job_id: str, flat: Sequence[bytes]) -> AnyRecord:
    stored = pairs(flat)
    values: dict[str, Any] = {}
    for key, value in stored.items():
        name = key.decode(errors="backslashreplace")
        try:
            values[name] = from_json(value)  # refuses values that cannot be written again
        except ValueError as error:
            return UnreadableRecord(job_id, f"{name}: {error}", stored)
    version = values.pop("version", 1)
    if version != STORED_VERSION:
        problem = f"its version is {version}, and this release reads version {STORED_VERSION}"
        return UnreadableRecord(job_id, problem, stored)
    try:
        return JobRecord.model_validate(values)
    except ValidationError as error:
        return UnreadableRecord(job_id, explain(error, whole="record"), stored)


def _pair(name: str, value: str) -> str:
    """Return a pair in the syntax of a stored record."""
    return f"{json.dumps(name)}: {json.dumps(value)}"
