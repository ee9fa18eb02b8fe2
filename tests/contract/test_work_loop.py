"""The work loop of every worker, on a real server: failures, deaths, stalls and leaving."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from protocol import streams
from protocol.exchange import Exchange, connect
from protocol.exchange.connection import Refused
from protocol.messages import ActiveJob, GradedGroup, Requested, RolloutRequest
from protocol.streams import REQUESTS

from services.chassis.faults import WorkerFault
from services.chassis.service import Service
from services.chassis.work import work_forever
from tests.builders import a_request
from tests.contract.conftest import OpenExchange
from tests.contract.line import take_over
from tests.contract.stations import (
    DEPLOYMENT,
    answer,
    begin,
    results,
    station_of,
    working,
)
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


async def test_a_wish_that_cannot_be_read_rests_the_job_and_ends_no_worker(
    exchange: Exchange, server: Server
) -> None:
    await begin(exchange, requests=1)
    with server.client() as client:
        client.hset(streams.job_key("job"), "requested", '"archive"')
        async with working(exchange, answer) as service:
            async with asyncio.timeout(60):
                while "paused" not in service.activity.now.words:
                    await asyncio.sleep(0.01)
            client.hset(streams.job_key("job"), "requested", '"run"')
            assert await results(exchange, 1) == {0: "done"}


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


async def held_through_deaths(open_exchange: OpenExchange, deaths: int) -> None:
    """One entry is claimed by so many workers that die, each in a seat of its own."""
    for life in range(deaths):
        async with open_exchange(f"dead-{life}") as doomed:
            if life == 0:
                (held,) = await doomed.claim([REQUESTS], "job", count=1, wait_s=1)
            else:
                (held,) = await take_over(doomed, REQUESTS)
            assert (held.key, len(held.deaths)) == ("train:0", life)
            await doomed.heartbeat("rollout")


async def test_what_kills_its_workers_is_given_up_in_the_end(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange, requests=1)
    await held_through_deaths(open_exchange, 4)
    async with open_exchange("survivor") as own, working(own, answer):
        (failure,) = (await results(exchange, 1)).values()
    assert failure == "deaths: workers died holding it: dead-0, dead-1, dead-2, dead-3"


async def test_an_entry_that_has_killed_twice_runs_alone_to_its_end(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange, requests=1)
    await held_through_deaths(open_exchange, 2)
    for number in range(1, 9):
        await exchange.ask(a_request(number=number, attempt=1))
    running: set[int] = set()
    company: set[int] = set()

    async def watch(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        running.add(request.number)
        for _ in range(4):
            company.update(running if 0 in running else ())
            await asyncio.sleep(0.1)
        running.discard(request.number)
        return await answer(job, request)

    async with open_exchange("worker") as own, working(own, watch):
        await results(exchange, 9)
    assert company == {0}


async def test_a_part_of_the_worker_that_dies_counts_as_a_death_at_once(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    died = asyncio.Event()

    async def crash(_: ActiveJob, request: RolloutRequest) -> GradedGroup:
        died.set()
        raise WorkerFault("the engine is gone")

    await begin(exchange, requests=1)
    async with open_exchange("worker") as own:
        station = replace(station_of(crash), has_died=died.is_set)
        service = Service("worker", DEPLOYMENT, own)
        task = asyncio.create_task(work_forever(service, station))
        await asyncio.wait_for(died.wait(), 30)
        service.stop()
        await task
    (again,) = await exchange.reclaim(REQUESTS, "job", count=9)
    assert (again.deaths, again.failures) == (("worker",), ())


async def test_a_stop_in_good_order_leaves_nothing_claimed(
    exchange: Exchange, open_exchange: OpenExchange, server: Server
) -> None:
    """Whatever the worker is at when it is told to stop: claiming, taking over, or neither."""
    started_after: list[int] = []
    await begin(exchange, requests=30)
    for life in range(12):
        async with open_exchange(f"leaver.{life}") as own:
            service = Service("worker", replace(DEPLOYMENT, drain_s=0.05), own)
            stopped = asyncio.Event()

            async def for_ever(
                _: ActiveJob, request: RolloutRequest, stopped: asyncio.Event = stopped
            ) -> GradedGroup:
                if stopped.is_set():
                    started_after.append(request.number)
                await asyncio.sleep(3600)
                raise AssertionError

            task = asyncio.create_task(work_forever(service, station_of(for_ever, capacity=30)))
            await asyncio.sleep(0.03 * life)
            service.stop()
            await asyncio.sleep(0)  # what was about to begin when it was told begins
            stopped.set()
            await task
        with server.client() as client:
            owners = client.xpending_range(REQUESTS.key("job"), "rollout", "-", "+", 99)
        assert {row["consumer"] for row in owners} <= {b"released"}
    assert not started_after
    again = await exchange.reclaim(REQUESTS, "job", count=99)
    again += await exchange.claim([REQUESTS], "job", count=99, wait_s=0)
    assert [(d.deaths, d.failures) for d in again] == [((), ())] * 30


async def test_a_server_that_hangs_is_nobodys_death(own_server: Server) -> None:
    calls: list[int] = []

    async def long(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        calls.append(request.number)
        await asyncio.sleep(6)
        return await answer(job, request)

    async with (
        connect(own_server.url, me="learner") as learner,
        connect(own_server.url, me="one") as one,
        connect(own_server.url, me="other") as other,
    ):
        await begin(learner, requests=6)
        async with working(one, long), working(other, long):
            while len(calls) < 6:
                await asyncio.sleep(0.05)
            for _ in range(3):
                own_server.suspend()
                await asyncio.sleep(2.5 * DEPLOYMENT.claim_idle_s)
                own_server.resume()
                await asyncio.sleep(0.3)
            assert set((await results(learner, 6)).values()) == {"done"}
    assert sorted(calls) == list(range(6))


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


async def test_a_worker_that_cannot_let_an_entry_go_ends_and_another_gets_it(
    exchange: Exchange, open_exchange: OpenExchange, server: Server
) -> None:
    def permit(*commands: str) -> None:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "default", *commands)

    async def answer_into_refusals(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        permit("-xack", "-xclaim")  # as a replica refuses writes during a failover
        return await answer(job, request)

    await begin(exchange, requests=1)
    try:
        async with open_exchange("one") as one, asyncio.timeout(60):
            service = Service("worker", DEPLOYMENT, one)
            with pytest.raises(Refused):
                await work_forever(service, station_of(answer_into_refusals))
    finally:
        permit("+@all")
    async with open_exchange("other") as other, working(other, answer):
        assert await results(exchange, 1) == {0: "done"}
