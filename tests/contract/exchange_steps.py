"""What tests of the work streams do with an exchange."""

from __future__ import annotations

from collections.abc import Set

from protocol.exchange import Delivery, Exchange, Place
from protocol.messages import RolloutRequest
from protocol.streams import REQUESTS, Stream

from tests.builders import a_job_record


async def begin(exchange: Exchange, job_id: str = "job") -> int:
    await exchange.submit(a_job_record(job_id))
    return await exchange.begin_attempt(job_id)


async def claim_all(
    exchange: Exchange, *inputs: Stream[RolloutRequest]
) -> list[Delivery[RolloutRequest]]:
    return await exchange.claim(inputs or (REQUESTS,), "job", count=100, wait_s=0.01)


async def end(exchange: Exchange) -> None:
    job = await exchange.next_job(wait_s=0.01)
    assert job is not None
    await exchange.close_job(job, attempt=1, state="succeeded")


async def claim_one(exchange: Exchange) -> Delivery[RolloutRequest]:
    (delivery,) = await claim_all(exchange)
    return delivery


async def lost(exchange: Exchange, *held: Delivery) -> Set[Place]:
    return (await exchange.heartbeat("rollout", (REQUESTS,), "job", held=held)).lost
