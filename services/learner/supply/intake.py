"""The intake: graded groups go from the exchange into the log, and to the waiting step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from prometheus_client import Counter
from protocol.exchange import Delivery
from protocol.frames import Fields, FrameError, encode
from protocol.messages import FailureKind, GradedGroup, group_key
from protocol.recipe import Purpose
from protocol.streams import FAILED, GRADED

from services.chassis.metrics import start_at_zero
from services.learner.attempt import Attempt
from services.learner.supply.log import GroupLog, read_log, retain, rewrite

log = logging.getLogger(__name__)
TAKEN_IN = start_at_zero(
    Counter("weir_groups_taken_in_total", "Graded groups logged by the learner", ["purpose"]),
    *Purpose,
)
REPEATED = Counter("weir_groups_repeated_total", "Graded groups that were in the log already")
_CLAIM_COUNT = 64
_ADOPT_EVERY_S = 5.0


class Intake:
    """Graded groups that have arrived and are not yet used by a step."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.log = GroupLog(attempt.folder / "log", attempt.number)
        self.waiting: dict[tuple[Purpose, int], GradedGroup] = {}
        self._segments: dict[tuple[Purpose, int], str] = {}
        self._finished = dict.fromkeys(Purpose, 0)  # numbers below have been used
        self._writing = asyncio.Lock()
        self._next = self.log.segment  # it has no group yet
        self._arrived = asyncio.Event()

    def replay(self, first_segment: str, done: dict[Purpose, int]) -> int:
        """Read the log of earlier attempts since a checkpoint; return the number of groups."""
        self._finished |= done
        for segment, group in read_log(self.log.folder, first_segment):
            self._keep(group, segment)
        return len(self.waiting)

    @property
    def first_segment_needed(self) -> str:
        """The oldest segment with an unused group."""
        return min([*self._segments.values(), self._next])

    def keys_waiting(self) -> set[str]:
        return {group.key for group in self.waiting.values()}

    async def take_in_forever(self) -> None:
        """Consumes GRADED and FAILED; produces logged groups, ready for their step.

        Waits for: graded groups. Unblocked by: the graders. It first adopts groups that an earlier
        learner had claimed, and from time to time those of lost replies.
        """
        exchange = self.attempt.exchange
        job_id = self.attempt.job_id
        next_adoption = 0.0
        loop = asyncio.get_running_loop()
        while True:
            deliveries = await exchange.claim(
                [GRADED, FAILED],
                job_id,
                count=_CLAIM_COUNT,
                wait_s=max(0.0, next_adoption - loop.time()),
            )
            if deliveries:
                await self.ingest(deliveries)
            if loop.time() >= next_adoption:
                adopted = await exchange.adopt(GRADED, job_id, count=_CLAIM_COUNT)
                adopted += await exchange.adopt(FAILED, job_id, count=_CLAIM_COUNT)
                await self.ingest(adopted)
                if not adopted:
                    next_adoption = loop.time() + _ADOPT_EVERY_S

    async def ingest(self, deliveries: Sequence[Delivery[GradedGroup]]) -> None:
        """Log new groups, then remove all from the exchange."""
        groups = [_decode(delivery) for delivery in deliveries]
        new = {
            group.key: (group, fields)
            for group, fields in groups
            if not self.has(group.purpose, group.number)
        }
        if new:
            await self._log(new.values())
        for delivery in deliveries:
            await self.attempt.exchange.ingest(delivery, self.attempt.number)
        REPEATED.inc(len(deliveries) - len(new))

    async def window(self, purpose: Purpose, numbers: range) -> list[GradedGroup]:
        """Wait for all groups with these numbers; return them in order."""
        keys = [(purpose, number) for number in numbers]
        while not self.waiting.keys() >= set(keys):
            self._arrived.clear()
            await self._arrived.wait()
        return [self.waiting[key] for key in keys]

    def missing(self, purpose: Purpose, numbers: range) -> list[str]:
        return [
            group_key(purpose, number)
            for number in numbers
            if (purpose, number) not in self.waiting
        ]

    def finish(self, purpose: Purpose, numbers: range) -> None:
        """Drop groups, arrived or not, that no step or checkpoint needs."""
        self._finished[purpose] = max(self._finished[purpose], numbers.stop)
        for number in numbers:
            self._segments.pop((purpose, number), None)
            self.waiting.pop((purpose, number), None)

    async def discard(self, purpose: Purpose) -> None:
        """Remove unused groups from the log; the next attempt requests them again."""
        async with self._writing:
            unwanted = {key for key in self.waiting if key[0] is purpose}
            for segment in {self._segments[key] for key in unwanted}:
                await asyncio.to_thread(rewrite, self.log.folder, segment, unwanted)

    async def drop_segments(self, first_needed: str) -> None:
        await asyncio.to_thread(retain, self.log.folder, first_needed)

    def have(self, purpose: Purpose, numbers: Iterable[int]) -> set[int]:
        """Return the numbers of groups that have arrived or been used."""
        return {number for number in numbers if self.has(purpose, number)}

    def has(self, purpose: Purpose, number: int) -> bool:
        """Whether the group has arrived or been used."""
        return (purpose, number) in self.waiting or number < self._finished[purpose]

    async def _log(self, groups: Collection[tuple[GradedGroup, Fields]]) -> None:
        async with self._writing:
            frames = [fields for _, fields in groups]
            segment = await asyncio.to_thread(self.log.append, frames)
            for group, _ in groups:
                TAKEN_IN.labels(group.purpose).inc()
                self._keep(group, segment)
            self._next = self.log.segment

    def _keep(self, group: GradedGroup, segment: str) -> None:
        if not self.has(group.purpose, group.number):
            self.waiting[group.purpose, group.number] = group
            self._segments[group.purpose, group.number] = segment
            self._arrived.set()


def _decode(delivery: Delivery[GradedGroup]) -> tuple[GradedGroup, Fields]:
    """Return a group and its frame for the log; an unreadable group becomes a failed one."""
    try:
        group = delivery.message()
        if delivery.stream is FAILED and group.failure is None:
            raise FrameError("a sender that is not a grader sent grades")
    except FrameError as error:
        log.error("unreadable group", extra={"key": delivery.key, "reason": str(error)})
        failed = delivery.as_failed(FailureKind.UNREADABLE, str(error))
        return failed, encode(failed)
    return group, {name: value for name, value in delivery.fields.items() if name != b"key"}
