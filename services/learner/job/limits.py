"""Limits: what makes a job pause by itself, or end, for its user to decide."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from protocol.messages import GradedGroup, Requested

from services.learner.attempt import Attempt
from services.learner.durable.progress import Progress
from services.learner.job.control import Control, PauseRequested
from services.learner.job.report import Reporter
from services.learner.supply.lost import NothingCanWork, too_much_lost, why_none_can_work


@dataclass
class Limits:
    """The limits that a recipe sets to one attempt; none holds for steps that are replayed."""

    attempt: Attempt
    progress: Progress
    control: Control
    reporter: Reporter
    save: Callable[[], Awaitable[None]]  # a checkpoint

    async def check_lost(self, groups: Sequence[GradedGroup], moment: str) -> None:
        """Above the recipe's limits the user decides: PAPO must not silently become GRPO.

        Who resumes the job accepts what it paused for. The checkpoint remembers it; an attempt that
        begins from an older one asks again, unless an earlier attempt has made the step.

        Raises:
            PauseRequested: if too much was lost of these groups.
            NothingCanWork: if no worker can work on any of them, nor could on one before.
        """
        if not groups or self.progress.is_replayed:
            return
        last, ledgers = groups[-1], self.progress.ledgers
        accepted = self.progress.accepted[last.purpose]
        lost = too_much_lost(groups, self.attempt.recipe, accepted)
        end = None if ledgers[last.purpose].trained else why_none_can_work(groups, accepted)
        if lost or end:
            self.progress.accepted[last.purpose] = last.number + 1
        if end:
            await self.save()
            raise NothingCanWork(f"none of the {len(groups)} groups of {moment} can work: {end}")
        number = self.attempt.number
        why = [await self.reporter.lost(number, moment, part, most) for part, most in lost]
        if why:
            await self._pause("\n".join(why))

    async def check_finite(self, moment: str, metrics: Mapping[str, float]) -> None:
        """Whatever was not finite was not learned from; the user may want to know before more.

        Raises:
            PauseRequested: if the recipe wants a pause then.
        """
        names = [name for name, value in metrics.items() if not math.isfinite(value)]
        if not names:
            return
        why = await self.reporter.non_finite(moment, names)
        if self.attempt.recipe.training.on_nonfinite == "pause" and not self.progress.is_replayed:
            await self._pause(why)

    async def _pause(self, why: str) -> None:
        """Pause as if the user had asked for it."""
        await self.attempt.exchange.request_state(self.attempt.job_id, Requested.PAUSE)
        await self.control.refresh()
        if self.control.requested is Requested.PAUSE:
            raise PauseRequested(why)
