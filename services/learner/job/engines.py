"""Whether an engine can serve the job: one that never starts would hold the queue for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from protocol.messages import Status

from services.chassis.service import Service
from services.learner.faults import MachineFault
from services.learner.job.learning import Learning
from services.learner.supply.lost import NothingCanWork

_MOST_STARTS = 3  # of each rollout that fail for the job, in a row
_NO_ENGINE = "vLLM did not start"  # how a rollout begins to say so; its other errors are no job's
_FAILED_BEFORE = "they had failed before it, too"


async def watch_engines_forever(
    service: Service, learning: Learning, last_error: str | None
) -> None:
    """Consumes what the rollouts tell of themselves; produces an error if none can serve the job.

    Waits for: the next heartbeat; in the end, to be cancelled. Unblocked by: time.

    Args:
        service: the learner.
        learning: this attempt at the job.
        last_error: what the attempt before this one ended with.

    Raises:
        NothingCanWork: if no engine has ever started, and each rollout has tried often enough.
        MachineFault: if the rollouts had already failed before, so that others may be to blame.
    """
    progress = learning.progress
    starts = FailedStarts(
        learning.attempt.job_id,
        any_served=bool(learning.intake.waiting) or any(progress.positions.values()),
        was_held_up=_FAILED_BEFORE in (last_error or ""),
    )
    while progress.step == progress.made_before == 0 and not starts.any_served:
        statuses = await service.exchange.statuses()
        if why := starts.why_none_works([s for s in statuses.values() if s.service == "rollout"]):
            if starts.failed_before:
                raise MachineFault(f"{why}; {_FAILED_BEFORE}; see to their machine")
            raise NothingCanWork(
                f"{why}; mend that and resume the job, or submit it with another model or settings"
            )
        await asyncio.sleep(service.deployment.heartbeat_s)
    await asyncio.Event().wait()


@dataclass
class FailedStarts:
    """The starts of the rollouts' engines, looked at from the job's activation on."""

    job_id: str
    any_served: bool = False  # what breaks after that is the machine
    was_held_up: bool = False  # since the rollouts were failing when the job first came
    _before: dict[str, int] = field(default_factory=dict)  # starts in earlier attempts, by seat
    _for_others: set[str] = field(default_factory=set)  # seats that had failed for other jobs

    @property
    def failed_before(self) -> bool:
        """Whether a rollout was failing when the job came."""
        return any(self._before[seat] > 1 for seat in self._for_others)

    def why_none_works(self, rollouts: Collection[Status]) -> str | None:
        """What vLLM said last if every rollout has failed for the job too often."""
        self.any_served = self.any_served or any(status.holds for status in rollouts)
        errors = [status.error or "" for status in rollouts if self._fails(status)]
        if self.any_served or not errors or len(errors) < len(rollouts):
            return None
        words = errors[-1].partition(": ")[2]  # behind the folder
        return (
            f"no engine starts for it, tried {_MOST_STARTS} times: {_NO_ENGINE}: {words}; see the "
            "rollout's log"
        )

    def _fails(self, status: Status) -> bool:
        error = status.error or ""
        if status.seat not in self._before and (
            self.was_held_up or f"/{self.job_id}/" not in error  # the folder of its weights
        ):
            self._for_others.add(status.seat)
        before = min(self._before.get(status.seat, status.starts), status.starts)
        self._before[status.seat] = before
        failed = status.starts - max(1, before)  # the start that is told of has not failed yet
        return failed >= _MOST_STARTS and error.startswith(_NO_ENGINE)
