"""The grader's worker: it turns rollout groups into graded groups, and answers trials.

A trial scores one response for a client that tests its rewards.
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
from services.grader.timeouts import ADMISSION_TIMEOUT_S, POLL_S, TRIAL_READ_S, TRIAL_TIMEOUT_S
from services.grader.tools import Settings, Tools
from services.grader.trial_record import start_record
from services.grader.verifiers import VERIFIERS, equation_steps, math_answer

log = logging.getLogger(__name__)

# A trial takes one worker of the pool or one call of a judge at a time from the active job.
MAX_TRIALS = 4


async def run(service: Service) -> None:
    """Consumes rollout groups and trials; produces graded groups and the trials' results.

    Waits for: the pool to warm up, a judge that passes its self-test if there is one, then groups.
    Unblocked by: those, and the service stopping.
    """
    PHASES.name("grading", idle="idle")
    settings = Settings.from_environment()
    import_extensions("WEIR_GRADER_EXTENSIONS", settings.extensions)
    await asyncio.to_thread(read_unit, "cm")  # loads the table of units, which takes 0.5 s
    judges = {name: Judge(judge) for name, judge in deployed_judges().items()}
    async with open_tools(settings, judges) as tools, asyncio.TaskGroup() as tasks:
        service.activity.capabilities = find_capabilities(tools)
        reporting = tasks.create_task(report_forever(service, tools))
        answering = tasks.create_task(answer_trials_forever(service, tools))
        await work_forever(service, make_consumer(tools, settings.groups_in_flight))
        reporting.cancel()
        answering.cancel()


@asynccontextmanager
async def open_tools(settings: Settings, judges: Mapping[str, Judge]) -> AsyncIterator[Tools]:
    """Start the pools and judges. The name of the judge of ``WEIR_JUDGE_URL`` is ""."""
    async with AsyncExitStack() as stack:
        warm_ups = [math_answer.WARM_UP, equation_steps.WARM_UP]
        pool = await stack.enter_async_context(Pool(settings.workers, warm_ups=warm_ups))
        confined_pool = None
        if settings.python:
            sandbox.keep_memory_private()
            confined_pool = Pool(settings.workers, warm_ups=[client_code.WARM_UP], confined=True)
            await stack.enter_async_context(confined_pool)
        for judge in judges.values():
            await stack.enter_async_context(judge)
        named_judges = {name: judge for name, judge in judges.items() if name}
        yield Tools(pool, judges.get(""), named_judges, confined_pool)


def make_consumer(tools: Tools, capacity: int) -> Consumer[RolloutGroup, GradedGroup]:
    admission = Admission(tools)

    async def handle(job: ActiveJob, group: RolloutGroup) -> GradedGroup:
        admission.check(job)
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


def find_capabilities(tools: Tools) -> Capabilities:
    names = [name for name in VERIFIERS if name != "python" or tools.sandbox is not None]
    return Capabilities(verifiers=tuple(names), judges=tuple(tools.named_judges))


def find_missing(reward: Reward, tools: Tools) -> str | None:
    """Return which verifier or judge of a reward this grader lacks, as a sentence."""
    capabilities = find_capabilities(tools)
    problems = (capabilities.find_missing(check) for check in (*reward.outcome, *reward.process))
    return next(filter(None, problems), None)


def find_obstacle(reward: Reward, tools: Tools, *, permanent: bool = False) -> str | None:
    """Return why groups with this reward must wait, as a sentence.

    A judge that is down is a ``permanent`` obstacle only if it has refused every call.
    """
    missing = find_missing(reward, tools)
    if missing:
        return missing
    for check in reward.judge_checks:
        judge = tools.named_judges[check.model]
        if not judge.is_up and (judge.refuses_all or not permanent):
            return _describe_outage(judge)
    return None


def _describe_outage(judge: Judge | None) -> str | None:
    return f"the judge is not up: {judge.why_down}" if judge and not judge.is_up else None


class Admission:
    """Admits the groups of a job once they can be graded, or have waited long enough.

    The latter are refused: a grader that starts meanwhile may have what this one lacks. If no
    grader has it, the groups are handed on as unworkable.
    """

    def __init__(self, tools: Tools, timeout_s: float = ADMISSION_TIMEOUT_S) -> None:
        self._tools = tools
        self._timeout_s = timeout_s
        self._job_id = ""  # of the job with a permanent obstacle
        self._since = 0.0

    def is_open(self, job: ActiveJob) -> bool:
        reward = job.recipe.reward
        if find_obstacle(reward, self._tools, permanent=True) is None:
            self._job_id = ""
            return find_obstacle(reward, self._tools) is None
        if self._job_id != job.job_id:
            self._job_id = job.job_id
            self._since = time.monotonic()
        return time.monotonic() - self._since >= self._timeout_s

    def check(self, job: ActiveJob) -> None:
        """Raise `UnsupportedEntry` if this grader lacks something for the job."""
        obstacle = find_obstacle(job.recipe.reward, self._tools, permanent=True)
        if obstacle:
            raise UnsupportedEntry(obstacle)


async def report_forever(service: Service, tools: Tools) -> None:
    """Consumes the judges' state and the active job; produces readiness and the job's events.

    Waits for: the next look. Unblocked by: time.
    """
    job_id = ""
    reported: str | None = None  # the last event's obstacle
    numbers = itertools.count()
    while True:
        job = await service.exchange.active()
        if job is None:
            obstacle = _describe_outage(tools.judge)
            job_id = ""
        else:
            obstacle = find_obstacle(job.recipe.reward, tools)
            if job.job_id != job_id:
                job_id = job.job_id
                reported = None
            if obstacle != reported:
                event = _make_event(service, job, obstacle, next(numbers))
                await service.exchange.record_event(event)
            reported = obstacle
        service.readiness.set(obstacle is None, obstacle or "")
        await asyncio.sleep(POLL_S)


def _make_event(service: Service, job: ActiveJob, obstacle: str | None, number: int) -> JobEvent:
    """Every grader reports its own view of the judge, so its id is part of the event's."""
    return JobEvent(
        id=f"gate:{'closed' if obstacle else 'open'}:{service.exchange.me}:{number}",
        job_id=job.job_id,
        created_at=time.time(),
        level="warn" if obstacle else "info",
        message=f"a grader waits: {obstacle}" if obstacle else "a grader grades again",
    )


async def answer_trials_forever(
    service: Service, tools: Tools, timeout_s: float = TRIAL_TIMEOUT_S
) -> None:
    """Consumes trials; produces their results.

    Waits for: a free slot, a trial. Unblocked by: the end of a trial, which has ``timeout_s``.
    """
    slots = asyncio.Semaphore(MAX_TRIALS)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await slots.acquire()
            trial = await _next_trial(service.exchange)
            task = tasks.create_task(_answer_trial(service.exchange, trial, tools, timeout_s))
            task.add_done_callback(lambda _: slots.release())


async def run_trial(trial: Trial, tools: Tools, timeout_s: float = TRIAL_TIMEOUT_S) -> TrialResult:
    missing = find_missing(trial.reward, tools)
    if missing:
        return TrialResult(missing=missing)
    outage = find_obstacle(trial.reward, tools)
    if outage:
        outcome = Ungradable(reason="judge_failed")
        return TrialResult(outcome=outcome, details={outcome.reason: outage})
    if trial.text is None:
        return TrialResult(outcome=await math_answer.examine(trial.task.answer or "", tools))
    started = time.monotonic()
    record = start_record()
    response = (trial.task, trial.text, tools)
    try:
        async with asyncio.timeout(timeout_s):
            outcome, parts = await grading.grade_outcome(trial.reward, *response, at_once=False)
            process = await grading.grade_process(trial.reward, outcome, *response)
    except TimeoutError:
        outcome = Ungradable(reason="not_in_time")
        process = None
        parts = ()
    return TrialResult(
        outcome=outcome,
        process=process,
        scores={part.check.label: part.score for part in parts},
        details=record.details,
        tokens=record.tokens,
        seconds=time.monotonic() - started,
    )


async def _next_trial(exchange: Exchange) -> Trial:
    while True:
        trial = await exchange.take_trial(TRIAL_READ_S)
        if trial is not None:
            return trial


async def _answer_trial(exchange: Exchange, trial: Trial, tools: Tools, timeout_s: float) -> None:
    try:
        result = await run_trial(trial, tools, timeout_s)
    except Exception:
        log.exception("a trial failed")
        result = TrialResult(outcome=Ungradable(reason="verifier_failed"))
    await exchange.answer_trial(trial, result)
