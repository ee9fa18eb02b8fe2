"""A server is killed, replies are lost, memory is full: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import TypeVar

import pytest
import redis
from protocol.exchange import Backlog, Delivery, Exchange, connect, connection
from protocol.messages import Requested
from protocol.streams import EVENTS, GRADED, JOBS, POLICY, REQUESTS, ROLLOUTS, Stream
from redis import Redis

from tests.builders import (
    a_graded_group,
    a_group,
    a_job_record,
    a_policy,
    a_request,
    a_task,
    an_event,
)
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import (
    an_active_job,
    begin,
    claim,
    claim_one,
    fail,
    reclaim,
    record_of,
    taken_up,
    until,
)
from tests.contract.lossy_proxy import lossy_proxy
from tests.contract.valkey_server import Server

T = TypeVar("T")


async def drain(exchange: Exchange, count: int) -> set[str]:
    """Fail what is asked for and take it in, until so many groups have come; returns their keys."""
    taken_in = set[str]()
    while len(taken_in) < count:
        for request in await claim_any(exchange, REQUESTS):
            await fail(exchange, request)
        for graded in await claim_any(exchange, GRADED):
            await exchange.ingest(graded, 1)
            taken_in.add(graded.key)
    return taken_in


async def claim_any(exchange: Exchange, stream: Stream) -> list[Delivery]:
    return await reclaim(exchange, stream) + await claim(exchange, stream, count=4)


async def test_a_server_killed_in_the_middle_of_traffic_loses_nothing(own_server: Server) -> None:
    async def ask(learner: Exchange) -> None:
        for number in range(200):
            await learner.ask(a_request(number=number))

    async with (
        connect(own_server.url, me="learner") as learner,
        connect(own_server.url, me="worker") as worker,
        asyncio.timeout(120),
    ):
        await begin(learner)
        asking = asyncio.create_task(ask(learner))
        draining = asyncio.create_task(drain(worker, 200))
        for _ in range(2):
            await asyncio.sleep(0.1)
            own_server.kill()
            await asyncio.sleep(0.05)
            own_server.start()
        await asking
        assert await draining == {f"train:{number}" for number in range(200)}
        assert await learner.pending_keys("job") == set()
        for stream in (REQUESTS, GRADED):
            assert await learner.backlog(stream, "job") == Backlog(0, 0)


async def test_a_cancelled_command_is_always_cancelled(exchange: Exchange) -> None:
    await begin(exchange)

    async def work_forever() -> None:
        while True:
            await exchange.claim([REQUESTS], "job", count=1, wait_s=0)
            await exchange.ping()

    for turns in range(120):
        working = asyncio.create_task(work_forever())
        for _ in range(turns % 60):
            await asyncio.sleep(0)
        working.cancel()
        done, _ = await asyncio.wait({working}, timeout=60)
        assert done, turns


async def test_a_server_that_hangs_is_named(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_LIMIT_S", 0.3)
    async with (
        connect(
            own_server.url,
            me="worker",
            patience_s=0,
        ) as worker,
        asyncio.timeout(60),
    ):
        await worker.ping()
        own_server.suspend()
        with pytest.raises(redis.TimeoutError, match="did not answer"):
            await worker.ping()
        own_server.resume()
        await worker.ping()


async def test_a_heartbeat_waits_for_no_large_write(server: Server) -> None:
    async with (
        lossy_proxy(server, bytes_per_s=10_000) as proxy,
        connect(proxy.url, me="worker", patience_s=5) as worker,
        connect(server.url, me="learner", patience_s=5) as learner,
    ):
        await begin(learner)
        task = a_task(prompt="1+" * 1_000_000)  # each write takes 200 s
        writing = asyncio.gather(
            *(worker.ask(a_request(number=number, task=task)) for number in range(24))
        )
        await asyncio.sleep(0.2)
        async with asyncio.timeout(40):  # a write gives up after 60 s
            assert (await worker.heartbeat("rollout")).beats == {"worker": 1}
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def test_a_process_holds_few_connections_however_much_it_does_at_once(
    exchange: Exchange, worker: Exchange, client: Redis
) -> None:
    await begin(exchange)
    before = client.info("clients")["connected_clients"]
    reading = asyncio.create_task(
        worker.claim(
            [REQUESTS],
            "job",
            count=1,
            wait_s=20,
        )
    )
    await asyncio.gather(
        *(worker.record_event(an_event(f"event-{number}")) for number in range(100)),
        *(
            worker.heartbeat(
                "rollout",
                (REQUESTS,),
                "job",
            )
            for _ in range(100)
        ),
    )
    assert client.info("clients")["connected_clients"] - before <= 5
    await exchange.ask(a_request())
    assert len(await reading) == 1


async def test_patience_has_an_end_and_who_is_told_to_hurry_has_less(own_server: Server) -> None:
    async with (
        connect(own_server.url, me="worker", patience_s=3600) as worker,
        connect(own_server.url, me="another", patience_s=0.1) as never_connected,
        asyncio.timeout(60),
    ):
        await worker.ping()
        own_server.kill()
        waiting = asyncio.create_task(worker.ping())
        with pytest.raises(redis.ConnectionError, match=str(own_server.port)):
            await never_connected.ping()
        assert not waiting.done()
        worker.hurry(0.1)
        with pytest.raises(redis.ConnectionError):
            await waiting


async def test_a_process_that_was_stopped_for_minutes_asks_its_server_again(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.count(step=1000)
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: next(now)))
    exchange.reader.patience_s = exchange.reader.limit_s + 1
    answers = iter([redis.TimeoutError("stopped in the middle"), b"PONG"])

    async def execute(*_: object) -> object:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    monkeypatch.setattr(exchange.reader, "_execute", execute)
    assert await exchange.reader.execute_command("PING") == b"PONG"


async def test_a_wrong_password_is_reported_at_once(server: Server) -> None:
    url = server.url.replace(server.passwords["default"], "wrong")
    async with connect(url, me="worker", patience_s=3600) as worker:
        with pytest.raises(redis.AuthenticationError):
            await worker.ping()


async def test_every_write_may_be_sent_again_when_its_reply_is_lost(
    server: Server, client: Redis
) -> None:
    async with (
        lossy_proxy(server) as proxy,
        connect(proxy.url, me="worker", patience_s=5) as worker,
        connect(server.url, me="observer", patience_s=5) as observer,
    ):
        await worker.ping()

        async def again(call: Awaitable[T]) -> T:
            """Its first reply is lost."""
            proxy.lose_next_reply()
            return await call

        await again(worker.submit(a_job_record()))
        assert (await observer.backlog(JOBS)).entries == 1
        job = await again(taken_up(worker))
        assert await again(worker.begin_attempt("job")) == 1
        await again(worker.activate(an_active_job()))
        await again(worker.announce(a_policy()))
        await again(worker.record_event(an_event()))
        await again(worker.ask(a_request()))
        request = await claim_one(worker)
        await again(worker.hand_off(request, ROLLOUTS, a_group()))
        await again(worker.release(await claim_one(worker, ROLLOUTS), "failures"))
        (lease,) = await again(reclaim(worker, ROLLOUTS))
        assert (lease.failures, lease.deaths) == ((worker.me,), ())
        assert not (await again(worker.heartbeat("grader", [ROLLOUTS], "job", leases=[lease]))).lost
        assert await again(worker.expire_worker("grader", "nobody", 0, [ROLLOUTS], "job")) == 0
        await worker.hand_off(lease, GRADED, a_graded_group())
        await again(worker.ingest(await claim_one(worker, GRADED), 1))
        assert proxy.lost == 13
        record = await record_of(observer)
        assert (record.attempt, record.attempts_since_checkpoint) == (1, 1)
        assert await observer.pending_keys("job") == set()
        assert client.xlen(POLICY.key("job")) == client.xlen(EVENTS.key("job")) == 1
        await again(worker.close_job(job, 1, state="succeeded"))
        assert await observer.active() is None


async def test_full_memory_makes_producers_wait(exchange: Exchange, server: Server) -> None:
    await begin(exchange)
    server.exhaust_memory()
    async with asyncio.timeout(60):
        asking = asyncio.create_task(exchange.ask(a_request()))
        await until(lambda: exchange.waiting_for_memory)
        assert await exchange.record_event(an_event())  # that there is no room can be told
        assert await exchange.pending_keys("job") == set()
        server.free_memory()
        assert await asking


async def test_full_memory_does_not_keep_a_learner_from_coming_back_to_drain_it(
    exchange: Exchange, open_exchange: OpenExchange, server: Server
) -> None:
    """Only the learner frees what lies graded, so whatever it does before that must work."""
    await begin(exchange)
    await exchange.ask(a_request())
    request = await claim_one(exchange)
    server.exhaust_memory()
    await fail(exchange, request)
    async with open_exchange("learner-2") as learner, asyncio.timeout(60):
        job = await taken_up(learner)
        assert await learner.begin_attempt("job") == 2
        await learner.update_job("job", 2, state="running")
        await learner.activate(an_active_job(attempt=2))
        await learner.announce(a_policy(attempt=2))
        await claim_one(learner, GRADED)
        (graded,) = await learner.adopt(GRADED, "job", count=1)
        assert (await learner.heartbeat("rollout")).beats
        assert await learner.ingest(graded, 2)
        await learner.request_state("job", Requested.CANCEL)
        await learner.close_job(job, 2, state="cancelled")
        assert learner.backpressure_seconds == 0
