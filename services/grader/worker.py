"""The grader as a stage of the line: a rollout group comes in, a graded group goes out.

Trials of graders, of one response each, are done beside the line.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from answers import read_unit
from protocol.exchange import Exchange
from protocol.messages import (
    ActiveJob,
    Capabilities,
    Doing,
    GradedGroup,
    JobEvent,
    RolloutGroup,
    Trial,
    TrialResult,
    Ungradable,
)
from protocol.rewards import Reward
from protocol.streams import GRADED, ROLLOUTS

from services.chassis.consumer import Consumer, limit_in_flight, work_forever
from services.chassis.deployment import import_extensions
from services.chassis.faults import UnsupportedEntry
from services.chassis.metrics import PHASES
from services.chassis.pool import Pool, sandbox
from services.chassis.service import Service
from services.grader import client_code, grading
from services.grader.judge.judge import Judge
from services.grader.judge.settings import deployed_judges
from services.grader.tools import Settings, Tools
from services.grader.trial_record import recorded
from services.grader.verifiers import VERIFIERS, equation_steps, math_answer

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.5
_PATIENCE_S = 20.0
TRIALS_AT_ONCE = 4  # each in one place of the pool or judges that the job waits for, too
_TRIAL_LIMIT_S = 120.0
_TRIAL_LOOK_S = 5.0


async def run(service: Service) -> None:
    """Consumes rollout groups, and trials of graders; produces graded groups, and results.

    Waits for: the pool to warm up, a judge that passes its self-test if there is one, then groups.
    Unblocked by: those, and the service stopping.
    """
    PHASES.name("grading", idle="idle")
    settings = Settings.from_environment()
    import_extensions("WEIR_GRADER_EXTENSIONS", settings.extensions)
    await asyncio.to_thread(read_unit, "cm")  # the table of units takes half a second to load
    judges = {name: Judge(each) for name, each in deployed_judges().items()}
    async with opened(settings, judges) as tools, asyncio.TaskGroup() as beside:
        service.activity.capabilities = capabilities(tools)
        telling = beside.create_task(tell_forever(service, tools))
        trying = beside.create_task(try_forever(service, tools))
        await work_forever(service, stage(tools, settings.groups_in_flight))
        telling.cancel()
        trying.cancel()


@asynccontextmanager
async def opened(settings: Settings, judges: Mapping[str, Judge]) -> AsyncIterator[Tools]:
    """All that a grader works with; each judge, the first one under "", watches over itself."""
    async with AsyncExitStack() as stack:
        warm_ups = [math_answer.WARM_UP, equation_steps.WARM_UP]
        pool = await stack.enter_async_context(Pool(settings.workers, warm_ups=warm_ups))
        confined = None
        if settings.python:
            sandbox.keep_memory_private()
            clients = Pool(settings.workers, warm_ups=[client_code.WARM_UP], confined=True)
            confined = await stack.enter_async_context(clients)
        for judge in judges.values():
            await stack.enter_async_context(judge)
        others = {name: judge for name, judge in judges.items() if name}
        yield Tools(pool, judges.get(""), others, confined)


def stage(tools: Tools, capacity: int) -> Consumer[RolloutGroup, GradedGroup]:
    admission = Admission(tools)

    async def handle(job: ActiveJob, group: RolloutGroup) -> GradedGroup:
        admission.admit(job)
        return await grade_group(job, group, tools)

    return Consumer(
        inputs=(ROLLOUTS,),
        output=GRADED,
        failures=GRADED,
        handle=handle,
        free_slots=limit_in_flight(capacity),
        is_open=admission.is_open,
        doing=Doing.GRADES,
    )


async def grade_group(job: ActiveJob, group: RolloutGroup, tools: Tools) -> GradedGroup:
    started = time.monotonic()
    with PHASES.during("grading"):
        grades = await grading.grade(job.recipe.reward, group, tools)
    return GradedGroup(
        purpose=group.request.purpose,
        number=group.request.number,
        group=group,
        grades=grades,
        grading_seconds=time.monotonic() - started,
    )


def capabilities(tools: Tools) -> Capabilities:
    known = [name for name in VERIFIERS if name != "python" or tools.sandbox is not None]
    return Capabilities(verifiers=tuple(known), judges=tuple(tools.named_judges))


def what_is_missing(reward: Reward, tools: Tools) -> str | None:
    own = capabilities(tools)
    found = (own.lacking(check) for check in (*reward.outcome, *reward.process))
    return next(filter(None, found), None)


def what_is_in_the_way(reward: Reward, tools: Tools, *, for_good: bool = False) -> str | None:
    """Why groups with this reward must wait, in words; None if they can be graded.

    ``for_good`` leaves out a judge that may come up: it has not refused every call.
    """
    judges = (tools.named_judges[check.model] for check in reward.checks_of_a_judge)
    down = (_trouble_of(judge) for judge in judges if judge.refuses_all or not for_good)
    return what_is_missing(reward, tools) or next(filter(None, down), None)


def _trouble_of(judge: Judge) -> str | None:
    return None if judge.is_up else f"the judge is not up: {judge.why_down}"


class Admission:
    """Lets a job's groups in once they can be graded, or have waited for what will not come.

    The latter are not graded: a grader that is started meanwhile may have what this one lacks. If
    none has it, the groups are handed on as unworkable.
    """

    def __init__(self, tools: Tools, patience_s: float = _PATIENCE_S) -> None:
        self._tools = tools
        self._patience_s = patience_s
        self._job_id = ""
        self._since = 0.0  # this job lacks something here

    def is_open(self, job: ActiveJob) -> bool:
        reward = job.recipe.reward
        if what_is_in_the_way(reward, self._tools, for_good=True) is None:
            self._job_id = ""
            return what_is_in_the_way(reward, self._tools) is None
        if self._job_id != job.job_id:
            self._job_id, self._since = job.job_id, time.monotonic()
        return time.monotonic() - self._since >= self._patience_s

    def admit(self, job: ActiveJob) -> None:
        """Raise `UnsupportedEntry` if this grader lacks something for the job."""
        if why := what_is_in_the_way(job.recipe.reward, self._tools, for_good=True):
            raise UnsupportedEntry(why)


async def tell_forever(service: Service, tools: Tools) -> None:
    """Consumes the judge's state and the active job; produces readiness and the job's events.

    Waits for: the next look. Unblocked by: time.
    """
    job_id, told = "", None  # what this job was told to wait for
    numbers = itertools.count()
    while True:
        job = await service.exchange.active()
        obstacle = tools.judge and _trouble_of(tools.judge)
        if job:
            obstacle = what_is_in_the_way(job.recipe.reward, tools)
            if obstacle != (told if job.job_id == job_id else None):
                await service.exchange.record_event(_event(service, job, obstacle, next(numbers)))
        job_id, told = (job.job_id, obstacle) if job else ("", None)
        service.readiness.set(obstacle is None, obstacle or "")
        await asyncio.sleep(_LOOK_AGAIN_S)


def _event(service: Service, job: ActiveJob, obstacle: str | None, number: int) -> JobEvent:
    """Every grader tells for itself: they need not see the judge come and go in the same order."""
    return JobEvent(
        id=f"gate:{'closed' if obstacle else 'open'}:{service.exchange.me}:{number}",
        job_id=job.job_id,
        created_at=time.time(),
        level="warn" if obstacle else "info",
        message=f"a grader waits: {obstacle}" if obstacle else "a grader grades again",
    )


async def try_forever(service: Service, tools: Tools, limit_s: float = _TRIAL_LIMIT_S) -> None:
    """Consumes trials; produces their results.

    Waits for: a free place, a trial. Unblocked by: ``limit_s`` of each trial, somebody asking.
    """
    free = asyncio.Semaphore(TRIALS_AT_ONCE)
    async with asyncio.TaskGroup() as under_way:
        while True:
            await free.acquire()
            trial = await _next_trial(service.exchange)
            answer = under_way.create_task(_answer_trial(service.exchange, trial, tools, limit_s))
            answer.add_done_callback(lambda _: free.release())


async def tried(trial: Trial, tools: Tools, limit_s: float = _TRIAL_LIMIT_S) -> TrialResult:
    if missing := what_is_missing(trial.reward, tools):
        return TrialResult(missing=missing)
    if trouble := what_is_in_the_way(trial.reward, tools):
        down = Ungradable(reason="judge_failed")
        return TrialResult(outcome=down, details={down.reason: trouble})
    if trial.text is None:
        return TrialResult(outcome=await math_answer.examine(trial.task.answer or "", tools))
    began, record = time.monotonic(), recorded()
    try:
        async with asyncio.timeout(limit_s):
            outcome, parts = await grading.grade_outcome(
                trial.reward, trial.task, trial.text, tools, at_once=False
            )
            process = await grading.grade_process(
                trial.reward, outcome, trial.task, trial.text, tools
            )
    except TimeoutError:
        outcome, process, parts = Ungradable(reason="not_in_time"), None, ()
    return TrialResult(
        outcome=outcome,
        process=process,
        scores={part.check.label: part.score for part in parts},
        details=record.details,
        tokens=record.tokens,
        seconds=time.monotonic() - began,
    )


async def _next_trial(exchange: Exchange) -> Trial:
    while (trial := await exchange.take_trial(_TRIAL_LOOK_S)) is None:
        pass
    return trial


async def _answer_trial(exchange: Exchange, trial: Trial, tools: Tools, limit_s: float) -> None:
    try:
        result = await tried(trial, tools, limit_s)
    except Exception:
        log.exception("a trial failed")
        result = TrialResult(outcome=Ungradable(reason="verifier_failed"))
    await exchange.answer_trial(trial, result)
