"""The work loop of every worker, on a real server: failures, deaths, stalls and leaving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from protocol.exchange import Exchange
from protocol.messages import ActiveJob, GradedGroup, JobRecord, Requested, RolloutRequest
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS

from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.chassis.work import Station, work_forever
from tests.builders import a_recipe, a_request
from tests.contract.conftest import OpenExchange

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
Handle = Callable[[ActiveJob, RolloutRequest], Awaitable[GradedGroup]]
DEPLOYMENT = replace(
    Deployment.from_environment(
        {"WEIR_REDIS_URL": "unused", "WEIR_DATA_DIR": "/unused", "WEIR_PORT": "0"}
    ),
    heartbeat_s=0.05,
    claim_idle_s=0.4,
    drain_s=1.0,
)


async def begin(exchange: Exchange, *, requests: int) -> None:
    await exchange.submit(JobRecord(id="job", created_at=0.0, recipe=a_recipe()))
    attempt = await exchange.begin_attempt("job")
    await exchange.activate(ActiveJob(job_id="job", attempt=attempt, recipe=a_recipe()))
    for number in range(requests):
        await exchange.ask(a_request(number=number, attempt=attempt))


@asynccontextmanager
async def working(exchange: Exchange, handle: Handle, capacity: int = 4) -> AsyncIterator[Service]:
    """A worker at its station; it is told to stop at the end."""
    service = Service("worker", DEPLOYMENT, exchange)
    station = Station((EVAL_REQUESTS, REQUESTS), GRADED, GRADED, handle, capacity)
    task = asyncio.create_task(work_forever(service, station))
    try:
        yield service
    finally:
        service.stopping.set()
        await task


async def answer(_: ActiveJob, request: RolloutRequest) -> GradedGroup:
    return GradedGroup(purpose=request.purpose, number=request.number, failure="done")


async def results(exchange: Exchange, count: int) -> dict[int, str]:
    """What the learner finds, until it has found so many groups; by number."""
    found: dict[int, str] = {}
    async with asyncio.timeout(15):
        while len(found) < count:
            for delivery in await exchange.claim([GRADED], "job", count=16, wait_s=0.1):
                group = delivery.message()
                assert group.number not in found
                found[group.number] = str(group.failure)
                assert await exchange.take_in(delivery, 1)
    return found


async def test_every_request_is_answered_once_by_two_workers(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange, requests=40)
    async with (
        open_exchange("one") as one,
        open_exchange("other") as other,
        working(one, answer),
        working(other, answer),
    ):
        assert set(await results(exchange, 40)) == set(range(40))
    assert not await exchange.under_way("job")


async def test_an_entry_that_keeps_failing_is_handed_on_with_its_reason(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    tries: list[int] = []

    async def stumble(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        if request.number == 1:
            tries.append(request.number)
            raise ValueError("this one cannot be")
        return await answer(job, request)

    await begin(exchange, requests=3)
    async with open_exchange("worker") as own, working(own, stumble):
        found = await results(exchange, 3)
    assert len(tries) == 3
    assert found[1] == "failures: ValueError: this one cannot be"
    assert found[0] == found[2] == "done"


async def test_what_kills_its_workers_runs_alone_and_is_then_given_up(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange, requests=1)
    for life in range(3):
        async with open_exchange(f"dead-{life}") as doomed:
            if life == 0:
                (held,) = await doomed.claim([REQUESTS], "job", count=1, wait_s=1)
            else:
                held = await reclaimed(doomed)
            assert (held.key, held.deaths) == ("train:0", life)
    async with open_exchange("survivor") as own, working(own, answer):
        assert await results(exchange, 1) == {0: "deaths: 3 workers died holding it"}


async def reclaimed(worker: Exchange):
    async with asyncio.timeout(5):
        while not (found := await worker.reclaim(REQUESTS, "job", idle_s=0.2, count=1)):
            await asyncio.sleep(0.05)
    return found[0]


async def test_a_troubled_entry_waits_until_nothing_else_is_in_flight(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange, requests=1)
    for life in range(2):
        async with open_exchange(f"dead-{life}") as doomed:
            if life == 0:
                await doomed.claim([REQUESTS], "job", count=1, wait_s=1)
            else:
                await reclaimed(doomed)
    for number in (1, 2):
        await exchange.ask(a_request(number=number, attempt=1))
    running: set[int] = set()
    company: dict[int, int] = {}

    async def watch(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        running.add(request.number)
        company[request.number] = len(running)
        await asyncio.sleep(0.8)
        running.discard(request.number)
        return await answer(job, request)

    async with open_exchange("worker") as own, working(own, watch):
        await results(exchange, 3)
    assert company[0] == 1


async def test_a_worker_that_leaves_gives_its_work_back_unharmed(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    started = asyncio.Event()

    async def for_ever(_: ActiveJob, request: RolloutRequest) -> GradedGroup:
        started.set()
        await asyncio.sleep(3600)
        raise AssertionError(request)

    await begin(exchange, requests=2)
    async with open_exchange("leaver") as own, working(own, for_ever):
        await asyncio.wait_for(started.wait(), 5)
    async with open_exchange("next") as own:
        again = await own.reclaim(REQUESTS, "job", idle_s=60, count=9)
        assert {(d.key, d.deaths, d.failures) for d in again} >= {("train:0", 0, 0)}


async def test_a_paused_job_is_left_alone(exchange: Exchange, open_exchange: OpenExchange) -> None:
    await begin(exchange, requests=0)
    await exchange.request_state("job", Requested.PAUSE)
    async with open_exchange("worker") as own, working(own, answer):
        await asyncio.sleep(0.3)
        await exchange.ask(a_request(number=0, attempt=1))
        await asyncio.sleep(0.5)
        assert (await exchange.backlog(REQUESTS, "job")).entries == 1
        await exchange.request_state("job", Requested.RUN)
        assert await results(exchange, 1) == {0: "done"}
