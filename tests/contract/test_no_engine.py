"""A job for which no rollout can start an engine: it fails, and holds the queue no more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from protocol.exchange import Exchange
from protocol.messages import JobRecord, JobState, Requested, Status

from services.learner.job.engines import FailedStarts
from tests.contract.attempts import Learner, answering, until
from tests.contract.fake_team import Stalling
from tests.contract.valkey_server import Server

WORDS = "architectures ['NoSuchModel'] are not supported"


def a_rollout(starts: int, seat: str = "rollout-1", job: str = "job", **more: Any) -> Status:
    """A rollout in so many lives in a row that were never ready."""
    error = f"vLLM did not start on weights/{job}/1.0: {WORDS}" if starts > 1 else None
    values = {"beats": 1, "error": error} | more
    known = {"name": seat, "seat": seat, "service": "rollout", "starts": starts, "for_s": 0}
    doing = {"ready": starts == 0, "doing": "starts its engine", "phase": "starting"}
    return Status(**{**known, **doing, **values})


async def failed(exchange: Exchange, folder: Path, starts: int) -> JobRecord:
    """The record of a job for which a rollout fails again and again, after so many starts."""
    learner = Learner(exchange, folder)
    await learner.submit()
    return await attempted(learner, starts)


async def attempted(learner: Learner, starts: int) -> JobRecord:
    """The record after one more attempt, during which the rollout fails on and on."""
    last = await learner.exchange.newest_policy("job")
    async with learner.attempting() as attempt:
        while await learner.exchange.newest_policy("job") == last:
            await asyncio.sleep(0.01)
        while not attempt.done():
            await learner.exchange.show_status(a_rollout(starts := starts + 1))
            await asyncio.wait({attempt}, timeout=0.1)
    return await learner.record()


@pytest.mark.anyio
@pytest.mark.redis
async def test_a_job_for_which_no_engine_starts_fails_with_the_words_of_vllm(
    exchange: Exchange, tmp_path: Path
) -> None:
    await exchange.show_status(a_rollout(0))
    record = await failed(exchange, tmp_path, starts=0)
    assert record.state is JobState.FAILED
    words = f"no engine starts for it, tried 3 times: vLLM did not start: {WORDS}; see the"
    assert str(record.error).startswith(words)
    assert not (await exchange.queue()).first


@pytest.mark.anyio
@pytest.mark.redis
async def test_a_job_waits_aside_if_the_engines_failed_before_it_came(
    exchange: Exchange, tmp_path: Path
) -> None:
    await exchange.show_status(a_rollout(5, job="another"))
    learner = Learner(exchange, tmp_path)
    await learner.submit()
    for starts in (5, 20):  # in its next attempt, it has failed for this job, too
        record = await attempted(learner, starts)
        assert (record.state, record.requested) == (JobState.PAUSED, Requested.RUN)
        assert f"{WORDS}; see the rollout's log; they had failed before it" in str(record.error)
        await exchange.show_status(a_rollout(20))


@pytest.mark.anyio
@pytest.mark.redis
async def test_what_failed_for_the_job_in_an_earlier_attempt_had_not_failed_before_it_came(
    exchange: Exchange, tmp_path: Path
) -> None:
    await exchange.show_status(a_rollout(5))
    record = await failed(exchange, tmp_path, starts=5)
    assert record.state is JobState.FAILED


@pytest.mark.anyio
@pytest.mark.redis
async def test_a_job_that_was_served_in_an_earlier_attempt_waits_for_an_engine(
    exchange: Exchange, tmp_path: Path, server: Server
) -> None:
    learner = Learner(exchange, tmp_path, make_team=lambda: Stalling(0))
    await learner.submit()
    async with answering(server.url):
        await learner.killed_at(0)
    await exchange.show_status(a_rollout(1))
    async with learner.attempting() as attempt:
        for starts in range(2, 8):
            await exchange.show_status(a_rollout(starts))
            await asyncio.wait({attempt}, timeout=0.1)
        await until(learner.is_in(JobState.RUNNING))
        assert not attempt.done()


@pytest.mark.parametrize("before", [0, 1, 7])  # 0: the engine of the job before was ready
def test_only_starts_for_the_job_itself_count(before: int) -> None:
    starts, first = FailedStarts("job"), max(1, before)
    assert starts.why_none_works([a_rollout(before, job="another")]) is None
    for life in (first, first + 1, first + 2):
        assert starts.why_none_works([a_rollout(life)]) is None
    assert WORDS in str(starts.why_none_works([a_rollout(first + 3)]))
    assert starts.failed_before == (before > 1)


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
