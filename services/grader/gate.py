"""Whether this grader can grade a job's groups now, and if not, what is in the way."""

from __future__ import annotations

import asyncio
import itertools
import time

from protocol.messages import ActiveJob, JobEvent
from protocol.rewards import Reward

from services.chassis.faults import Unable
from services.chassis.service import Service
from services.grader.judge.judge import Judge
from services.grader.verifiers import VERIFIERS

_LOOK_AGAIN_S = 0.5
_PATIENCE_S = 20.0
_NO_JUDGE = (
    "the recipe asks a model to grade, but the graders know none; set WEIR_JUDGE_URL and "
    "WEIR_JUDGE_MODEL where they run"
)


def what_is_in_the_way(reward: Reward, judge: Judge | None) -> str | None:
    """Why groups with this reward must wait, in words; None if they can be graded."""
    if (lacking := what_is_lacking(reward, judge)) is not None:
        return lacking
    return _trouble_of(judge) if reward.checks_of_a_judge else None


def what_is_lacking(reward: Reward, judge: Judge | None) -> str | None:
    """What no waiting will mend: an unknown verifier, no judge, one that never took a call."""
    for check in (*reward.outcome, *reward.process):
        if check.verifier not in VERIFIERS:
            return (
                f"no verifier is called {check.verifier!r}; name the module that adds it in "
                "WEIR_GRADER_EXTENSIONS where the graders run"
            )
    if not reward.checks_of_a_judge:
        return None
    if judge is None:
        return _NO_JUDGE
    return _trouble_of(judge) if judge.refuses_all else None


class Gate:
    """Lets a job's groups in once they can be graded, or have waited for what will not come.

    The latter are not graded: another grader may have what this one lacks, and until then somebody
    may start one. If all lack it, the groups are handed on as unworkable.
    """

    def __init__(self, judge: Judge | None, patience_s: float = _PATIENCE_S) -> None:
        self._judge = judge
        self._patience_s = patience_s
        self._job_id = ""
        self._since = 0.0  # this job lacks something here

    def is_open(self, job: ActiveJob) -> bool:
        """Whether groups of the job may be claimed."""
        reward = job.recipe.reward
        if what_is_lacking(reward, self._judge) is None:
            self._job_id = ""
            return what_is_in_the_way(reward, self._judge) is None
        if self._job_id != job.job_id:
            self._job_id, self._since = job.job_id, time.monotonic()
        return time.monotonic() - self._since >= self._patience_s

    def admit(self, job: ActiveJob) -> None:
        """Let a claimed group pass.

        Raises:
            Unable: if this grader lacks something for its job.
        """
        if (lacking := what_is_lacking(job.recipe.reward, self._judge)) is not None:
            raise Unable(lacking)


async def tell_forever(service: Service, judge: Judge | None) -> None:
    """Consumes the judge's state and the active job; produces readiness and the job's events.

    Waits for: the next look. Unblocked by: time.
    """
    told: tuple[str, str] | None = None  # the job, and what it was told to wait for
    numbers = itertools.count()
    while True:
        job = await service.exchange.active()
        obstacle = what_is_in_the_way(job.recipe.reward, judge) if job else _trouble_of(judge)
        service.readiness.set(obstacle is None, obstacle or "")
        now = (job.job_id, obstacle) if job and obstacle else None
        was_told = told is not None and job is not None and told[0] == job.job_id
        if job and now != told and (obstacle or was_told):
            await service.exchange.record_event(_event(service, job, obstacle, next(numbers)))
        told = now
        await asyncio.sleep(_LOOK_AGAIN_S)


def _trouble_of(judge: Judge | None) -> str | None:
    return None if judge is None or judge.is_up else f"the judge is not up: {judge.why_down}"


def _event(service: Service, job: ActiveJob, obstacle: str | None, number: int) -> JobEvent:
    """Every grader tells for itself: they need not see the judge come and go in the same order."""
    return JobEvent(
        id=f"gate:{'closed' if obstacle else 'open'}:{service.exchange.me}:{number}",
        job_id=job.job_id,
        created_at=time.time(),
        level="warn" if obstacle else "info",
        message=f"a grader waits: {obstacle}" if obstacle else "a grader grades again",
    )
