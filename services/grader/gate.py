"""Whether this grader can grade a job's groups now, and if not, what is in the way."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable

from protocol.messages import ActiveJob, JobEvent, Offers
from protocol.offers import lacking
from protocol.rewards import Reward

from services.chassis.faults import Unable
from services.chassis.service import Service
from services.grader.judge.judge import Judge
from services.grader.tools import Tools
from services.grader.verifiers import VERIFIERS

_LOOK_AGAIN_S = 0.5
_PATIENCE_S = 20.0


def offers(tools: Tools) -> Offers:
    """What a grader with these tools can be asked for."""
    known = [name for name in VERIFIERS if name != "python" or tools.sandbox is not None]
    return Offers(verifiers=tuple(known), judges=tuple(tools.named_judges))


def what_is_missing(reward: Reward, tools: Tools) -> str | None:
    """What this grader will never have for this reward, in words; None if it has everything."""
    own = offers(tools)
    found = (lacking(own, check) for check in (*reward.outcome, *reward.process))
    return next(filter(None, found), None)


def what_is_in_the_way(reward: Reward, tools: Tools) -> str | None:
    """Why groups with this reward must wait, in words; None if they can be graded."""
    return what_is_missing(reward, tools) or _trouble_of(_judges_for(reward, tools))


def what_no_waiting_mends(reward: Reward, tools: Tools) -> str | None:
    """What is missing here, or a judge that has refused every call; None if there is neither."""
    return what_is_missing(reward, tools) or _trouble_of(
        judge for judge in _judges_for(reward, tools) if judge.refuses_all
    )


def _judges_for(reward: Reward, tools: Tools) -> list[Judge]:
    return [tools.named_judges[check.model] for check in reward.checks_of_a_judge]


def _trouble_of(judges: Iterable[Judge]) -> str | None:
    troubles = (f"the judge is not up: {judge.why_down}" for judge in judges if not judge.is_up)
    return next(troubles, None)


class Gate:
    """Lets a job's groups in once they can be graded, or have waited for what will not come.

    The latter are not graded: another grader may have what this one lacks, and until then somebody
    may start one. If all lack it, the groups are handed on as unworkable.
    """

    def __init__(self, tools: Tools, patience_s: float = _PATIENCE_S) -> None:
        self._tools = tools
        self._patience_s = patience_s
        self._job_id = ""
        self._since = 0.0  # this job lacks something here

    def is_open(self, job: ActiveJob) -> bool:
        """Whether groups of the job may be claimed."""
        reward = job.recipe.reward
        if what_no_waiting_mends(reward, self._tools) is None:
            self._job_id = ""
            return what_is_in_the_way(reward, self._tools) is None
        if self._job_id != job.job_id:
            self._job_id, self._since = job.job_id, time.monotonic()
        return time.monotonic() - self._since >= self._patience_s

    def admit(self, job: ActiveJob) -> None:
        """Let a claimed group pass.

        Raises:
            Unable: if this grader lacks something for its job.
        """
        if (why := what_no_waiting_mends(job.recipe.reward, self._tools)) is not None:
            raise Unable(why)


async def tell_forever(service: Service, tools: Tools) -> None:
    """Consumes the judge's state and the active job; produces readiness and the job's events.

    Waits for: the next look. Unblocked by: time.
    """
    told: tuple[str, str] | None = None  # the job, and what it was told to wait for
    numbers = itertools.count()
    while True:
        job = await service.exchange.active()
        own = [tools.judge] if tools.judge else []
        obstacle = what_is_in_the_way(job.recipe.reward, tools) if job else _trouble_of(own)
        service.readiness.set(obstacle is None, obstacle or "")
        now = (job.job_id, obstacle) if job and obstacle else None
        was_told = told is not None and job is not None and told[0] == job.job_id
        if job and now != told and (obstacle or was_told):
            await service.exchange.record_event(_event(service, job, obstacle, next(numbers)))
        told = now
        await asyncio.sleep(_LOOK_AGAIN_S)


def _event(service: Service, job: ActiveJob, obstacle: str | None, number: int) -> JobEvent:
    """Every grader tells for itself: they need not see the judge come and go in the same order."""
    return JobEvent(
        id=f"gate:{'closed' if obstacle else 'open'}:{service.exchange.me}:{number}",
        job_id=job.job_id,
        level="warn" if obstacle else "info",
        message=f"a grader waits: {obstacle}" if obstacle else "a grader grades again",
    )
