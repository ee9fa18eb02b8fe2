"""Trials: one response, graded by a free grader as a job would grade it."""

from __future__ import annotations

import time

from protocol.exchange import Exchange
from protocol.messages import Trial, TrialResult

from services.gateway.errors import Problem, await_exchange, wrong

MAX_WAITING_TRIALS = 32
PICKUP_TIMEOUT_S = 10.0
RESULT_TIMEOUT_S = 130.0  # longer than a grader works on a trial
POLL_S = 1.0


async def run_trial(
    exchange: Exchange,
    trial: Trial,
    pickup_timeout_s: float = PICKUP_TIMEOUT_S,
    result_timeout_s: float = RESULT_TIMEOUT_S,
) -> TrialResult:
    """Wait until a grader has graded the trial.

    Raises:
        Problem: 400 if the graders lack something for it, 503 if no grader grades it.
    """
    if not await await_exchange(exchange.ask_trial(trial, MAX_WAITING_TRIALS)):
        raise _no_grader(f"{MAX_WAITING_TRIALS} trials of graders are waiting already")
    result = await _poll_result(exchange, trial, pickup_timeout_s)
    if result is None and await await_exchange(exchange.withdraw_trial(trial)):
        raise _no_grader(
            f"no grader took the trial within {pickup_timeout_s:g} s: no grader runs, or all are "
            "busy with other trials; check that one runs"
        )
    result = result or await _poll_result(exchange, trial, result_timeout_s)
    if result is None:
        raise _no_grader("the grader that took the trial has ended")
    if result.missing:
        raise wrong("grader", result.missing, code="invalid_grader")
    return result


async def _poll_result(exchange: Exchange, trial: Trial, timeout_s: float) -> TrialResult | None:
    """Wait in short polls: each shows that Redis still answers."""
    deadline = time.monotonic() + timeout_s
    while (remaining_s := deadline - time.monotonic()) > 0:
        wait_s = min(remaining_s, POLL_S)
        result = await await_exchange(exchange.trial_result(trial.id, wait_s), wait_s)
        if result is not None:
            return result
    return None


def _no_grader(reason: str) -> Problem:
    message = f"{reason}; retry the request"
    return Problem(503, message, code="no_grader", headers={"Retry-After": "2"})
