"""The intake: graded groups go from the exchange into the log, and to the step that waits."""

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
_CLAIM_WAIT_S = 0.5
_ADOPT_EVERY_S = 5.0


class Intake:
    """Holds the groups that have arrived until their step has used them."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.log = GroupLog(attempt.folder / "log", attempt.number)
        self.waiting: dict[tuple[Purpose, int], GradedGroup] = {}
        self._segments: dict[tuple[Purpose, int], str] = {}
        self._finished = {purpose: 0 for purpose in Purpose}  # numbers below have been used
        self._writing = asyncio.Lock()
        self._next = self.log.segment  # holds no group yet
        self._arrived = asyncio.Event()

    def replay(self, first_segment: str, done: dict[Purpose, int]) -> int:
        """Read what earlier attempts had logged since a checkpoint; returns how many groups."""
        self._finished |= done
        for segment, group in read_log(self.log.folder, first_segment):
            self._keep(group, segment)
        return len(self.waiting)

    @property
    def first_segment_needed(self) -> str:
        """The oldest segment that holds a group not yet used."""
        return min([*self._segments.values(), self._next])

    def keys_waiting(self) -> set[str]:
        return {group.key for group in self.waiting.values()}

    async def take_in_forever(self) -> None:
        """Consumes GRADED and FAILED; produces logged groups, ready for their step.

        Waits for: graded groups. Unblocked by: the graders. Whatever an earlier life of the learner
        had claimed is adopted first; whatever a lost reply left behind, now and then.
        """
        exchange, job_id = self.attempt.exchange, self.attempt.job_id
        next_look = 0.0
        loop = asyncio.get_running_loop()
        while True:
            deliveries = await exchange.claim(
                [GRADED, FAILED], job_id, count=_CLAIM_COUNT, wait_s=_CLAIM_WAIT_S
            )
            if deliveries:
                await self.take_in(deliveries)
            if loop.time() >= next_look:
                left = await exchange.adopt(GRADED, job_id, count=_CLAIM_COUNT)
                left += await exchange.adopt(FAILED, job_id, count=_CLAIM_COUNT)
                await self.take_in(left)
                if not left:
                    next_look = loop.time() + _ADOPT_EVERY_S

    async def take_in(self, deliveries: Sequence[Delivery[GradedGroup]]) -> None:
        """Log the groups that are new, then take all of them out of the exchange."""
        groups = [_decoded(delivery) for delivery in deliveries]
        new = {
            group.key: (group, fields)
            for group, fields in groups
            if not self.has(group.purpose, group.number)
        }
        if new:
            await self._log(new.values())
        for delivery in deliveries:
            await self.attempt.exchange.take_in(delivery, self.attempt.number)
        REPEATED.inc(len(deliveries) - len(new))

    async def window(self, purpose: Purpose, numbers: range) -> list[GradedGroup]:
        """Wait for all groups with these numbers; they come in the order they were asked."""
        wanted = [(purpose, number) for number in numbers]
        while not all(key in self.waiting for key in wanted):
            self._arrived.clear()
            await self._arrived.wait()
        return [self.waiting[key] for key in wanted]

    def missing(self, purpose: Purpose, numbers: range) -> list[str]:
        return [group_key(purpose, n) for n in numbers if (purpose, n) not in self.waiting]

    def finish(self, purpose: Purpose, numbers: range) -> None:
        """Give up the groups with these numbers, here or not: no step or checkpoint needs them."""
        self._finished[purpose] = max(self._finished[purpose], numbers.stop)
        for number in numbers:
            self._segments.pop((purpose, number), None)
            self.waiting.pop((purpose, number), None)

    async def discard(self, purpose: Purpose) -> None:
        """Take groups that have not been used out of the log: the next attempt asks for them."""
        async with self._writing:
            unwanted = {key for key in self.waiting if key[0] is purpose}
            for segment in {self._segments[key] for key in unwanted}:
                await asyncio.to_thread(rewrite, self.log.folder, segment, unwanted)

    async def drop_segments(self, first_needed: str) -> None:
        await asyncio.to_thread(retain, self.log.folder, first_needed)

    def have(self, purpose: Purpose, numbers: Iterable[int]) -> set[int]:
        """Which of these numbers need not be asked for: they have arrived, or have been used."""
        return {number for number in numbers if self.has(purpose, number)}

    def has(self, purpose: Purpose, number: int) -> bool:
        """Whether the group with this number has arrived, or has been used."""
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


def _decoded(delivery: Delivery[GradedGroup]) -> tuple[GradedGroup, Fields]:
    """A group and the frame to log; one that cannot be read becomes a failed group."""
    try:
        group = delivery.message()
        if delivery.stream is FAILED and group.failure is None:
            raise FrameError("grades, from who does not grade")
    except FrameError as error:
        log.error("unreadable group", extra={"key": delivery.key, "reason": str(error)})
        failed = delivery.as_failed(FailureKind.UNREADABLE, str(error))
        return failed, encode(failed)
    return group, {name: value for name, value in delivery.fields.items() if name != b"key"}
