"""A job for which no rollout can start an engine: it fails, and holds the queue no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from protocol.exchange import Exchange
from protocol.messages import JobRecord, JobState, Requested, Status

from services.learner.job.engines import FailedStarts
from tests.contract.attempts import Learner, answering, until
from tests.contract.fake_team import Stalling
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
WORDS = "architectures ['NoSuchModel'] are not supported"


def a_rollout(starts: int, seat: str = "rollout-1", job: str = "job", **more: Any) -> Status:
    """A rollout in so many lives in a row that were never ready."""
    error = f"vLLM did not start on weights/{job}/1.0: {WORDS}" if starts > 1 else None
    values = {"beats": 1, "error": error} | more
    known = {"name": seat, "seat": seat, "service": "rollout", "starts": starts, "for_s": 0}
    doing = {"ready": starts == 0, "doing": "starts its engine", "phase": "starting"}
    return Status(**{**known, **doing, **values})


async def attempted(learner: Learner, starts: int) -> JobRecord:
    """The record after one more attempt, during which the rollout fails on and on."""
    last = await learner.exchange.newest_policy("job")
    async with learner.attempting() as attempt:
        while await learner.exchange.newest_policy("job") == last:
            await asyncio.sleep(0.01)
        while not attempt.done():
            await learner.exchange.show_status(a_rollout(starts := starts + 1))
            await asyncio.wait({attempt}, timeout=0.05)
    return await learner.record()


async def test_a_job_for_which_no_engine_starts_fails_with_the_words_of_vllm(
    exchange: Exchange, learner: Learner
) -> None:
    await exchange.show_status(a_rollout(0))
    await learner.submit()
    record = await attempted(learner, starts=0)
    assert record.state is JobState.FAILED
    assert WORDS in str(record.error)
    assert not (await exchange.queue()).first


async def test_a_job_waits_aside_if_the_engines_failed_before_it_came(
    exchange: Exchange, learner: Learner
) -> None:
    await exchange.show_status(a_rollout(5, job="another"))
    await learner.submit()
    for starts in (5, 20):  # in its next attempt, it has failed for this job, too
        record = await attempted(learner, starts)
        assert (record.state, record.requested) == (JobState.PAUSED, Requested.RUN)
        assert WORDS in str(record.error)
        await exchange.show_status(a_rollout(20))


async def test_a_job_that_was_served_in_an_earlier_attempt_waits_for_an_engine(
    exchange: Exchange, learner: Learner, server: Server
) -> None:
    learner.make_team = lambda: Stalling(0)
    await learner.submit()
    async with answering(server.url):
        await learner.killed_at(0)
    await exchange.show_status(a_rollout(1))
    async with learner.attempting() as attempt:
        for starts in range(2, 8):
            await exchange.show_status(a_rollout(starts))
            await asyncio.wait({attempt}, timeout=0.05)
        await until(learner.is_in(JobState.RUNNING))
        assert not attempt.done()


@pytest.mark.parametrize("before", [0, 7])  # 0: the engine of the job before was ready
def test_only_starts_for_the_job_itself_count(before: int) -> None:
    starts, first = FailedStarts("job"), max(1, before)
    assert starts.why_none_works([a_rollout(before, job="another")]) is None
    for life in (first, first + 1, first + 2):
        assert starts.why_none_works([a_rollout(life)]) is None
    assert WORDS in str(starts.why_none_works([a_rollout(first + 3)]))
    assert starts.failed_before == (before > 1)


def test_what_failed_for_the_job_in_an_earlier_attempt_had_not_failed_before_it_came() -> None:
    starts = FailedStarts("job")
    for life in (5, 6, 7):
        assert starts.why_none_works([a_rollout(life)]) is None
    assert starts.why_none_works([a_rollout(8)])
    assert not starts.failed_before


@pytest.mark.parametrize(
    "other",
    [
        a_rollout(1, "rollout-2"),  # it is still at its first try
        a_rollout(0, "rollout-2"),  # it serves
        a_rollout(9, "rollout-2", error="ModuleNotFoundError: No module named 'vllm'"),
    ],
)
def test_one_rollout_that_has_not_failed_for_the_job_is_enough_to_wait_for(other: Status) -> None:
    starts = FailedStarts("job")
    starts.why_none_works([a_rollout(1), a_rollout(min(other.starts, 1), "rollout-2")])
    assert starts.why_none_works([a_rollout(9), other]) is None


def test_what_breaks_once_an_engine_has_served_the_job_costs_it_nothing() -> None:
    starts = FailedStarts("job")
    starts.why_none_works([a_rollout(0, holds={"train:0": 1.0})])
    assert starts.any_served
    assert starts.why_none_works([a_rollout(9)]) is None
