"""A job for which no rollout can start an engine: it fails, and holds the queue no more.

Which starts count is a table of `tests/unit/learner/test_limits.py`.
"""

from __future__ import annotations

import asyncio

from protocol.messages import Failure, JobRecord, JobState, Requested, Status

from tests.builders import a_status
from tests.contract.attempts import Learner, until
from tests.contract.fake_team import Stalling

WORDS = "whatever the engine says"


def a_rollout(starts: int, job: str = "job") -> Status:
    """A rollout in so many lives in a row that were never ready."""
    failure = Failure(words=WORDS, job_id=job) if starts > 1 else None
    return a_status(
        "rollout", "starts_its_engine", ready=starts == 0, starts=starts, failure=failure
    )


async def attempted(learner: Learner, starts: int) -> JobRecord:
    """The record after one more attempt, during which the rollout fails on and on."""

    async def is_announced() -> bool:
        return await learner.exchange.newest_policy("job") != last

    last = await learner.exchange.newest_policy("job")
    learner.answers_training = False
    async with learner.attempting() as attempt:
        await until(is_announced)
        while not attempt.done():
            await learner.exchange.show_status(a_rollout(starts := starts + 1))
            await asyncio.wait({attempt}, timeout=0.05)
    return await learner.record()


async def test_a_job_for_which_no_engine_starts_fails_with_the_words_of_vllm(
    learner: Learner,
) -> None:
    await learner.exchange.show_status(a_rollout(0))
    await learner.submit()
    record = await attempted(learner, starts=0)
    assert record.state is JobState.FAILED
    assert WORDS in str(record.error)
    assert not (await learner.exchange.queue()).first


async def test_a_job_waits_aside_if_the_engines_failed_before_it_came(learner: Learner) -> None:
    await learner.exchange.show_status(a_rollout(5, job="another"))
    await learner.submit()
    for starts in (5, 20):  # in its next attempt, it has failed for this job, too
        record = await attempted(learner, starts)
        assert (record.state, record.requested) == (JobState.PAUSED, Requested.RUN)
        assert WORDS in str(record.error)
        await learner.exchange.show_status(a_rollout(20))


async def test_a_job_that_was_served_in_an_earlier_attempt_waits_for_an_engine(
    learner: Learner,
) -> None:
    learner.make_team = lambda: Stalling(0)
    await learner.submit()
    await learner.killed_at(0)
    await learner.exchange.show_status(a_rollout(1))
    learner.answers_training = False
    async with learner.attempting() as attempt:
        for starts in range(2, 8):
            await learner.exchange.show_status(a_rollout(starts))
            await asyncio.wait({attempt}, timeout=0.05)
        assert not attempt.done()
    assert (await learner.record()).state is JobState.RUNNING
