"""Of several learners one takes up jobs; another follows when it has seen the first one's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from protocol.exchange import Fenced
from protocol.messages import JobState

from tests.builders import a_job_record
from tests.contract.attempts import PATIENCE_S, Learner, answering, until
from tests.contract.conftest import OpenExchange
from tests.contract.fake_team import Stalling
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.engine]

Open = Callable[[str], Awaitable[Learner]]


@pytest.fixture
async def open_learner(open_exchange: OpenExchange, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens learners of one stack, each under its own name."""
    async with AsyncExitStack() as stack:

        async def opened(me: str) -> Learner:
            return Learner(await stack.enter_async_context(open_exchange(me)), tmp_path)

        yield opened


def is_waiting(learner: Learner, holder: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        readiness = learner.services[-1].readiness
        return not readiness.ready and f"waits for {holder}," in readiness.why

    return look


async def stop(learner: Learner, running: asyncio.Task) -> None:
    learner.services[-1].stop()
    async with asyncio.timeout(PATIENCE_S):
        await running


async def test_a_second_learner_takes_up_nothing_until_the_first_one_falls_silent(
    open_learner: Open, server: Server
) -> None:
    first = await open_learner("first")
    second = await open_learner("second")
    team = Stalling(steps=2)
    first.make_team = lambda: team
    first.claim_idle_s = second.claim_idle_s = 2.0
    await first.submit()
    async with answering(server.url), asyncio.timeout(PATIENCE_S):
        working = first.start()
        await team.stalls.wait()
        waiting = second.start()
        await until(is_waiting(second, "first"))
        await asyncio.sleep(2 * first.claim_idle_s)
        assert await is_waiting(second, "first")()
        assert (await second.record()).attempt == 1
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        await waiting
    record = await second.record()
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2)


async def test_a_learner_that_ends_in_good_order_gives_up_the_lease(open_learner: Open) -> None:
    first = await open_learner("first")
    second = await open_learner("second")
    second.claim_idle_s = 3600
    working = first.start()
    await until(first.is_ready)
    waiting = second.start()
    await until(is_waiting(second, "first"))
    await stop(first, working)
    await until(second.is_ready)
    await stop(second, waiting)


async def test_the_next_life_in_the_same_replica_has_the_lease_at_once(open_learner: Open) -> None:
    killed = await open_learner("learner-a.b-1.7-aa")
    restarted = await open_learner("learner-a.b-1.8-bb")
    restarted.claim_idle_s = 3600
    await killed.exchange.renew_lease()
    running = restarted.start()
    await until(restarted.is_ready)
    await stop(restarted, running)


async def test_who_has_lost_the_lease_stops_and_begins_no_attempt(open_learner: Open) -> None:
    first = await open_learner("first")
    second = await open_learner("second")
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
