"""What stands still is told by real parts on a real server: as words, metric and event.

Which words and edge each moment has is a table of `tests/unit/gateway/test_stalls.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import REGISTRY
from protocol.exchange import Exchange, connect
from protocol.messages import ActiveJob, Doing, Failure

from services.chassis.faults import NotStarted
from services.chassis.service import Service, StatusTeller, telling
from services.gateway.watch.snapshot import Observer
from services.gateway.watch.stalls import Edge
from services.gateway.watch.watchdog import Watchdog
from tests.builders import a_recipe
from tests.contract.attempts import Learner, answering, until
from tests.contract.exchange_steps import DEPLOYMENT, begin, running
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
LOOK_S = 0.1


@dataclass
class Watch:
    """A watchdog that looks at a job."""

    exchange: Exchange
    dog: Watchdog = field(default_factory=Watchdog)

    async def watch_forever(self) -> None:
        observer = Observer(self.exchange, 2.0, LOOK_S)
        while True:
            await self.dog.look(observer, time.monotonic())
            await asyncio.sleep(LOOK_S)

    async def until_named(self, edge: Edge) -> str:
        """Wait until a stall is told as an event, and exported; returns the event's words."""

        async def told() -> bool:
            return any(event.data["edge"] == edge for event in await self.events("stall:"))

        await until(told)
        assert exported(edge) == 1.0
        return (await self.events("stall:"))[-1].message

    async def until_it_moves(self) -> None:
        async def told() -> bool:
            return len(await self.events("moves:")) == 1

        await until(told)
        assert {edge for edge in Edge if exported(edge)} == set()

    async def events(self, kind: str) -> list[Any]:
        rows = await self.exchange.events("job")
        return [event for _, event in rows if event.id.startswith(kind)]


def exported(edge: Edge) -> float | None:
    labels = {"job": "job", "recipe": "small", "edge": edge.value}
    return REGISTRY.get_sample_value("weir_job_stalled", labels)


@pytest.fixture
async def watch(server: Server) -> AsyncIterator[Watch]:
    async with connect(server.url, me="gateway", patience_s=5) as exchange:
        watch = Watch(exchange)
        async with running(watch.watch_forever()):
            yield watch


@asynccontextmanager
async def learning(learner: Learner) -> AsyncIterator[None]:
    async with (
        learner.attempting(),
        running(StatusTeller(learner.services[-1]).tell_until_ended()),
    ):
        yield


async def test_a_job_without_a_rollout_says_so_once_and_that_it_moves_again(
    server: Server, watch: Watch, learner: Learner
) -> None:
    await learner.submit(steps=1000)
    async with learning(learner):
        words = await watch.until_named(Edge.NO_ROLLOUT)
        assert "train:0" in words
        await asyncio.sleep(3 * LOOK_S)
        told = [event.data["edge"] for event in await watch.events("stall:")]
        assert len(told) == len(set(told))
        async with answering(server.url):
            await watch.until_it_moves()


async def test_a_full_redis_is_named_and_does_not_keep_anybody_from_saying_so(
    server: Server, watch: Watch, learner: Learner
) -> None:
    await learner.submit()
    server.exhaust_memory()
    async with learning(learner):
        await watch.until_named(Edge.MEMORY)
        server.free_memory()


async def test_lives_that_were_never_ready_are_counted_and_told_now_and_then(
    server: Server, exchange: Exchange
) -> None:
    async def fail(_: Service) -> None:
        raise NotStarted("no kernel for this GPU", "job")

    await begin(exchange)
    await exchange.activate(ActiveJob(job_id="job", attempt=1, recipe=a_recipe()))
    for life in range(5):
        async with connect(server.url, me=f"rollout-host-1.{life}") as own:
            with pytest.raises(NotStarted):
                await telling(Service("rollout", DEPLOYMENT, own), fail)
    (status,) = (await exchange.statuses()).values()
    assert (status.starts, status.failure) == (
        5,
        Failure(words="no kernel for this GPU", job_id="job"),
    )
    told = [event for _, event in await exchange.events("job")]
    assert [event.data["attempt"] for event in told] == [1, 2, 4]


async def test_a_status_is_of_a_replica_and_goes_with_a_process_that_leaves_in_good_order(
    server: Server, exchange: Exchange
) -> None:
    async def wait(service: Service) -> None:
        service.readiness.set(True)
        while not await exchange.statuses():
            await asyncio.sleep(0.01)
        (status,) = (await exchange.statuses()).values()
        assert (status.replica, status.name, status.doing) == ("replica-1", "replica", Doing.STARTS)
        service.stop()

    server.exhaust_memory()
    async with connect(server.url, me="replica-1.7") as own:
        await telling(Service("worker", DEPLOYMENT, own), wait)
    assert await exchange.statuses() == {}
