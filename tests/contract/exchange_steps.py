"""What tests of the work streams do with an exchange."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Set
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

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
    return (await exchange.heartbeat("rollout", (REQUESTS,), "job", leases=held)).lost


async def take_over(exchange: Exchange, *inputs: Stream, job_id: str = "job") -> list[Delivery]:
    """Bury all other workers without any patience, and claim what is free."""
    group = str(inputs[0].group)
    pulse = await exchange.heartbeat(group, inputs, job_id)
    for life, beats in pulse.beats.items():
        if life != exchange.me:
            await exchange.expire_worker(group, life, beats, inputs, job_id)
    return [
        delivery
        for stream in inputs
        for delivery in await exchange.reclaim(stream, job_id, count=9)
    ]


@asynccontextmanager
async def running(*loops: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines beside the body, until it ends; what one raises ends the body."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop) for loop in loops]
        yield
        for task in tasks:
            task.cancel()
