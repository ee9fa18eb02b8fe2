"""What tests of the work streams do with an exchange."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from protocol.exchange import Delivery, Exchange, Place
from protocol.messages import JobRecord, JobRef, RolloutRequest
from protocol.streams import REQUESTS, Stream

from services.chassis.deployment import Deployment
from tests.builders import a_job_record

DEPLOYMENT = replace(
    Deployment.from_environment(
        {"WEIR_REDIS_URL": "unused", "WEIR_DATA_DIR": "/unused", "WEIR_PORT": "0"}
    ),
    heartbeat_s=0.05,
    claim_idle_s=0.4,
    drain_s=1.0,
)


async def begin(exchange: Exchange, job_id: str = "job") -> int:
    await exchange.submit(a_job_record(job_id))
    return await exchange.begin_attempt(job_id)


async def record_of(exchange: Exchange, job_id: str = "job") -> JobRecord:
    record = await exchange.job(job_id)
    assert record is not None
    return record


async def taken_up(exchange: Exchange) -> Delivery[JobRef]:
    """The job that a learner would take up now."""
    delivery = await exchange.next_job(wait_s=0)
    assert delivery is not None
    return delivery


async def claim_all(
    exchange: Exchange, *inputs: Stream[RolloutRequest]
) -> list[Delivery[RolloutRequest]]:
    return await exchange.claim(inputs or (REQUESTS,), "job", count=100, wait_s=0.01)


async def claim_one(exchange: Exchange) -> Delivery[RolloutRequest]:
    (delivery,) = await claim_all(exchange)
    return delivery


async def lost(exchange: Exchange, *held: Delivery) -> Set[Place]:
    return (await exchange.heartbeat("rollout", (REQUESTS,), "job", held=held)).lost
