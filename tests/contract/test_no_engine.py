"""A job for which no rollout can start an engine: it fails, and holds the queue no more.

Which starts count is a table of `tests/unit/learner/test_limits.py`.
"""

from __future__ import annotations

import asyncio

import pytest
from protocol.exchange import Exchange
from protocol.messages import Failure, JobRecord, JobState, Requested, Status

from tests.builders import a_status
from tests.contract.attempts import Learner, answering, until
from tests.contract.fake_team import Stalling
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
WORDS = "whatever the engine says"


def a_rollout(starts: int, job: str = "job") -> Status:
    """A rollout in so many lives in a row that were never ready."""
    failure = Failure(words=WORDS, job_id=job) if starts > 1 else None
    return a_status(
        "rollout", "starts_its_engine", ready=starts == 0, starts=starts, failure=failure
    )


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
