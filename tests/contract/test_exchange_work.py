"""Work streams: ask, claim, show life, hand off, release, reclaim, take in."""

from __future__ import annotations

import asyncio

import pytest
from protocol import streams
from protocol.exchange import Backlog, Delivery, Exchange, Fenced, queue
from protocol.frames import FrameError
from protocol.messages import FailureKind
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS, ROLLOUTS
from redis import Redis

from tests.builders import a_graded_group, a_group, a_request
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import (
    begin,
    claim,
    claim_one,
    fail,
    is_blocked,
    lost,
    reclaim,
    take_over,
    taken_up,
)

INPUTS = (EVAL_REQUESTS, REQUESTS)
NOTHING = Backlog(0, 0)


@pytest.fixture
async def producer(exchange: Exchange) -> Exchange:
    """An exchange with one request."""
    await begin(exchange)
    await exchange.ask(a_request())
    return exchange


async def test_a_group_is_asked_for_once_and_evaluation_is_claimed_first(
    exchange: Exchange,
) -> None:
    await begin(exchange)
    for purpose in Purpose:
        assert await exchange.ask(a_request(number=1, purpose=purpose))
        assert not await exchange.ask(a_request(number=1, purpose=purpose))
    assert await exchange.pending_keys("job") == {"train:1", "eval:1", "pretrain:1"}
    for keys in (["eval:1", "pretrain:1"], ["train:1"], []):
        assert [entry.key for entry in await claim(exchange, *INPUTS, count=2)] == keys


async def test_a_waiting_claim_is_woken_by_an_ask_and_may_be_cancelled(
    exchange: Exchange, worker: Exchange
) -> None:
    """A connection whose claim was cancelled is sound: the next claim gets what belongs to it."""
    await begin(exchange)
    for is_cancelled in (True, False):
        waiting = asyncio.create_task(
            worker.claim(
                INPUTS,
                "job",
                count=1,
                wait_s=20,
            )
        )
        await is_blocked(exchange)
        if is_cancelled:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await is_blocked(exchange, 0)  # the server would still give it to who has gone
    await exchange.ask(a_request())
    assert [delivery.key for delivery in await waiting] == ["train:0"]


async def test_requests_are_taken_back_also_from_who_holds_them(
    exchange: Exchange, client: Redis
) -> None:
    attempt = await begin(exchange)
    for number in range(4):
        await exchange.ask(a_request(number=number))
    (first,) = await claim(exchange, count=1)
    await exchange.release(first, "failures")
    leases = await claim(exchange, count=2)
    with pytest.raises(Fenced):
        await exchange.withdraw(REQUESTS, "job", attempt - 1, [])
    await exchange.withdraw(REQUESTS, "job", attempt, ["train:2"])
    assert await lost(exchange, *leases) == {leases[0].place}
    assert not await exchange.hand_off(leases[0], ROLLOUTS, a_group())
    assert await exchange.backlog(REQUESTS, "job") == Backlog(1, 1)
    assert await exchange.pending_keys("job") == {"train:2"}
    assert client.hlen(streams.faults_key("job")) == 0


async def test_work_moves_unchanged_and_leaves_nothing_behind(
    exchange: Exchange, client: Redis
) -> None:
    attempt = await begin(exchange)
    request = a_request(group_size=8)
    group = a_group(request, lengths=[20_000] * 8)
    await exchange.ask(request)
    await exchange.release(await claim_one(exchange), "failures")
    (delivery,) = await reclaim(exchange)
    assert await exchange.backlog(REQUESTS, "job") == Backlog(1, 1)
    assert client.hlen(streams.faults_key("job")) == 1
    assert await exchange.hand_off(delivery, ROLLOUTS, group)
    assert client.hlen(streams.faults_key("job")) == 0
    assert await exchange.backlog(REQUESTS, "job") == NOTHING
    result = await claim_one(exchange, ROLLOUTS)
    received = result.message()
    assert (result.key, received.request) == (request.key, request)
    assert received.token_ids.tobytes() == group.token_ids.tobytes()
    await exchange.hand_off(result, GRADED, a_graded_group(group))
    graded = await claim_one(exchange, GRADED)
    assert await exchange.pending_keys("job") == {"train:0"}
    assert await exchange.ingest(graded, attempt)
    assert not await exchange.ingest(graded, attempt)
    assert await exchange.pending_keys("job") == set()
    assert await exchange.backlog(GRADED, "job") == NOTHING


async def test_two_workers_with_one_entry_make_one_result(
    producer: Exchange, worker: Exchange
) -> None:
    lease = await claim_one(worker)
    (inherited,) = await take_over(producer)
    assert not await worker.release(lease, "failures")
    handed_off = await asyncio.gather(
        worker.hand_off(lease, ROLLOUTS, a_group()),
        producer.hand_off(inherited, ROLLOUTS, a_group()),
        worker.hand_off(lease, ROLLOUTS, a_group()),
    )
    assert sum(handed_off) == 1
    assert await producer.backlog(ROLLOUTS, "job") == Backlog(1, 0)


async def test_a_worker_that_shows_life_cannot_be_buried_and_one_that_leaves_is_forgotten(
    producer: Exchange, worker: Exchange
) -> None:
    lease = await claim_one(worker)
    for beats in range(3):
        pulse = await producer.heartbeat("rollout", (REQUESTS,), "job")
        assert pulse.beats["worker"] == beats
        assert await lost(worker, lease) == set()
        assert await producer.expire_worker("rollout", "worker", beats, (REQUESTS,), "job") == -1
        assert await reclaim(producer) == []
    await worker.leave("rollout")
    pulse = await producer.heartbeat("rollout", may_claim=False)
    assert pulse.beats == {producer.me: -4}


async def test_a_heartbeat_tells_what_was_lost_of_which_stream_and_takes_nothing_back(
    exchange: Exchange, worker: Exchange, client: Redis
) -> None:
    await begin(exchange)
    for stream in INPUTS:
        for entry_id in ("7-7", "8-8"):
            client.xadd(
                stream.key("job"),
                {"key": "train:0", "header": "x"},
                id=entry_id,
            )
    leases = await claim(worker, *INPUTS)
    done, _, inherited, done_too = leases
    for delivery in (done, done_too):
        await fail(worker, delivery)
    pulse = await worker.heartbeat("rollout", INPUTS, "job", leases=leases)
    assert pulse.lost == {done.place, done_too.place}
    (heirs,) = await take_over(exchange)
    assert heirs.place == inherited.place
    assert await lost(worker, inherited) == {inherited.place}
    assert await lost(exchange, heirs) == set()


async def test_consumers_of_past_lives_are_deleted_unless_entries_are_theirs(
    producer: Exchange, worker: Exchange, open_exchange: OpenExchange, client: Redis
) -> None:
    async with open_exchange("dead") as dead:
        lease = await claim_one(dead)
        await producer.ask(a_request(number=1))
        await worker.release(await claim_one(worker))
        waiting = asyncio.create_task(
            worker.claim(
                (EVAL_REQUESTS,),
                "job",
                count=1,
                wait_s=20,
            )
        )
        await is_blocked(producer)
        pulse = await producer.heartbeat("rollout", INPUTS, "job")
        assert pulse.beats == {producer.me: 1, "dead": 0}
        consumers = client.xinfo_consumers(REQUESTS.key("job"), "rollout")
        assert {consumer["name"] for consumer in consumers} == {b"dead", b"released"}
        assert len(await take_over(producer)) == 2
        await producer.ask(a_request(purpose=Purpose.EVAL))
        (delivery,) = await waiting  # that was deleted under it
        assert (await worker.heartbeat("rollout", (EVAL_REQUESTS,), "job")).lost == set()
        assert await worker.hand_off(delivery, ROLLOUTS, a_group())
        assert await lost(dead, lease) == {lease.place}


async def test_a_worker_without_life_counts_as_a_death_until_it_shows_that_it_lives(
    producer: Exchange, open_exchange: OpenExchange
) -> None:
    lease = await claim_one(producer)
    dead = [producer.me]
    for name in ("heir-1", "heir-2", "heir-3"):
        async with open_exchange(name) as heir:
            (delivery,) = await take_over(heir)
        assert (delivery.deaths, delivery.failures) == (tuple(dead), ())
        dead.append(name)
    assert await lost(producer, lease) == {lease.place}
    async with open_exchange("heir-4") as heir:
        (delivery,) = await take_over(heir)
    assert delivery.deaths == ("heir-1", "heir-2", "heir-3")


async def test_a_failure_goes_to_another_replica_while_there_is_one(
    producer: Exchange, open_exchange: OpenExchange
) -> None:
    replicas = {"bad-host-1", "good-host-2"}
    async with (
        open_exchange("bad-host-1.10-a") as bad,
        open_exchange("bad-host-1.11-b") as restarted,
        open_exchange("good-host-2.12-c") as good,
    ):
        await bad.release(await claim_one(bad), "failures")
        for worker in (bad, restarted):
            assert await reclaim(worker, replicas=replicas) == []
        (delivery,) = await reclaim(good, replicas=replicas)
        assert (delivery.deaths, delivery.failures) == ((), (bad.me,))
        await good.release(delivery, "failures")
        (delivery,) = await reclaim(restarted, replicas=replicas)
        assert delivery.failures == (bad.me, good.me)
        await bad.clear_failures("job", [delivery])
        await restarted.release(delivery, "failures")
        (delivery,) = await reclaim(bad, replicas={"bad-host-1"})
        assert delivery.failures == (good.me, restarted.me)


async def test_what_killed_twice_goes_to_another_replica_while_there_is_one(
    producer: Exchange, open_exchange: OpenExchange
) -> None:
    replicas = {"one", "other"}
    async with open_exchange("one.1") as one, open_exchange("other.1") as other:
        await one.release(await claim_one(one), "deaths")
        (delivery,) = await reclaim(one, replicas=replicas)  # once is chance
        await one.release(delivery, "deaths")
        assert await reclaim(one, replicas=replicas) == []
        await producer.ask(a_request(number=1))
        await other.release(await claim_one(other))
        (delivery,) = await reclaim(other, replicas=replicas, only_troubled=True)
        assert (delivery.key, delivery.deaths) == ("train:0", ("one.1", "one.1"))


async def test_a_claim_is_bounded_by_bytes_and_found_again_if_its_reply_was_lost(
    producer: Exchange, open_exchange: OpenExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "CLAIM_BYTES", 2_000)
    for number in range(1, 9):
        await producer.ask(a_request(number=number))
    claimed = await claim(producer)
    size = sum(map(len, claimed[0].fields.values()))
    assert len(claimed) == -(-2_000 // size) < 9
    async with open_exchange(producer.me) as same_worker:
        again = await reclaim(same_worker, leases=claimed[:1])
        assert [entry.place for entry in again] == [entry.place for entry in claimed[1:]]
    assert {entry.deaths for entry in again} == {()}
    assert len(await producer.adopt(REQUESTS, "job", count=9)) == len(claimed)


async def test_a_foreign_entry_says_so_and_a_failed_group_takes_the_place_of_its_result(
    exchange: Exchange, client: Redis
) -> None:
    await begin(exchange)
    client.xadd(REQUESTS.key("job"), {"key": "pretrain:3", "header": "not json"})
    delivery = await claim_one(exchange)
    with pytest.raises(FrameError, match="header"):
        delivery.message()
    failed = delivery.as_failed(FailureKind.DEATHS, "unreadable")
    assert await exchange.hand_off(delivery, GRADED, failed)
    graded = (await claim_one(exchange, GRADED)).message()
    assert (str(graded.failure), graded.key) == ("deaths: unreadable", "pretrain:3")


async def test_work_on_a_job_that_ended_is_quietly_nothing_also_for_who_waits_for_some(
    producer: Exchange, worker: Exchange
) -> None:
    lease = await claim_one(producer)
    waiting = asyncio.create_task(
        worker.claim(
            (REQUESTS,),
            "job",
            count=1,
            wait_s=0.3,
        )
    )
    await is_blocked(producer)
    await producer.close_job(await taken_up(producer), attempt=1, state="succeeded")
    assert await waiting == []
    for job_id in ("job", "nobody"):
        delivery = Delivery(REQUESTS, job_id, lease.entry_id, lease.key, {})
        pulse = await producer.heartbeat("rollout", (REQUESTS,), job_id, leases=[delivery])
        assert pulse.lost == {delivery.place}
        assert await producer.reclaim(REQUESTS, job_id, count=1) == []
        assert await producer.adopt(REQUESTS, job_id, count=1) == []
        assert await producer.expire_worker("rollout", "nobody", 0, (REQUESTS,), job_id) == 0
        assert not await producer.release(delivery, "failures")
        assert not await producer.hand_off(delivery, ROLLOUTS, a_group())
        assert await producer.backlog(REQUESTS, job_id) == NOTHING
        assert await producer.pending_keys(job_id) == set()
