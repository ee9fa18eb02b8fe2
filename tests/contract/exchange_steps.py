"""What tests of the work streams do with an exchange."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Set
from contextlib import asynccontextmanager
from dataclasses import replace
from inspect import isawaitable
from pathlib import Path
from typing import Any

from protocol.exchange import Delivery, Exchange, Place
from protocol.messages import ActiveJob, FailureKind, JobRecord, JobRef
from protocol.streams import GRADED, REQUESTS, Stream

from services.chassis.deployment import Deployment
from tests.builders import a_job_record, a_recipe

PATIENCE_S = 60.0


def a_deployment(data_dir: Path = Path("/unused"), **settings: Any) -> Deployment:
    variables = {"WEIR_REDIS_URL": "unused", "WEIR_DATA_DIR": str(data_dir), "WEIR_PORT": "0"}
    return replace(Deployment.from_environment(variables), **settings)


DEPLOYMENT = a_deployment(heartbeat_s=0.05, claim_idle_s=0.4, drain_s=1.0)


async def until(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Wait until it returns something true, which it may do as a coroutine."""
    async with asyncio.timeout(within_s):
        while True:
            outcome = condition()
            if await outcome if isawaitable(outcome) else outcome:
                return
            await asyncio.sleep(0.01)


def an_active_job(
    job_id: str = "job",
    attempt: int = 1,
    **tables: Any,
) -> ActiveJob:
    return ActiveJob(job_id=job_id, attempt=attempt, recipe=a_recipe(**tables))


async def begin(exchange: Exchange, job_id: str = "job", **tables: Any) -> int:
    """A job that a learner has taken up."""
    await exchange.submit(a_job_record(job_id, recipe=a_recipe(**tables)))
    return await exchange.begin_attempt(job_id)


async def activate(exchange: Exchange, job_id: str = "job", **tables: Any) -> int:
    """A job that workers work on."""
    attempt = await begin(exchange, job_id, **tables)
    await exchange.activate(an_active_job(job_id, attempt, **tables))
    return attempt


async def record_of(exchange: Exchange, job_id: str = "job") -> JobRecord:
    record = await exchange.job(job_id)
    assert record is not None
    return record


async def taken_up(exchange: Exchange) -> Delivery[JobRef]:
    """The job that a learner would take up now."""
    delivery = await exchange.next_job(wait_s=0)
    assert delivery is not None
    return delivery


async def claim(
    exchange: Exchange,
    *inputs: Stream,
    count: int = 100,
) -> list[Delivery]:
    return await exchange.claim(
        inputs or (REQUESTS,),
        "job",
        count=count,
        wait_s=0.01,
    )


async def claim_one(exchange: Exchange, *inputs: Stream) -> Delivery:
    """The only entry that nobody has claimed."""
    (delivery,) = await claim(exchange, *inputs)
    return delivery


async def reclaim(
    exchange: Exchange,
    stream: Stream = REQUESTS,
    **options: Any,
) -> list[Delivery]:
    return await exchange.reclaim(stream, "job", count=9, **options)


async def fail(exchange: Exchange, delivery: Delivery) -> bool:
    failure = delivery.as_failed(FailureKind.DEATHS, "no matter why")
    return await exchange.hand_off(delivery, GRADED, failure)


async def lost(exchange: Exchange, *leases: Delivery) -> Set[Place]:
    return (
        await exchange.heartbeat(
            "rollout",
            (REQUESTS,),
            "job",
            leases=leases,
        )
    ).lost


async def is_blocked(exchange: Exchange, clients: int = 1) -> None:
    """Wait until so many clients wait for something on the server."""

    async def look() -> bool:
        return (await exchange.writer.info("clients"))["blocked_clients"] == clients

    await until(look)


async def take_over(
    exchange: Exchange,
    *inputs: Stream,
    job_id: str = "job",
) -> list[Delivery]:
    """Bury all other workers without any patience, and claim what is free."""
    inputs = inputs or (REQUESTS,)
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
