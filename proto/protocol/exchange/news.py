"""Policy versions, events, and statuses for all listeners, and trials for graders."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain
from typing import Any, cast

from pydantic_core import from_json

from protocol import streams
from protocol.bill import KINDS
from protocol.exchange.connection import Connection, Rows, block_ms, flat
from protocol.exchange.rows import read_count, readable
from protocol.frames import decode, encode
from protocol.messages import JobEvent, PolicyVersion, Status, Trial, TrialResult

MAX_EVENTS = 10_000
_TRIAL_EXPIRY_S = 300
_NEWS_MS = 2000
_MIN_FURTHER_PAGE = 200  # entries that are read at once after unreadable ones
Row = tuple[bytes, dict[bytes, bytes]]


class News(Connection):
    """Messages that are not work.

    A grader takes a trial at most once, and the client may repeat it. So its keys expire.
    """

    async def announce(self, policy: PolicyVersion) -> None:
        """Announce new weights to every rollout, if the policy's attempt is the current one."""
        keys = [streams.POLICY.key(policy.job_id), streams.job_key(policy.job_id)]
        await self.run(
            "announce", [*keys, streams.NEW_POLICY], [policy.attempt, *flat(encode(policy))]
        )

    async def wait_for_new(self, key: str) -> None:
        """Wait for a call or a policy since the last such wait; not long, for it may be lost."""
        place = self.places.get(key, b"0")
        reply = await self.reader.xread({key: place}, block=_NEWS_MS)
        for rows in cast(Rows, reply).values():
            self.places[key] = rows[-1][0]

    async def newest_policy(self, job_id: str) -> PolicyVersion | None:
        rows = await self.writer.xrevrange(streams.POLICY.key(job_id), count=1)
        if not rows:
            return None
        return decode(PolicyVersion, cast(dict[bytes, bytes], rows[0][1]))

    async def record_event(self, event: JobEvent) -> bool:
        """Record an event; False if its id is among the newest `MAX_EVENTS`, which are kept."""
        event = event.model_copy(update={"message": self.redact(event.message)})
        args = [MAX_EVENTS, event.id, *flat(encode(event))]
        return bool(await self.run("record_event", streams.event_keys(event.job_id), args))

    async def events(
        self, job_id: str, *, after: str = "0", count: int = 1000, wait_s: float | None = None
    ) -> list[tuple[str, JobEvent]]:
        """Return events after the entry id ``after``, oldest first, each with its entry id.

        Unreadable events are left out. Fewer than ``count`` are all there are.
        """
        key = streams.EVENTS.key(job_id)
        deadline = time.monotonic() + (wait_s or 0)

        async def read(place: str, size: int, may_wait: bool) -> list[Row]:
            remaining_s = deadline - time.monotonic()
            block = block_ms(remaining_s) if may_wait and remaining_s > 0 else None
            reply = cast(Rows, await self.reader.xread({key: place}, count=size, block=block))
            return [row for rows in reply.values() for row in rows]

        return await _read_readable(key, read, after, count)

    async def events_back(
        self, job_id: str, *, before: str | None = None, count: int = 100
    ) -> list[tuple[str, JobEvent]]:
        """Return events before the entry id ``before``, newest first; otherwise as `events`."""
        if before is not None and not before.strip("0-"):
            return []  # Redis takes no bound below the smallest id

        key = streams.EVENTS.key(job_id)

        async def read(place: str, size: int, _may_wait: bool) -> list[Row]:
            latest = f"({place}" if place else "+"
            return cast(list[Row], await self.reader.xrevrange(key, max=latest, count=size))

        return await _read_readable(key, read, before or "", count)

    async def count_start(self, service: str) -> None:
        """Count a process that has started. If the reply is lost, it may count twice."""
        await self.run("count_start", [streams.STARTS], [service])

    async def starts(self) -> dict[str, int]:
        stored = cast(Awaitable[dict[bytes, bytes]], self.writer.hgetall(streams.STARTS))
        return dict(readable(streams.STARTS, (await stored).items(), read_count))

    async def server_core_seconds(self) -> float:
        """Return the processor time of the server since its start."""
        used = await self.pulse.info("cpu")
        kinds = ("sys", "user", "sys_children", "user_children")
        return sum(used[f"used_cpu_{kind}"] for kind in kinds)

    async def show_status(self, status: Status) -> None:
        """Store this process's status. This works when memory is full."""
        args = [status.replica, self.redact(status.model_dump_json())]
        await self.run("show_status", [streams.STATUS], args, client=self.pulse)

    async def statuses(self) -> dict[str, Status]:
        """Return the last status of each process, by replica.

        A status of another release is left out. A row that no release writes is deleted.
        """
        stored = await cast(Awaitable[dict[bytes, bytes]], self.writer.hgetall(streams.STATUS))
        statuses = dict(readable(streams.STATUS, stored.items(), _read_status))
        strays = []
        if len(statuses) < len(stored):
            strays = [row[0] for row in stored.items() if _is_stray(row)]
        if strays:
            await cast(Awaitable[int], self.pulse.hdel(streams.STATUS, *strays))
        return statuses

    async def forget_status(self, replica: str) -> None:
        await cast(Awaitable[int], self.pulse.hdel(streams.STATUS, replica))

    async def billed_job(self) -> str | None:
        """Return the id of the job with an attempt, if there is one."""
        job_id = cast(bytes | None, await self.pulse.get(streams.BILLED))
        return None if job_id is None else job_id.decode()

    async def add_cost(self, job_id: str, used: Mapping[str, float]) -> None:
        """Add to the cost of a job, by names like "core_seconds:grader"."""
        parts = chain.from_iterable(used.items())
        args = [streams.job_key(job_id), streams.cost_key(job_id), *parts]
        await self.run("add_cost", [], args, client=self.pulse)

    async def set_tokens(self, job_id: str, tokens: Mapping[str, int]) -> None:
        """Store the tokens of a job's ledgers in its cost."""
        args: list[Any] = [streams.job_key(job_id), streams.cost_key(job_id)]
        for name, count in tokens.items():
            args += [f"tokens:{name}", count]
        if tokens:
            await self.run("set_tokens", [], args, client=self.pulse)

    async def cost(self, job_id: str) -> dict[str, dict[str, float]]:
        """Return the cost of a job, by kind and name."""
        key = streams.cost_key(job_id)
        stored = await cast(Awaitable[dict[bytes, bytes]], self.writer.hgetall(key))
        cost: dict[str, dict[str, float]] = {kind: {} for kind in (*KINDS, "active_seconds")}
        for kind, name, number in readable(key, stored.items(), _read_cost):
            cost.get(kind, {})[name] = number
        return cost

    async def ask_trial(self, trial: Trial, limit: int) -> bool:
        """Queue a trial; False if ``limit`` trials wait already."""
        args = [trial.model_dump_json(), limit, _TRIAL_EXPIRY_S]
        return bool(await self.produce("ask_trial", [streams.TRIALS], args))

    async def withdraw_trial(self, trial: Trial) -> bool:
        removed = self.writer.lrem(streams.TRIALS, 1, trial.model_dump_json())
        return bool(await cast(Awaitable[int], removed))

    async def trial_result(self, trial_id: str, wait_s: float) -> TrialResult | None:
        """Return the result, None if there is none within ``wait_s``, at most 20 s."""
        texts = await self._pop(streams.trial_key(trial_id), wait_s)
        return next(readable(streams.TRIALS, texts, TrialResult.model_validate_json), None)

    async def take_trial(self, wait_s: float) -> Trial | None:
        texts = await self._pop(streams.TRIALS, wait_s)
        return next(readable(streams.TRIALS, texts, Trial.model_validate_json), None)

    async def answer_trial(self, trial: Trial, result: TrialResult) -> None:
        args = [result.model_dump_json(), _TRIAL_EXPIRY_S]
        await self.run("push", [streams.trial_key(trial.id)], args)

    async def _pop(self, key: str, wait_s: float) -> tuple[bytes, ...]:
        popped = self.reader.blpop([key], timeout=block_ms(wait_s) / 1000)
        reply = await cast(Awaitable[tuple[bytes, bytes] | None], popped)
        return () if reply is None else (reply[1],)


async def _read_readable(
    key: str, read: Callable[[str, int, bool], Awaitable[list[Row]]], place: str, count: int
) -> list[tuple[str, JobEvent]]:
    """Return up to ``count`` readable events from a place on."""
    events: list[tuple[str, JobEvent]] = []
    size = count
    while len(events) < count:
        rows = await read(place, size, not events)
        events += readable(key, rows, _read_event)
        if not rows or (events and len(rows) < size):
            break
        place = rows[-1][0].decode()
        size = max(count, _MIN_FURTHER_PAGE)
    return events[:count]


def _read_event(row: Row) -> tuple[str, JobEvent]:
    return row[0].decode(), decode(JobEvent, row[1])


def _read_status(row: tuple[bytes, bytes]) -> tuple[str, Status]:
    status = Status.model_validate_json(row[1])
    if status.replica.encode() != row[0]:
        raise ValueError(f"a status of {status.replica} in the place of another replica's")
    return status.replica, status


def _is_stray(row: tuple[bytes, bytes]) -> bool:
    try:
        return from_json(row[1])["replica"].encode() != row[0]
    except Exception:  # the bytes are arbitrary
        return True


def _read_cost(row: tuple[bytes, bytes]) -> tuple[str, str, float]:
    kind, _, name = row[0].decode().partition(":")
    number = float(row[1])
    if not math.isfinite(number):
        raise ValueError("the number is not finite")
    return kind, name, number
