"""Work streams: ask, claim, show life, hand off, release, reclaim, take in."""

from __future__ import annotations

import asyncio

import pytest
from protocol import streams
from protocol.exchange import Backlog, Delivery, Exchange, queue
from protocol.frames import FrameError
from protocol.messages import GradedGroup
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS, ROLLOUTS

from tests.builders import a_graded_group, a_group, a_request
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import begin, claim_all, claim_one, end, lost
from tests.contract.line import take_over
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
NOTHING = Backlog(entries=0, claimed=0)


async def test_each_purpose_has_numbers_of_its_own_and_each_of_them_is_asked_once(
    exchange: Exchange,
) -> None:
    await begin(exchange)
    for purpose in Purpose:
        assert await exchange.ask(a_request(number=1, purpose=purpose))
        assert not await exchange.ask(a_request(number=1, purpose=purpose))
    assert await exchange.under_way("job") == {"train:1", "eval:1", "pretrain:1"}
    claimed = await exchange.claim((EVAL_REQUESTS, REQUESTS), "job", count=9, wait_s=0)
    assert sorted(entry.key for entry in claimed) == ["eval:1", "pretrain:1", "train:1"]


async def test_evaluation_is_claimed_first_and_no_more_than_asked_for(exchange: Exchange) -> None:
    await begin(exchange)
    for number in range(3):
        await exchange.ask(a_request(number=number))
    for number in range(2):
        await exchange.ask(a_request(number=number, purpose=Purpose.EVAL))
    claimed = await exchange.claim((EVAL_REQUESTS, REQUESTS), "job", count=4, wait_s=0)
    assert [entry.key for entry in claimed] == ["eval:0", "eval:1", "train:0", "train:1"]
    assert [entry.key for entry in await claim_all(exchange)] == ["train:2"]
    assert await exchange.claim((REQUESTS,), "job", count=1, wait_s=0) == []


async def test_a_waiting_claim_is_woken_by_an_ask_and_may_be_cancelled(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    """A connection whose claim was cancelled is sound: the next claim gets what belongs to it."""
    await begin(exchange)

    async def are_blocked(clients: int) -> None:
        while (await exchange.writer.info("clients"))["blocked_clients"] != clients:
            await asyncio.sleep(0.01)

    async with open_exchange("worker") as worker, asyncio.timeout(60):
        for number in range(3):
            for is_cancelled in (True, False):
                claim = worker.claim((EVAL_REQUESTS, REQUESTS), "job", count=1, wait_s=20)
                waiting = asyncio.create_task(claim)
                await are_blocked(1)
                if is_cancelled:
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
                    await are_blocked(0)  # the server would still give it to who has gone
                else:
                    await exchange.ask(a_request(number=number))
                    (delivery,) = await waiting
                    assert delivery.key == f"train:{number}"


async def test_a_hand_off_moves_the_work_unchanged_and_leaves_nothing_behind(
    exchange: Exchange, server: Server
) -> None:
    await begin(exchange)
    request = a_request(group_size=8)
    group = a_group(request, lengths=[20_000] * 8)
    await exchange.ask(request)
    assert await exchange.backlog(REQUESTS, "job") == Backlog(entries=1, claimed=0)
    await exchange.release(await claim_one(exchange), "failures")
    (delivery,) = await exchange.reclaim(REQUESTS, "job", count=1)
    assert await exchange.backlog(REQUESTS, "job") == Backlog(entries=1, claimed=1)
    with server.client() as client:
        assert client.hlen(streams.faults_key("job")) == 1
        assert await exchange.hand_off(delivery, ROLLOUTS, group)
        assert client.hlen(streams.faults_key("job")) == 0
    assert await exchange.backlog(REQUESTS, "job") == NOTHING
    (result,) = await exchange.claim((ROLLOUTS,), "job", count=9, wait_s=0)
    received = result.message()
    assert (result.key, received.request) == (request.key, request)
    assert received.token_ids.tobytes() == group.token_ids.tobytes()
    assert received.behavior_logprobs.tobytes() == group.behavior_logprobs.tobytes()


async def test_two_workers_with_one_entry_make_one_result(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange)
    await exchange.ask(a_request())
    async with open_exchange("slow") as slow, open_exchange("heir") as heir:
        held = await claim_one(slow)
        (inherited,) = await take_over(heir, REQUESTS)
        assert not await slow.release(held, "failures")
        handed_off = await asyncio.gather(
            slow.hand_off(held, ROLLOUTS, a_group()),
            heir.hand_off(inherited, ROLLOUTS, a_group()),
            slow.hand_off(held, ROLLOUTS, a_group()),
        )
    assert sum(handed_off) == 1
    assert await exchange.backlog(ROLLOUTS, "job") == Backlog(entries=1, claimed=0)


async def test_a_worker_that_shows_life_cannot_be_buried(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange)
    await exchange.ask(a_request())
    async with open_exchange("worker") as worker, open_exchange("heir") as heir:
        held = await claim_one(worker)
        for _ in range(3):
            seen = (await heir.heartbeat("rollout", (REQUESTS,), "job")).lives["worker"]
            assert await lost(worker, held) == set()
            assert await heir.bury("rollout", "worker", seen, (REQUESTS,), "job") == -1
            assert await heir.reclaim(REQUESTS, "job", count=1) == []


async def test_a_heartbeat_tells_what_was_lost_and_takes_nothing_back(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange)
    for number in range(2):
        await exchange.ask(a_request(number=number))
    async with open_exchange("slow") as slow, open_exchange("heir") as heir:
        taken, done = await claim_all(slow)
        assert await slow.hand_off(done, ROLLOUTS, a_group())
        (inherited,) = await take_over(heir, REQUESTS)
        assert inherited.entry_id == taken.entry_id
        assert await lost(slow, taken, done) == {taken.place, done.place}
        assert await lost(heir, inherited) == set()


async def test_entries_of_two_streams_with_one_id_are_told_apart(
    exchange: Exchange, server: Server
) -> None:
    await begin(exchange)
    with server.client() as client:
        for stream in (REQUESTS, EVAL_REQUESTS):
            client.xadd(stream.key("job"), {"key": "train:0", "header": "x"}, id="7-7")
    (train,) = await claim_all(exchange, REQUESTS)
    (evaluation,) = await claim_all(exchange, EVAL_REQUESTS)
    await exchange.hand_off(evaluation, GRADED, evaluation.as_failed("no matter why"))
    inputs = (EVAL_REQUESTS, REQUESTS)
    pulse = await exchange.heartbeat("rollout", inputs, "job", held=[train, evaluation])
    assert pulse.lost == {evaluation.place}


async def test_a_worker_without_life_counts_as_a_death_until_it_shows_that_it_lives(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange)
    await exchange.ask(a_request())
    held = await claim_one(exchange)
    dead = ["learner-1"]
    for death in (1, 2, 3):
        async with open_exchange(f"heir-{death}") as heir:
            (delivery,) = await take_over(heir, REQUESTS)
        assert (delivery.deaths, delivery.failures) == (tuple(dead), ())
        assert delivery.message() == a_request()
        dead.append(f"heir-{death}")
    assert await lost(exchange, held) == {held.place}
    async with open_exchange("heir-4") as heir:
        (delivery,) = await take_over(heir, REQUESTS)
    assert delivery.deaths == ("heir-1", "heir-2", "heir-3")


async def test_who_leaves_in_good_order_is_forgotten_and_who_would_claim_nothing_says_so(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    async with open_exchange("leaver") as leaver:
        await leaver.heartbeat("rollout")
        assert (await exchange.heartbeat("rollout")).lives == {"leaver": 1, "learner-1": 1}
        await leaver.leave("rollout")
    assert (await exchange.heartbeat("rollout", may_claim=False)).lives == {"learner-1": -2}
    assert (await exchange.heartbeat("rollout")).lives == {"learner-1": 3}


async def test_a_failure_goes_to_another_replica_while_there_is_one(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange)
    await exchange.ask(a_request())
    replicas = {"bad-host-1", "good-host-2"}
    async with (
        open_exchange("bad-host-1.10-a") as bad,
        open_exchange("bad-host-1.11-b") as restarted,
        open_exchange("good-host-2.12-c") as good,
    ):
        await bad.release(await claim_one(bad), "failures")
        for worker in (bad, restarted):
            assert await worker.reclaim(REQUESTS, "job", count=9, replicas=replicas) == []
        (delivery,) = await good.reclaim(REQUESTS, "job", count=9, replicas=replicas)
        assert (delivery.deaths, delivery.failures) == ((), (bad.me,))
        await good.release(delivery, "failures")
        (delivery,) = await restarted.reclaim(REQUESTS, "job", count=9, replicas=replicas)
        assert delivery.failures == (bad.me, good.me)
        await bad.pardon("job", [delivery])
        await restarted.release(delivery, "failures")
        (delivery,) = await bad.reclaim(REQUESTS, "job", count=9, replicas={"bad-host-1"})
        assert delivery.failures == (good.me, restarted.me)


async def test_what_killed_twice_goes_to_another_replica_while_there_is_one(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange)
    await exchange.ask(a_request())
    replicas = {"one", "other"}
    async with open_exchange("one.1") as one, open_exchange("other.1") as other:
        await one.release(await claim_one(one), "deaths")
        (delivery,) = await one.reclaim(
            REQUESTS, "job", count=9, replicas=replicas
        )  # once is chance
        await one.release(delivery, "deaths")
        assert await one.reclaim(REQUESTS, "job", count=9, replicas=replicas) == []
        await exchange.ask(a_request(number=1))
        await other.release(await claim_one(other))
        (delivery,) = await other.reclaim(
            REQUESTS, "job", count=9, replicas=replicas, only_troubled=True
        )
        assert (delivery.key, delivery.deaths) == ("train:0", ("one.1", "one.1"))


async def test_a_claim_whose_reply_was_lost_is_found_again_without_a_death(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange)
    for number in range(2):
        await exchange.ask(a_request(number=number))
    async with open_exchange("worker") as worker, open_exchange("worker") as same_worker:
        held, _ = await claim_all(same_worker)
        (delivery,) = await worker.reclaim(REQUESTS, "job", count=9, held=[held])
    assert (delivery.key, delivery.deaths) == ("train:1", ())


async def test_a_claim_is_bounded_by_bytes(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "CLAIM_BYTES", 2_000)
    await begin(exchange)
    for number in range(9):
        await exchange.ask(a_request(number=number))
    claimed = await claim_all(exchange)
    size = sum(map(len, claimed[0].fields.values()))
    assert len(claimed) == -(-2_000 // size) < 9
    for delivery in claimed:
        await exchange.release(delivery)
    assert len(await exchange.reclaim(REQUESTS, "job", count=9)) == len(claimed)
    assert len(await exchange.adopt(REQUESTS, "job", count=9)) == len(claimed)


async def test_taking_in_ends_what_was_under_way(exchange: Exchange) -> None:
    attempt = await begin(exchange)
    graded = await grade_one(exchange)
    assert await exchange.under_way("job") == {"train:0"}
    assert await exchange.take_in(graded, attempt)
    assert await exchange.under_way("job") == set()
    assert await exchange.backlog(GRADED, "job") == NOTHING
    assert not await exchange.take_in(graded, attempt)


async def test_a_foreign_entry_says_so_and_a_failed_group_takes_the_place_of_its_result(
    exchange: Exchange, server: Server
) -> None:
    attempt = await begin(exchange)
    with server.client() as client:
        client.xadd(REQUESTS.key("job"), {"key": "pretrain:3", "header": "not json"})
    delivery = await claim_one(exchange)
    assert delivery.purpose_and_number() == (Purpose.PRETRAIN, 3)
    with pytest.raises(FrameError, match="header"):
        delivery.message()
    assert await exchange.hand_off(delivery, GRADED, delivery.as_failed("unreadable"))
    (graded,) = await exchange.claim((GRADED,), "job", count=1, wait_s=0)
    assert (graded.message().failure, graded.message().key) == ("unreadable", "pretrain:3")
    assert await exchange.take_in(graded, attempt)


async def test_no_job_is_no_work(exchange: Exchange) -> None:
    delivery = Delivery(REQUESTS, "nobody", "1-0", "train:0", {})
    assert await exchange.claim((REQUESTS,), "nobody", count=1, wait_s=0.01) == []
    assert await exchange.reclaim(REQUESTS, "nobody", count=1) == []
    assert await exchange.adopt(REQUESTS, "nobody", count=1) == []
    pulse = await exchange.heartbeat("rollout", (REQUESTS,), "nobody", held=[delivery])
    assert pulse.lost == {delivery.place}
    assert await exchange.bury("rollout", "nobody", 0, (REQUESTS,), "nobody") == 0
    assert not await exchange.release(delivery, "failures")
    assert not await exchange.hand_off(delivery, ROLLOUTS, a_group())
    assert await exchange.backlog(REQUESTS, "nobody") == NOTHING
    assert await exchange.under_way("nobody") == set()


async def test_work_on_a_job_that_ended_is_quietly_nothing_also_for_who_waits_for_some(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange)
    for number in range(2):
        await exchange.ask(a_request(number=number))
    held, other = await claim_all(exchange)
    async with open_exchange("worker") as worker:
        waiting = asyncio.create_task(worker.claim((REQUESTS,), "job", count=1, wait_s=0.3))
        await asyncio.sleep(0.05)
        await end(exchange)
        assert await waiting == []
    assert await lost(exchange, held, other) == {held.place, other.place}
    assert not await exchange.hand_off(held, ROLLOUTS, a_group())
    assert not await exchange.release(other, "failures")
    assert await exchange.reclaim(REQUESTS, "job", count=9) == []


async def test_hundreds_of_writes_at_once_share_a_few_connections(
    exchange: Exchange, server: Server
) -> None:
    await begin(exchange)
    asked = await asyncio.gather(*(exchange.ask(a_request(number=n)) for n in range(400)))
    assert all(asked)
    with server.client() as client:
        assert len(client.client_list()) < 30
    assert len(await exchange.under_way("job")) == 400


async def grade_one(exchange: Exchange) -> Delivery[GradedGroup]:
    """Ask for a group and carry it to the graded stream; returns the learner's delivery of it."""
    await exchange.ask(a_request())
    asked = await claim_one(exchange)
    await exchange.hand_off(asked, ROLLOUTS, a_group())
    (rolled_out,) = await exchange.claim((ROLLOUTS,), "job", count=1, wait_s=0)
    await exchange.hand_off(rolled_out, GRADED, a_graded_group())
    (graded,) = await exchange.claim((GRADED,), "job", count=1, wait_s=0)
    return graded
