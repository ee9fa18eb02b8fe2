"""The whole line as plain loops: ask, roll out, grade, take in; to be disturbed by a test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from protocol.exchange import Delivery, Exchange
from protocol.messages import GradedGroup, Message, RolloutGroup, RolloutRequest
from protocol.streams import GRADED, REQUESTS, ROLLOUTS, Stream

from tests.builders import a_graded_group, a_group


async def roll_out_forever(exchange: Exchange) -> None:
    await _work_forever(exchange, REQUESTS, ROLLOUTS, rolled_out)


async def grade_forever(exchange: Exchange) -> None:
    await _work_forever(exchange, ROLLOUTS, GRADED, graded)


async def take_in(exchange: Exchange, attempt: int, count: int) -> Counter[str]:
    """Take in until ``count`` groups have come; returns how often each one did."""
    logged: Counter[str] = Counter()
    while len(logged) < count:
        for delivery in await _next(exchange, GRADED):
            assert delivery.message().key == delivery.key
            logged[delivery.key] += 1
            await exchange.take_in(delivery, attempt)
    return logged


@asynccontextmanager
async def running(*loops: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines beside the body, until it ends; what one raises ends the body."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop) for loop in loops]
        yield
        for task in tasks:
            task.cancel()


async def ask_all(exchange: Exchange, requests: Iterable[RolloutRequest]) -> None:
    for request in requests:
        await exchange.ask(request)


async def take_over(exchange: Exchange, *inputs: Stream, job_id: str = "job") -> list[Delivery]:
    """Bury all other workers without any patience, and claim what is free."""
    group = str(inputs[0].group)
    pulse = await exchange.heartbeat(group, inputs, job_id)
    for life, beats in pulse.lives.items():
        if life != exchange.me:
            await exchange.bury(group, life, beats, inputs, job_id)
    return [
        delivery
        for stream in inputs
        for delivery in await exchange.reclaim(stream, job_id, count=9)
    ]


async def _next(exchange: Exchange, stream: Stream) -> list[Delivery]:
    reclaimed = await exchange.reclaim(stream, "job", count=4)
    return reclaimed + await exchange.claim([stream], "job", count=4, wait_s=0.02)


async def _work_forever(
    exchange: Exchange, source: Stream, output: Stream, result: Callable[[Message], Message]
) -> None:
    while True:
        for delivery in await _next(exchange, source):
            await exchange.hand_off(delivery, output, result(delivery.message()))


def rolled_out(request: Message) -> RolloutGroup:
    assert isinstance(request, RolloutRequest)
    return a_group(request)


def graded(group: Message) -> GradedGroup:
    assert isinstance(group, RolloutGroup)
    return a_graded_group(group)
