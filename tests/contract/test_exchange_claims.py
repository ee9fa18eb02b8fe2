"""Work is claimed by one worker, of the right stream, and only of a job that goes on."""

from __future__ import annotations

import asyncio

import pytest
from protocol.exchange import Backlog, Delivery, Exchange, Fenced
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS, ROLLOUTS

from tests.builders import a_graded_group, a_group, a_request
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import begin, claim_all, end, lost

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


async def test_evaluation_is_claimed_first_and_no_more_than_asked_for(exchange: Exchange) -> None:
    await begin(exchange)
    for number in range(3):
        await exchange.ask(a_request(number=number))
    for number in range(2):
        await exchange.ask(a_request(number=number, purpose=Purpose.EVAL))
    claimed = await exchange.claim((EVAL_REQUESTS, REQUESTS), "job", count=4, wait_s=0.01)
    assert [entry.key for entry in claimed] == ["eval:0", "eval:1", "train:0", "train:1"]
    assert [entry.key for entry in await claim_all(exchange)] == ["train:2"]


async def test_pretraining_goes_the_way_of_training(exchange: Exchange) -> None:
    await begin(exchange)
    request = a_request(number=3, purpose=Purpose.PRETRAIN)
    await exchange.ask(request)
    await exchange.ask(a_request(number=0, purpose=Purpose.EVAL))
    _, delivery = await exchange.claim((EVAL_REQUESTS, REQUESTS), "job", count=4, wait_s=0.01)
    assert delivery.message() == request
    assert delivery.as_failed("deaths").key == "pretrain:3"
    await exchange.hand_off(delivery, ROLLOUTS, a_group(request))
    (sampled,) = await exchange.claim((ROLLOUTS,), "job", count=1, wait_s=0.01)
    await exchange.hand_off(sampled, GRADED, a_graded_group(sampled.message()))
    (graded,) = await exchange.claim((GRADED,), "job", count=1, wait_s=0.01)
    assert graded.message().purpose is Purpose.PRETRAIN
    assert await exchange.take_in(graded, attempt=1)
    assert await exchange.under_way("job") == {"eval:0"}


async def test_entries_are_claimed_by_one_worker_only(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange)
    for number in range(40):
        await exchange.ask(a_request(number=number))
    async with open_exchange("a") as a, open_exchange("b") as b:
        rounds = [worker.claim((REQUESTS,), "job", count=5, wait_s=0.01) for worker in (a, b) * 4]
        claimed = [entry.key for entries in await asyncio.gather(*rounds) for entry in entries]
    assert sorted(claimed) == sorted(f"train:{number}" for number in range(40))


async def test_a_waiting_claim_is_woken_by_an_ask(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange)
    async with open_exchange("worker") as worker:
        waiting = asyncio.create_task(
            worker.claim((EVAL_REQUESTS, REQUESTS), "job", count=1, wait_s=10)
        )
        await asyncio.sleep(0.05)
        await exchange.ask(a_request())
        (delivery,) = await asyncio.wait_for(waiting, 8)
    assert delivery.key == "train:0"


async def test_a_claim_without_a_wait_returns_at_once(exchange: Exchange) -> None:
    await begin(exchange)
    claiming = exchange.claim((REQUESTS,), "job", count=1, wait_s=0)
    assert await asyncio.wait_for(claiming, 5) == []


async def test_a_wait_longer_than_the_default_socket_timeout_is_only_a_wait(
    exchange: Exchange,
) -> None:
    await begin(exchange)
    started = asyncio.get_running_loop().time()
    assert await exchange.claim((REQUESTS,), "job", count=1, wait_s=5.6) == []
    assert 5.5 < asyncio.get_running_loop().time() - started < 15


async def test_a_cancelled_claim_leaves_a_sound_connection(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange)
    async with open_exchange("worker") as worker:
        for number in range(10):
            waiting = asyncio.create_task(worker.claim((REQUESTS,), "job", count=1, wait_s=10))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            while (await exchange.writer.info("clients"))["blocked_clients"]:
                await asyncio.sleep(0.01)  # the server would still give it to who has gone
            await exchange.ask(a_request(number=number))
            (delivery,) = await worker.claim((REQUESTS,), "job", count=1, wait_s=10)
            assert delivery.key == f"train:{number}"


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
    assert await exchange.backlog(REQUESTS, "nobody") == Backlog(0, 0)
    assert await exchange.under_way("nobody") == set()


async def test_work_on_a_job_that_ended_is_quietly_nothing(exchange: Exchange) -> None:
    await begin(exchange)
    for number in range(2):
        await exchange.ask(a_request(number=number))
    held, other = await claim_all(exchange)
    await end(exchange)
    assert await lost(exchange, held, other) == {held.place, other.place}
    assert not await exchange.hand_off(held, ROLLOUTS, a_group())
    assert not await exchange.release(other, "failures")
    assert await exchange.reclaim(REQUESTS, "job", count=9) == []


async def test_who_waits_for_work_of_a_job_that_ends_gets_nothing(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange)
    async with open_exchange("worker") as worker:
        waiting = asyncio.create_task(worker.claim((REQUESTS,), "job", count=1, wait_s=0.3))
        await asyncio.sleep(0.05)
        await end(exchange)
        assert await asyncio.wait_for(waiting, 8) == []


async def test_an_ended_job_cannot_be_asked_for_more(exchange: Exchange) -> None:
    await begin(exchange)
    await end(exchange)
    with pytest.raises(Fenced, match="ended"):
        await exchange.ask(a_request())
    assert await exchange.under_way("job") == set()
