"""Of several learners one takes up jobs; another follows when it has seen the first one's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from protocol.exchange import Fenced
from protocol.messages import JobState

from tests.builders import a_job_record
from tests.contract.attempts import PATIENCE_S, Learner, until
from tests.contract.conftest import OpenExchange
from tests.contract.fake_team import Stalling
from tests.contract.valkey_server import Server


@pytest.fixture
async def learners(
    open_exchange: OpenExchange, server: Server, tmp_path: Path
) -> AsyncIterator[tuple[Learner, Learner]]:
    """Two of one stack."""
    async with open_exchange("first") as first, open_exchange("second") as second:
        yield (
            Learner(
                first,
                tmp_path,
                url=server.url,
            ),
            Learner(second, tmp_path, url=server.url),
        )


def is_waiting(learner: Learner) -> bool:
    readiness = learner.service.readiness
    return not readiness.ready and "waits for first," in readiness.why


async def stop(learner: Learner, running: asyncio.Task) -> None:
    learner.service.stop()
    async with asyncio.timeout(PATIENCE_S):
        await running


async def test_a_second_learner_takes_up_nothing_until_the_first_one_falls_silent(
    learners: tuple[Learner, Learner],
) -> None:
    first, second = learners
    first.claim_idle_s = second.claim_idle_s = 2.0
    await first.submit()
    async with asyncio.timeout(PATIENCE_S):
        working = first.start(team := Stalling(2))
        await team.stalls.wait()
        waiting = second.start()
        await until(lambda: is_waiting(second))
        await asyncio.sleep(2 * first.claim_idle_s)
        assert is_waiting(second)
        assert (await second.record()).attempt == 1
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        await waiting
    record = await second.record()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2)


async def test_a_learner_that_ends_in_good_order_gives_up_the_lease(
    learners: tuple[Learner, Learner],
) -> None:
    first, second = learners
    second.claim_idle_s = 3600
    working = first.start()
    await until(first.is_ready)
    waiting = second.start()
    await until(lambda: is_waiting(second))
    await stop(first, working)
    await until(second.is_ready)
    await stop(second, waiting)


async def test_the_next_life_in_the_same_replica_has_the_lease_at_once(
    open_exchange: OpenExchange, tmp_path: Path
) -> None:
    async with (
        open_exchange("learner-a.b-1.7-aa") as killed,
        open_exchange("learner-a.b-1.8-bb") as exchange,
    ):
        await killed.renew_lease()
        restarted = Learner(exchange, tmp_path, claim_idle_s=3600)
        running = restarted.start()
        await until(restarted.is_ready)
        await stop(restarted, running)


async def test_who_has_lost_the_lease_stops_and_begins_no_attempt(
    learners: tuple[Learner, Learner],
) -> None:
    first, second = learners
    working = first.start()
    await until(first.is_ready)
    lease = await second.exchange.renew_lease(await second.exchange.renew_lease())
    while lease.holder != "second":  # it has shown life in between
        lease = await second.exchange.renew_lease(lease)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(Fenced, match="second"):
            await working
    await first.exchange.submit(a_job_record())
    with pytest.raises(Fenced, match="second"):
        await first.exchange.begin_attempt("job")
    assert await second.exchange.begin_attempt("job") == 1


async def test_a_lease_is_not_taken_from_a_holder_that_has_shown_life(
    open_exchange: OpenExchange,
) -> None:
    async with open_exchange("first") as first, open_exchange("second") as second:
        assert (await first.renew_lease()).holder == "first"
        lease = await second.renew_lease()
        await first.renew_lease()
        assert (await second.renew_lease(lease)).holder == "first"
        await second.release_lease()  # not its own
        lease = await second.renew_lease()
        assert (await second.renew_lease(lease)).holder == "second"
