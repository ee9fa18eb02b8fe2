"""Outcomes tried on one response, for whoever writes a grader: beside the line, a few at once."""

from __future__ import annotations

import asyncio
import logging
import time

from protocol.exchange import Exchange
from protocol.messages import Trial, TrialResult, Ungradable
from pydantic import ValidationError

from services.chassis.service import Service
from services.grader import gate, grading
from services.grader.tools import Tools
from services.grader.trial_record import recorded

AT_ONCE = 4  # of one grader, each in one place of the pool or judges that the job waits for, too
_LIMIT_S = 120.0
_LOOK_S = 5.0
log = logging.getLogger(__name__)


async def try_forever(service: Service, tools: Tools, limit_s: float = _LIMIT_S) -> None:
    """Consumes trials; produces their results.

    Waits for: a free place, a trial. Unblocked by: ``limit_s`` of each trial, somebody asking.
    """
    free = asyncio.Semaphore(AT_ONCE)
    async with asyncio.TaskGroup() as under_way:
        while True:
            await free.acquire()
            trial = await _next(service.exchange)
            answering = under_way.create_task(_answer(service.exchange, trial, tools, limit_s))
            answering.add_done_callback(lambda _: free.release())


async def tried(trial: Trial, tools: Tools, limit_s: float = _LIMIT_S) -> TrialResult:
    """Grade one response, within ``limit_s``."""
    if missing := gate.what_is_missing(trial.reward, tools):
        return TrialResult(missing=missing)
    if trouble := gate.what_is_in_the_way(trial.reward, tools):
        down = Ungradable(reason="judge_failed")
        return TrialResult(outcome=down, details={down.reason: trouble})
    began, record = time.monotonic(), recorded()
    try:
        async with asyncio.timeout(limit_s):
            outcome, parts = await grading.grade_outcome(
                trial.reward, trial.task, trial.text, tools, at_once=False
            )
    except TimeoutError:
        outcome, parts = Ungradable(reason="not_in_time"), ()
    return TrialResult(
        outcome=outcome,
        scores={part.check.label: part.score for part in parts},
        details=record.details,
        tokens=record.tokens,
        seconds=time.monotonic() - began,
    )


async def _next(exchange: Exchange) -> Trial:
    while True:
        try:
            if (trial := await exchange.take_trial(_LOOK_S)) is not None:
                return trial
        except ValidationError as error:  # of another release
            log.warning("a trial cannot be read", extra={"why": str(error)[:300]})


async def _answer(exchange: Exchange, trial: Trial, tools: Tools, limit_s: float) -> None:
    try:
        result = await tried(trial, tools, limit_s)
    except Exception:
        log.exception("a trial failed")
        result = TrialResult(outcome=Ungradable(reason="verifier_failed"))
    await exchange.answer_trial(trial, result)
