"""Whatever is killed or stalled between any two commands: every group arrives exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from protocol.exchange import Backlog, Delivery, Exchange, Fenced, connect
from protocol.messages import GradedGroup, Message, RolloutRequest
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS, ROLLOUTS, WORK_STREAMS, Stream

from tests.builders import a_graded_group, a_group, a_job_record, a_request
from tests.contract.exchange_steps import take_over
from tests.contract.valkey_server import Server

NUM_GROUPS = 4
Life = AsyncGenerator[None, bool]  # one command a step; sent True: make the next thing go wrong

_job_numbers = count()


class Stage(NamedTuple):
    inputs: tuple[Stream, ...]
    output: Stream
    result: Callable[[Any], Message]


ROLLING_OUT = Stage((EVAL_REQUESTS, REQUESTS), ROLLOUTS, a_group)
GRADING = Stage((ROLLOUTS,), GRADED, a_graded_group)


@dataclass
class World:
    """One job, its workers and its learner; ``taken_in`` counts what the learner got."""

    exchange: Exchange
    job_id: str
    taken_in: Counter[str] = field(default_factory=Counter)
    names: count[int] = field(default_factory=count)

    def keys(self) -> set[str]:
        return {self._request(number, 1).key for number in range(NUM_GROUPS)}

    async def work(self, stage: Stage) -> Life:
        """A worker that knows no patience: it takes over whatever another one holds."""
        exchange = replace(self.exchange, me=f"worker-{next(self.names)}")
        failing = yield
        while True:
            for stream in stage.inputs:
                entries = await take_over(exchange, stream, job_id=self.job_id)
                failing = yield
                if not entries:
                    entries = await exchange.claim(
                        [stream],
                        self.job_id,
                        count=1,
                        wait_s=0,
                    )
                    failing = yield
                for delivery in entries:
                    group = str(stream.group)
                    beat = exchange.heartbeat(group, [stream], self.job_id, leases=[delivery])
                    lost = (await beat).lost
                    failing = yield
                    if failing:
                        assert not (await exchange.release(delivery, "failures") and lost)
                    else:
                        result = stage.result(delivery.message())
                        await exchange.hand_off(delivery, stage.output, result)
                    failing = yield

    async def learn(self) -> Life:
        """A life of the learner: asks for everything, takes in what comes, until it is fenced."""
        exchange = replace(self.exchange, me=f"learner-{next(self.names)}")
        attempt = await exchange.begin_attempt(self.job_id)
        yield
        try:
            for number in range(NUM_GROUPS):
                if not self.taken_in[self._request(number, attempt).key]:
                    await exchange.ask(self._request(number, attempt))
                    yield
            while True:
                entries: list[Delivery[GradedGroup]] = []
                entries += await exchange.adopt(GRADED, self.job_id, count=2)
                yield
                entries += await exchange.claim(
                    [GRADED],
                    self.job_id,
                    count=2,
                    wait_s=0,
                )
                yield
                for delivery in entries:
                    assert delivery.message().key == delivery.key
                    if await exchange.ingest(delivery, attempt):
                        self.taken_in[delivery.key] += 1
                    yield
        except Fenced:
            while True:
                yield

    def _request(self, number: int, attempt: int) -> RolloutRequest:
        purpose = Purpose.EVAL if number % 2 else Purpose.TRAIN
        return a_request(number=number, purpose=purpose, job_id=self.job_id, attempt=attempt)


ROLES = [ROLLING_OUT, ROLLING_OUT, GRADING, GRADING, None, None]  # None is a learner

EVENTS = st.sampled_from(["step", "step", "step", "step", "fail", "die"])
SCHEDULES = st.lists(st.tuples(st.integers(0, len(ROLES) - 1), EVENTS), max_size=70)


@given(schedule=SCHEDULES)
@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_group_is_taken_in_exactly_once_whoever_dies(
    server: Server, schedule: list[tuple[int, str]]
) -> None:
    asyncio.run(_run(server, schedule))


async def _run(server: Server, schedule: list[tuple[int, str]]) -> None:
    async with connect(server.url, me="observer", patience_s=5) as exchange:
        world = World(exchange, f"job-{next(_job_numbers)}")
        await exchange.submit(a_job_record(world.job_id))
        lives: list[Life | None] = [None] * len(ROLES)
        for index, event in schedule:
            await _act(world, lives, index, event)
        await _drain(world, lives)
        assert world.taken_in == dict.fromkeys(world.keys(), 1)
        assert await exchange.pending_keys(world.job_id) == set()
        for stream in WORK_STREAMS:
            assert await exchange.backlog(stream, world.job_id) == Backlog(0, 0)


async def _act(
    world: World,
    lives: list[Life | None],
    index: int,
    event: str,
) -> None:
    """One life does one command, or ends between two: what it knew is gone."""
    life = lives[index]
    if life is None:
        role = ROLES[index]
        lives[index] = life = world.learn() if role is None else world.work(role)
        await life.asend(None)  # pyright: ignore[reportArgumentType]  (starts it)
    elif event == "die":
        await life.aclose()
        lives[index] = None
    else:
        await life.asend(event == "fail")


async def _drain(world: World, lives: list[Life | None]) -> None:
    """From here on nobody dies; a new learner takes over from those who live."""
    for index in (4, 5):
        if (life := lives[index]) is not None:
            await life.aclose()
            lives[index] = None
    for _ in range(200):
        if world.taken_in.keys() >= world.keys():
            return
        for index in range(5):
            await _act(world, lives, index, "step")
    pytest.fail(f"stuck: {await world.exchange.pending_keys(world.job_id)}")
