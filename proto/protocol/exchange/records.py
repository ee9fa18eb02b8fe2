"""Records of many jobs: listed, searched, counted, and forgotten, in few looks at the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from protocol import streams
from protocol.exchange.connection import Connection
from protocol.exchange.jobs import JOB_INDEX, RECORD, UnreadableRecord, read_record
from protocol.messages import JobRecord, JobState

AnyRecord = JobRecord | UnreadableRecord
_MOST_LOOKED_AT = 1000  # records, while nobody else is served
_WEIGHED = 500
_CHANGING = sorted(set(JobRecord.model_fields) - {"recipe", "request"})


class Records(Connection):
    """What the gateway does with the records of many jobs."""

    async def records(self, job_ids: Sequence[str]) -> list[AnyRecord]:
        """The records of these jobs, as far as they exist."""
        if not job_ids:
            return []
        found = await self.run("records", [streams.job_key(job_id) for job_id in job_ids], [])
        pairs = zip(job_ids, found, strict=True)
        return [_readable_or_not(job_id, flat) for job_id, flat in pairs if flat]

    async def changing(self, job_ids: Sequence[str]) -> dict[str, list[bytes | None]]:
        """All but the recipes and requests of these jobs' records, as it is stored.

        While that is the same, so is the record: those never change, and may be large.
        """
        if not job_ids:
            return {}
        keys = [streams.job_key(job_id) for job_id in job_ids]
        return dict(zip(job_ids, await self.run("changing", keys, _CHANGING), strict=True))

    async def find_jobs(
        self, after: str | None, count: int, metadata: Mapping[str, str]
    ) -> list[AnyRecord] | None:
        """Up to ``count`` jobs after the job ``after``, newest first, with these labels.

        Returns None if there is no job ``after``.
        """
        # As `json.dumps` writes a pair into the request.
        texts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in metadata.items()]
        found: list[AnyRecord] = []
        place = after or ""
        while len(found) < count:
            look_at = _MOST_LOOKED_AT if texts else count
            args = [RECORD, place, count - len(found), look_at, *texts]
            reply = await self.run("find_jobs", [JOB_INDEX], args)
            if reply is None:
                return found if place != (after or "") else None
            records = await self.records([job_id.decode() for job_id in reply[1]])
            found += [record for record in records if _has(record, metadata)]
            place = reply[0].decode()
            if not place:
                break
        return found

    async def count_states(self) -> dict[JobState, int]:
        """How many jobs are in each state; one of another release counts as failed."""
        flat = await self.run("count_states", [JOB_INDEX], [RECORD])
        counts = dict.fromkeys(JobState, 0)
        for stored, count in _pairs(flat):
            name = stored.decode(errors="replace").strip('"')
            counts[JobState(name) if name in set(JobState) else JobState.FAILED] += count
        return counts

    async def jobs_that_name(self, text: str) -> list[AnyRecord]:
        """The jobs that have not ended and in whose recipe the text stands."""
        found = await self.run("jobs_that_name", [streams.JOBS.key()], [RECORD, text])
        return await self.records([job_id.decode() for job_id in found])

    async def submitted_since(self, moment: float, request: Mapping[str, object]) -> str | None:
        """The id of the newest job that this request made since then and nobody cancelled."""
        args = [RECORD, moment, json.dumps(request)]
        job_id = await self.run("submitted", [JOB_INDEX], args)
        return None if job_id is None else job_id.decode()

    async def forget_job(self, job_id: str) -> bool:
        """Delete the record and the events of a job that has ended; False if it has not."""
        keys = [streams.job_key(job_id), JOB_INDEX, *_keys_of_news(job_id)]
        return bool(await self.run("forget_job", keys, [job_id]))

    async def forget_oldest(self, most_bytes: int) -> list[str]:
        """Forget the oldest of the jobs that have ended, so that they take no more memory.

        Returns the ids of those that are gone.
        """
        total, doomed = 0, list[str]()
        async for job_id, size in self._weights():
            total += size
            if size and total > most_bytes:
                doomed.append(job_id)
        return [job_id for job_id in reversed(doomed) if await self.forget_job(job_id)]

    async def _weights(self) -> AsyncIterator[tuple[str, int]]:
        """Every job, newest first, with the bytes that it takes in memory if it has ended."""
        news, first = _keys_of_news("%s"), 0
        while True:
            args = [RECORD, *news, first, first + _WEIGHED - 1]
            flat = await self.run("weigh_jobs", [JOB_INDEX], args)
            for job_id, size in _pairs(flat):
                yield job_id.decode(), size
            if len(flat) < 2 * _WEIGHED:
                return
            first += _WEIGHED


def _keys_of_news(job_id: str) -> list[str]:
    return [streams.EVENTS.key(job_id), streams.event_ids_key(job_id)]


def _readable_or_not(job_id: str, flat: Sequence[bytes]) -> AnyRecord:
    stored = dict(_pairs(flat))
    try:
        return read_record(stored)
    except ValueError as error:
        return UnreadableRecord(job_id, str(error), stored)


def _has(record: AnyRecord, metadata: Mapping[str, str]) -> bool:
    """Whether a job has these labels; of one that cannot be read nobody knows them."""
    if not metadata:
        return True
    labels = record.request.get("metadata") if isinstance(record, JobRecord) else None
    return isinstance(labels, dict) and metadata.items() <= labels.items()


def _pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)
