"""The work loop of every worker, on a real server: failures, deaths, stalls and leaving."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from protocol import streams
from protocol.exchange import Exchange, connect
from protocol.exchange.connection import Refused
from protocol.messages import ActiveJob, Doing, GradedGroup, RolloutRequest
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS
from redis import Redis

from services.chassis.consumer import Consumer, limit_in_flight, work_forever
from services.chassis.faults import UnsupportedEntry, Unworkable, WorkerBroken, WorkerFault
from services.chassis.service import Service, StatusReporter
from services.gateway.core.watch.descriptions import describe_activity
from tests.builders import a_failed_group, a_request
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import (
    DEPLOYMENT,
    activate,
    claim,
    reclaim,
    take_over,
    until,
)
from tests.contract.valkey_server import Server

Before = Callable[[RolloutRequest], Awaitable[object]]  # what a worker does before it answers
Open = Callable[..., AbstractAsyncContextManager[Service]]
DONE = "deaths: done"


async def ask(exchange: Exchange, requests: int) -> None:
    attempt = await activate(exchange)
    for number in range(requests):
        await exchange.ask(a_request(number=number, attempt=attempt))


async def nothing(_: RolloutRequest) -> None:
    pass


def a_stage(before: Before, room: int = 4) -> Consumer[RolloutRequest, GradedGroup]:
    async def answer(_: ActiveJob, request: RolloutRequest) -> GradedGroup:
        await before(request)
        return a_failed_group(request.number, message="done", purpose=request.purpose)

    return Consumer((EVAL_REQUESTS, REQUESTS), GRADED, GRADED, answer, limit_in_flight(room))


@asynccontextmanager
async def work(
    exchange: Exchange, before: Before = nothing, room: int = 4, **settings: Any
) -> AsyncIterator[Service]:
    """A worker at its stage; it is told to stop at the end."""
    service = Service("worker", DEPLOYMENT, exchange)
    task = asyncio.create_task(work_forever(service, replace(a_stage(before, room), **settings)))
    try:
        yield service
    finally:
        service.stopping.set()
        await task


@pytest.fixture
def working(open_exchange: OpenExchange) -> Open:
    """Runs a worker under a name."""

    @asynccontextmanager
    async def open_worker(
        name: str,
        *args: Any,
        **settings: Any,
    ) -> AsyncIterator[Service]:
        async with open_exchange(name) as exchange, work(exchange, *args, **settings) as service:
            yield service

    return open_worker


async def results(exchange: Exchange, count: int) -> dict[int, str]:
    """The outcomes that the learner gets, by number, when there are so many."""
    outcomes: dict[int, str] = {}
    async with asyncio.timeout(60):
        while len(outcomes) < count:
            for delivery in await claim(exchange, GRADED):
                group = delivery.message()
                assert group.number not in outcomes
                outcomes[group.number] = str(group.failure)
                assert await exchange.ingest(delivery, 1)
    return outcomes


async def all_are_done(exchange: Exchange, count: int) -> bool:
    return await results(exchange, count) == dict.fromkeys(range(count), DONE)


async def heartbeats(exchange: Exchange, worker: str, count: int = 1) -> int:
    """Those of a worker that claims, when it has shown so many."""
    beats = 0

    async def are_shown() -> bool:
        nonlocal beats
        beats = (await exchange.heartbeat("rollout", may_claim=False)).beats.get(worker, 0)
        return beats >= count

    await until(are_shown)
    return beats


@pytest.mark.parametrize("wish", ["pause", "archive"])  # of another release
async def test_a_job_that_is_to_rest_is_left_alone_until_it_is_to_run(
    exchange: Exchange, client: Redis, working: Open, wish: str
) -> None:
    await ask(exchange, 0)
    client.hset(streams.job_key("job"), "requested", f'"{wish}"')
    async with working("worker") as service:
        await until(lambda: service.activity.now.doing is Doing.JOB_IS_PAUSED)
        await exchange.ask(a_request())
        await asyncio.sleep(5 * DEPLOYMENT.heartbeat_s)
        assert (await exchange.backlog(REQUESTS, "job")).waiting == 1
        client.hset(streams.job_key("job"), "requested", '"run"')
        assert await all_are_done(exchange, 1)


@pytest.mark.parametrize("num_workers", [2, 4])
async def test_a_worker_claims_its_share_at_once_however_much_room_it_has(
    exchange: Exchange, working: Open, num_workers: int
) -> None:
    names = [f"worker-{place}" for place in range(num_workers)]
    share = 16 // num_workers
    claimed = Counter[str]()
    open_to = set[str]()

    def worker(name: str) -> AbstractAsyncContextManager[Service]:
        async def hold(_: RolloutRequest) -> None:
            claimed[name] += 1
            await until(lambda: claimed.total() == 16)

        # No room for what is claimed later, one by one, while the others are slow.
        def has_room(_: ActiveJob, in_flight: int) -> int:
            return 100 if name in open_to and in_flight < share else 0

        return working(name, hold, free_slots=has_room)

    await ask(exchange, 16)
    async with AsyncExitStack() as workers:
        for name in names:
            await workers.enter_async_context(worker(name))
        for name in names * 2:  # each knows of the others when all have shown life twice since
            await heartbeats(exchange, name, await heartbeats(exchange, name) + 2)
        open_to.update(names)
        await results(exchange, 16)
    assert claimed == dict.fromkeys(names, share)


async def test_a_worker_outlives_a_job_that_ends_while_it_counts_its_share(
    exchange: Exchange,
    client: Redis,
    open_exchange: OpenExchange,
    working: Open,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await ask(exchange, 1)
    async with (
        open_exchange("one") as first,
        working("other", excluded_inputs=lambda *_: {REQUESTS}),
    ):
        await heartbeats(exchange, "other")
        counts = asyncio.Event()
        queued = first.queued

        async def slowly(*args: Any) -> tuple[int, int]:
            counts.set()
            await asyncio.sleep(3 * DEPLOYMENT.heartbeat_s)
            return await queued(*args)

        monkeypatch.setattr(first, "queued", slowly)
        async with work(first):
            await counts.wait()
            client.delete(streams.ACTIVE)
            await asyncio.sleep(6 * DEPLOYMENT.heartbeat_s)


async def held_through_deaths(open_exchange: OpenExchange, deaths: int) -> None:
    """One entry is claimed by so many workers that die, each in a replica of its own."""
    for life in range(deaths):
        async with open_exchange(f"dead-{life}") as doomed:
            (claimed,) = await (take_over(doomed) if life else claim(doomed, count=1))
            assert (claimed.key, len(claimed.deaths)) == ("train:0", life)
            await doomed.heartbeat("rollout")


async def test_what_kills_its_workers_is_given_up_in_the_end(
    exchange: Exchange, open_exchange: OpenExchange, working: Open
) -> None:
    await ask(exchange, 1)
    await held_through_deaths(open_exchange, 4)
    async with working("survivor"):
        (failure,) = (await results(exchange, 1)).values()
    assert failure == "deaths: workers died holding it: dead-0, dead-1, dead-2, dead-3"


async def test_an_entry_that_has_killed_twice_runs_alone_to_its_end(
    exchange: Exchange, open_exchange: OpenExchange, working: Open
) -> None:
    await ask(exchange, 1)
    await held_through_deaths(open_exchange, 2)
    async with open_exchange("finder") as finder:
        (claimed,) = await take_over(finder)
        await finder.release(claimed)  # so that it is the first that a worker gets
    for number in range(1, 9):
        await exchange.ask(a_request(number=number))
    running = set[int]()
    company = set[int]()

    async def watch(request: RolloutRequest) -> None:
        running.add(request.number)
        for _ in range(1 if request.number else 30):  # long enough for others to join it
            company.update(running if 0 in running else ())
            await asyncio.sleep(0.05)
        running.discard(request.number)

    async with working("worker", watch):
        await results(exchange, 9)
    assert company == {0}


async def test_a_part_of_the_worker_that_dies_counts_as_a_death_at_once(
    exchange: Exchange, working: Open
) -> None:
    died = asyncio.Event()

    async def crash(_: RolloutRequest) -> None:
        died.set()
        raise WorkerFault("the engine is gone")

    await ask(exchange, 1)
    async with working("worker", crash, has_died=died.is_set):
        await asyncio.wait_for(died.wait(), 60)
    (again,) = await reclaim(exchange)
    assert (again.deaths, again.failures) == (("worker",), ())


async def test_a_server_that_hangs_is_nobodys_death(own_server: Server) -> None:
    calls: list[int] = []
    is_over = asyncio.Event()

    async def wait(request: RolloutRequest) -> None:
        calls.append(request.number)
        await is_over.wait()

    async with (
        connect(own_server.url, me="learner") as learner,
        connect(own_server.url, me="one") as first,
        connect(own_server.url, me="other") as other,
    ):
        await ask(learner, 6)
        async with work(first, wait), work(other, wait):
            await until(lambda: len(calls) == 6)
            for _ in range(2):
                own_server.suspend()
                await asyncio.sleep(2 * DEPLOYMENT.claim_idle_s)
                own_server.resume()
                await asyncio.sleep(4 * DEPLOYMENT.heartbeat_s)
            is_over.set()
            assert await all_are_done(learner, 6)
    assert sorted(calls) == list(range(6))


async def test_a_stop_in_good_order_leaves_nothing_claimed(
    exchange: Exchange, open_exchange: OpenExchange, client: Redis
) -> None:
    """Whatever the worker is at when it is told to stop: claiming, taking over, or neither."""

    async def hang(_: RolloutRequest) -> None:
        await asyncio.sleep(3600)

    await ask(exchange, 30)
    for life in range(8):
        async with open_exchange(f"leaver.{life}") as worker:
            service = Service("worker", replace(DEPLOYMENT, drain_s=0.05), worker)
            task = asyncio.create_task(work_forever(service, a_stage(hang, room=30)))
            await asyncio.sleep(0.03 * life)
            service.stop()
            await task
        owners = client.xpending_range(REQUESTS.key("job"), "rollout", "-", "+", 99)
        assert {row["consumer"] for row in owners} <= {b"released"}
    again = await exchange.reclaim(REQUESTS, "job", count=99)
    again += await claim(exchange)
    assert [(entry.deaths, entry.failures) for entry in again] == [((), ())] * 30


async def test_a_worker_that_cannot_let_an_entry_go_ends_and_another_gets_it(
    exchange: Exchange, open_exchange: OpenExchange, working: Open, client: Redis
) -> None:

    def permit(*commands: str) -> None:
        client.execute_command("ACL", "SETUSER", "default", *commands)

    async def refuse(_: RolloutRequest) -> None:
        permit("-xack", "-xclaim")  # as a replica refuses writes during a failover

    await ask(exchange, 1)
    try:
        async with open_exchange("one") as first, asyncio.timeout(60):
            with pytest.raises(Refused):
                await work_forever(Service("worker", DEPLOYMENT, first), a_stage(refuse))
    finally:
        permit("+@all")
    async with working("other"):
        assert await all_are_done(exchange, 1)


async def test_what_one_worker_is_unable_to_do_is_done_by_one_who_is_able(
    exchange: Exchange, working: Open
) -> None:
    refused = asyncio.Event()

    async def refuse(_: RolloutRequest) -> None:
        refused.set()
        raise UnsupportedEntry("no verifier is called 'my_lab.oracle'")

    await ask(exchange, 40)
    async with working("able", lambda _: refused.wait()):
        await heartbeats(exchange, "able")
        async with working("other", refuse):
            assert await all_are_done(exchange, 40)


async def test_what_failed_where_its_stream_belongs_is_done_where_the_stream_is_left_to_others(
    exchange: Exchange, working: Open
) -> None:
    async def stumble(request: RolloutRequest) -> None:
        if request.number == 0:
            raise ValueError("not here")

    await ask(exchange, 20)
    async with working("other", excluded_inputs=lambda *_: {REQUESTS}):
        await heartbeats(exchange, "other")
        async with working("one", stumble):
            assert await all_are_done(exchange, 20)


async def test_a_worker_that_fails_by_itself_rests_and_says_why_until_a_group_succeeds(
    exchange: Exchange, working: Open
) -> None:
    is_mended = asyncio.Event()

    async def fail(_: RolloutRequest) -> None:
        if not is_mended.is_set():
            raise WorkerFault("no process can be forked")

    async def rests() -> bool:
        return (await exchange.heartbeat("rollout")).beats.get("worker-1.1", 0) < 0

    await ask(exchange, 3)  # too few for it to end
    async with working("worker-1.1", fail) as service:
        await until(rests)
        service.readiness.set(True)  # as whatever else it needs is there
        status = StatusReporter(service).status()
        assert (status.ready, status.why) == (False, "no process can be forked")
        assert describe_activity(status) == "fails at every group: no process can be forked"
        is_mended.set()
        assert await all_are_done(exchange, 3)
        assert service.readiness.ready


async def test_a_worker_where_everything_fails_ends_says_so_and_costs_nothing(
    exchange: Exchange, open_exchange: OpenExchange, working: Open
) -> None:
    async def fail(_: RolloutRequest) -> None:
        raise RuntimeError("CUDA error")

    await ask(exchange, 8)
    for life in range(4):  # more than the failures that an entry may have
        async with open_exchange(f"replica.{life}") as worker:
            with pytest.raises(WorkerBroken):
                await work_forever(Service("worker", DEPLOYMENT, worker), a_stage(fail, room=8))
    async with working("replica.5"):
        assert await all_are_done(exchange, 8)
    events = [event.id for _, event in await exchange.events("job")]
    assert events == [f"broken:replica.{life}" for life in range(4)]


ALL = range(12)
EVEN = range(0, 16, 2)  # more than fail in a row where all is broken


@pytest.mark.parametrize(
    ("error", "numbers", "times", "outcome"),
    [
        (Unworkable("too long"), ALL, 1, "unworkable: too long"),
        (UnsupportedEntry("too long"), ALL, 1, "unworkable: too long"),
        (ValueError("no"), [1], 3, "failures: ValueError: no"),
        (ValueError("not yet"), EVEN, 1, DONE),
        (WorkerFault("no process can be forked"), [0], 7, DONE),
    ],
)
async def test_what_a_lone_worker_cannot_do_is_handed_on_with_its_reason_when_it_is_hopeless(
    exchange: Exchange,
    working: Open,
    error: Exception,
    numbers: Sequence[int],
    times: int,
    outcome: str,
) -> None:
    tries = Counter[int]()

    async def stumble(request: RolloutRequest) -> None:
        if request.number in numbers and tries[request.number] < times:
            tries[request.number] += 1
            raise error

    await ask(exchange, 16)
    async with working("own", stumble, room=1):
        outcomes = await results(exchange, 16)
    assert outcomes == dict.fromkeys(range(16), DONE) | dict.fromkeys(numbers, outcome)
    assert tries == dict.fromkeys(numbers, times)
