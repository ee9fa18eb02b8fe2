"""Workers at a stage, for tests of the work loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from protocol.exchange import Exchange
from protocol.messages import ActiveJob, GradedGroup, JobRecord, RolloutRequest
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS, Stream

from services.chassis.deployment import Deployment
from services.chassis.faults import Unable
from services.chassis.service import Service
from services.chassis.stage import Stage, up_to, work_forever
from tests.builders import a_recipe, a_request

Handle = Callable[[ActiveJob, RolloutRequest], Awaitable[GradedGroup]]


DEPLOYMENT = replace(
    Deployment.from_environment(
        {"WEIR_REDIS_URL": "unused", "WEIR_DATA_DIR": "/unused", "WEIR_PORT": "0"}
    ),
    heartbeat_s=0.05,
    claim_idle_s=0.4,
    drain_s=1.0,
)


async def begin(exchange: Exchange, *, requests: int) -> None:
    await exchange.submit(JobRecord(id="job", created_at=0.0, recipe=a_recipe()))
    attempt = await exchange.begin_attempt("job")
    await exchange.activate(ActiveJob(job_id="job", attempt=attempt, recipe=a_recipe()))
    for number in range(requests):
        await exchange.ask(a_request(number=number, attempt=attempt))


def stage_of(
    handle: Handle, capacity: int = 4, leaves: Set[Stream] = frozenset()
) -> Stage[RolloutRequest, GradedGroup]:
    inputs = (EVAL_REQUESTS, REQUESTS)
    return Stage(inputs, GRADED, GRADED, handle, up_to(capacity), leaves=lambda *_: leaves)


@asynccontextmanager
async def working_at(
    stage: Stage[RolloutRequest, GradedGroup], exchange: Exchange
) -> AsyncIterator[Service]:
    """A worker at a stage; it is told to stop at the end."""
    service = Service("worker", DEPLOYMENT, exchange)
    task = asyncio.create_task(work_forever(service, stage))
    try:
        yield service
    finally:
        service.stopping.set()
        await task


def working(
    exchange: Exchange, handle: Handle, capacity: int = 4, leaves: Set[Stream] = frozenset()
) -> AbstractAsyncContextManager[Service]:
    """A worker that handles requests."""
    return working_at(stage_of(handle, capacity, leaves), exchange)


async def answer(_: ActiveJob, request: RolloutRequest) -> GradedGroup:
    return GradedGroup(purpose=request.purpose, number=request.number, failure="done")


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


async def slowly(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
    await asyncio.sleep(0.02)
    return await answer(job, request)


async def until_claiming(exchange: Exchange, worker: str) -> None:
    async with asyncio.timeout(60):
        while True:
            pulse = await exchange.heartbeat(str(REQUESTS.group), may_claim=False)
            if pulse.lives.get(worker, 0) > 0:
                return
            await asyncio.sleep(0.01)


async def unable(_: ActiveJob, request: RolloutRequest) -> GradedGroup:
    raise Unable("no verifier is called 'my_lab.oracle'")
