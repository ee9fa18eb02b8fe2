"""The work loop of every worker, on a real server: failures, deaths, stalls and leaving."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from protocol import streams
from protocol.exchange import Exchange, connect
from protocol.exchange.connection import Refused
from protocol.messages import ActiveJob, Doing, GradedGroup, RolloutRequest
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS

from services.chassis.consumer import Consumer, limit_in_flight, work_forever
from services.chassis.faults import UnsupportedEntry, Unworkable, WorkerBroken, WorkerFault
from services.chassis.service import Service, StatusReporter
from services.gateway.core.watch.descriptions import describe_activity
from tests.builders import a_failed_group, a_recipe, a_request
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import DEPLOYMENT, take_over
from tests.contract.exchange_steps import begin as begin_job
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
Handle = Callable[[ActiveJob, RolloutRequest], Awaitable[GradedGroup]]


async def begin(exchange: Exchange, *, requests: int) -> None:
    attempt = await begin_job(exchange)
    await exchange.activate(ActiveJob(job_id="job", attempt=attempt, recipe=a_recipe()))
    for number in range(requests):
        await exchange.ask(a_request(number=number, attempt=attempt))


def stage_of(handle: Handle, capacity: int = 4) -> Consumer[RolloutRequest, GradedGroup]:
    return Consumer((EVAL_REQUESTS, REQUESTS), GRADED, GRADED, handle, limit_in_flight(capacity))


@asynccontextmanager
async def working(
    exchange: Exchange, handle: Handle, capacity: int = 4, **settings: Any
) -> AsyncIterator[Service]:
    """A worker at its stage; it is told to stop at the end."""
    service = Service("worker", DEPLOYMENT, exchange)
    stage = replace(stage_of(handle, capacity), **settings)
    task = asyncio.create_task(work_forever(service, stage))
    try:
        yield service
    finally:
        service.stopping.set()
        await task


async def answer(_: ActiveJob, request: RolloutRequest) -> GradedGroup:
    return a_failed_group(request.number, message="done", purpose=request.purpose)


async def results(exchange: Exchange, count: int) -> dict[int, str]:
    """What the learner finds, until it has found so many groups; by number."""
    found: dict[int, str] = {}
    async with asyncio.timeout(60):
        while len(found) < count:
            for delivery in await exchange.claim([GRADED], "job", count=16, wait_s=0.1):
                group = delivery.message()
                assert group.number not in found
                found[group.number] = str(group.failure)
                assert await exchange.take_in(delivery, 1)
    return found


@pytest.mark.parametrize("wish", ["pause", "archive"])  # of another release
async def test_a_job_that_is_to_rest_is_left_alone_until_it_is_to_run(
    exchange: Exchange, server: Server, open_exchange: OpenExchange, wish: str
) -> None:
    await begin(exchange, requests=0)
    with server.client() as client:
        client.hset(streams.job_key("job"), "requested", f'"{wish}"')
        async with open_exchange("worker") as own, working(own, answer) as service:
            async with asyncio.timeout(60):
                while service.activity.now.doing is not Doing.JOB_IS_PAUSED:
                    await asyncio.sleep(0.01)
            await exchange.ask(a_request(number=0, attempt=1))
            await asyncio.sleep(5 * DEPLOYMENT.heartbeat_s)
            assert (await exchange.backlog(REQUESTS, "job")).waiting == 1
            client.hset(streams.job_key("job"), "requested", '"run"')
            assert await results(exchange, 1) == {0: "deaths: done"}


async def until_claiming(exchange: Exchange, worker: str, beats: int = 1) -> int:
    """Its heartbeats, when it has shown so many."""
    found = 0
    async with asyncio.timeout(60):
        while found < beats:
            await asyncio.sleep(0.01)
            found = (await exchange.heartbeat("rollout", may_claim=False)).lives.get(worker, 0)
    return found


@pytest.mark.parametrize("num_workers", [2, 4])
async def test_a_worker_claims_its_share_at_once_however_much_room_it_has(
    exchange: Exchange, open_exchange: OpenExchange, num_workers: int
) -> None:
    names = [f"worker-{place}" for place in range(num_workers)]
    share, held, open_to = 16 // num_workers, Counter[str](), set[str]()

    def room_of(name: str) -> Callable[[ActiveJob, int], int]:
        # No room for what is claimed later, one by one, while the others are slow.
        return lambda _, in_flight: 100 if name in open_to and in_flight < share else 0

    def holding(name: str) -> Handle:
        async def hold(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
            held[name] += 1
            while held.total() < 16:
                await asyncio.sleep(0.01)
            return await answer(job, request)

        return hold

    await begin(exchange, requests=16)
    async with AsyncExitStack() as workers:
        for name in names:
            own = await workers.enter_async_context(open_exchange(name))
            await workers.enter_async_context(working(own, holding(name), free_slots=room_of(name)))
        for name in names * 2:  # each knows of the others when all have shown life twice since
            beats = await until_claiming(exchange, name)
            await until_claiming(exchange, name, beats + 2)
        open_to.update(names)
        await results(exchange, 16)
    assert held == dict.fromkeys(names, share)


async def test_a_worker_outlives_a_job_that_ends_while_it_counts_its_share(
    exchange: Exchange,
    server: Server,
    open_exchange: OpenExchange,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await begin(exchange, requests=1)
    async with (
        open_exchange("one") as one,
        open_exchange("other") as other,
        working(other, answer, excluded_inputs=lambda *_: {REQUESTS}),
    ):
        await until_claiming(exchange, "other")
        counts, queued = asyncio.Event(), one.queued

        async def slowly(*args: Any) -> tuple[int, int]:
            counts.set()
            await asyncio.sleep(3 * DEPLOYMENT.heartbeat_s)
            return await queued(*args)

        monkeypatch.setattr(one, "queued", slowly)
        async with working(one, answer):
            await counts.wait()
            with server.client() as client:
                client.delete(streams.ACTIVE)
            await asyncio.sleep(6 * DEPLOYMENT.heartbeat_s)


async def held_through_deaths(open_exchange: OpenExchange, deaths: int) -> None:
    """One entry is claimed by so many workers that die, each in a replica of its own."""
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
    async with open_exchange("finder") as finder:
        (held,) = await take_over(finder, REQUESTS)
        await finder.release(held)  # so that it is the first that a worker gets
    for number in range(1, 9):
        await exchange.ask(a_request(number=number, attempt=1))
    running, company = set[int](), set[int]()

    async def watch(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        running.add(request.number)
        for _ in range(1 if request.number else 30):  # long enough for others to join it
            company.update(running if 0 in running else ())
            await asyncio.sleep(0.05)
        running.discard(request.number)
        return await answer(job, request)

    async with open_exchange("worker") as own, working(own, watch):
        await results(exchange, 9)
    assert company == {0}


async def test_a_part_of_the_worker_that_dies_counts_as_a_death_at_once(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    died = asyncio.Event()

    async def crash(*_: object) -> GradedGroup:
        died.set()
        raise WorkerFault("the engine is gone")

    await begin(exchange, requests=1)
    async with open_exchange("worker") as own, working(own, crash, has_died=died.is_set):
        await asyncio.wait_for(died.wait(), 60)
    (again,) = await exchange.reclaim(REQUESTS, "job", count=9)
    assert (again.deaths, again.failures) == (("worker",), ())


async def test_a_server_that_hangs_is_nobodys_death(own_server: Server) -> None:
    calls: list[int] = []
    is_over = asyncio.Event()

    async def long(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        calls.append(request.number)
        await is_over.wait()
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
            for _ in range(2):
                own_server.suspend()
                await asyncio.sleep(2 * DEPLOYMENT.claim_idle_s)
                own_server.resume()
                await asyncio.sleep(4 * DEPLOYMENT.heartbeat_s)
            is_over.set()
            assert set((await results(learner, 6)).values()) == {"deaths: done"}
    assert sorted(calls) == list(range(6))


async def test_a_stop_in_good_order_leaves_nothing_claimed(
    exchange: Exchange, open_exchange: OpenExchange, server: Server
) -> None:
    """Whatever the worker is at when it is told to stop: claiming, taking over, or neither."""

    async def for_ever(*_: object) -> GradedGroup:
        await asyncio.sleep(3600)
        raise AssertionError

    await begin(exchange, requests=30)
    for life in range(8):
        async with open_exchange(f"leaver.{life}") as own:
            service = Service("worker", replace(DEPLOYMENT, drain_s=0.05), own)
            task = asyncio.create_task(work_forever(service, stage_of(for_ever, capacity=30)))
            await asyncio.sleep(0.03 * life)
            service.stop()
            await task
        with server.client() as client:
            owners = client.xpending_range(REQUESTS.key("job"), "rollout", "-", "+", 99)
        assert {row["consumer"] for row in owners} <= {b"released"}
    again = await exchange.reclaim(REQUESTS, "job", count=99)
    again += await exchange.claim([REQUESTS], "job", count=99, wait_s=0)
    assert [(d.deaths, d.failures) for d in again] == [((), ())] * 30


async def test_a_worker_that_cannot_let_an_entry_go_ends_and_another_gets_it(
    exchange: Exchange, open_exchange: OpenExchange, server: Server
) -> None:
    with server.client() as client:

        def permit(*commands: str) -> None:
            client.execute_command("ACL", "SETUSER", "default", *commands)

        async def answer_into_refusals(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
            permit("-xack", "-xclaim")  # as a replica refuses writes during a failover
            return await answer(job, request)

        await begin(exchange, requests=1)
        try:
            async with open_exchange("one") as one, asyncio.timeout(60):
                with pytest.raises(Refused):
                    await work_forever(
                        Service("worker", DEPLOYMENT, one), stage_of(answer_into_refusals)
                    )
        finally:
            permit("+@all")
    async with open_exchange("other") as other, working(other, answer):
        assert await results(exchange, 1) == {0: "deaths: done"}


async def test_what_one_worker_is_unable_to_do_is_done_by_one_who_is_able(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    refused = asyncio.Event()

    async def refuse(*_: object) -> GradedGroup:
        refused.set()
        raise UnsupportedEntry("no verifier is called 'my_lab.oracle'")

    async def wait_and_answer(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        await refused.wait()
        return await answer(job, request)

    await begin(exchange, requests=40)
    async with (
        open_exchange("able") as able,
        open_exchange("other") as other,
        working(able, wait_and_answer),
        asyncio.timeout(60),
    ):
        while (await exchange.heartbeat("rollout", may_claim=False)).lives.get("able", 0) <= 0:
            await asyncio.sleep(0.01)
        async with working(other, refuse):
            found = await results(exchange, 40)
    assert set(found.values()) == {"deaths: done"}


async def test_what_failed_where_its_stream_belongs_is_done_where_the_stream_is_left_to_others(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    async def stumble(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        if request.number == 0:
            raise ValueError("not here")
        return await answer(job, request)

    await begin(exchange, requests=20)
    async with (
        open_exchange("one") as one,
        open_exchange("other") as other,
        working(other, answer, excluded_inputs=lambda *_: {REQUESTS}),
    ):
        await until_claiming(exchange, "other")
        async with working(one, stumble):
            assert set((await results(exchange, 20)).values()) == {"deaths: done"}


async def test_a_worker_that_fails_by_itself_rests_and_says_why_until_a_group_succeeds(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    is_mended = asyncio.Event()

    async def fail(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        if not is_mended.is_set():
            raise WorkerFault("no process can be forked")
        return await answer(job, request)

    await begin(exchange, requests=3)  # too few for it to end
    async with open_exchange("worker-1.1") as own, working(own, fail) as service:
        async with asyncio.timeout(60):
            while (await exchange.heartbeat("rollout")).lives.get("worker-1.1", 0) >= 0:
                await asyncio.sleep(0.01)
        service.readiness.set(True)  # as whatever else it needs is there
        status = StatusReporter(service).status()
        assert (status.ready, status.why) == (False, "no process can be forked")
        assert describe_activity(status) == "fails at every group: no process can be forked"
        is_mended.set()
        assert set((await results(exchange, 3)).values()) == {"deaths: done"}
        assert service.readiness.ready


async def test_a_worker_where_everything_fails_ends_says_so_and_costs_nothing(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    async def never(*_: object) -> GradedGroup:
        raise RuntimeError("CUDA error")

    await begin(exchange, requests=8)
    for life in range(4):  # more than the failures that an entry may have
        async with open_exchange(f"replica.{life}") as own:
            with pytest.raises(WorkerBroken):
                await work_forever(Service("worker", DEPLOYMENT, own), stage_of(never, 8))
    async with open_exchange("replica.5") as own, working(own, answer):
        assert set((await results(exchange, 8)).values()) == {"deaths: done"}
    events = [event for _, event in await exchange.events("job")]
    assert [event.id for event in events] == [f"broken:replica.{life}" for life in range(4)]


ALL, EVEN = range(12), range(0, 16, 2)


@pytest.mark.parametrize(
    ("error", "numbers", "times", "told"),
    [
        (Unworkable("too long"), ALL, 1, "unworkable: too long"),
        (UnsupportedEntry("too long"), ALL, 1, "unworkable: too long"),
        (ValueError("no"), [1], 3, "failures: ValueError: no"),
        (
            ValueError("not yet"),
            EVEN,
            1,
            "deaths: done",
        ),  # more than fail in a row where all is broken
        (WorkerFault("no process can be forked"), [0], 7, "deaths: done"),
    ],
)
async def test_what_a_lone_worker_cannot_do_is_handed_on_with_its_reason_when_it_is_hopeless(
    exchange: Exchange,
    open_exchange: OpenExchange,
    error: Exception,
    numbers: Sequence[int],
    times: int,
    told: str,
) -> None:
    tries = Counter[int]()

    async def stumble(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        if request.number in numbers and tries[request.number] < times:
            tries[request.number] += 1
            raise error
        return await answer(job, request)

    await begin(exchange, requests=16)
    async with open_exchange("own") as own, working(own, stumble, capacity=1):
        found = await results(exchange, 16)
    assert found == dict.fromkeys(range(16), "deaths: done") | dict.fromkeys(numbers, told)
    assert tries == dict.fromkeys(numbers, times)
