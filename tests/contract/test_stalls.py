"""Every stall is produced by real parts on a real server, and named: as words, edge and event."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY
from protocol.exchange import Exchange, connect
from protocol.messages import (
    ActiveJob,
    GradedGroup,
    Requested,
    RolloutGroup,
    RolloutRequest,
)
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS, ROLLOUTS

from services.chassis.activity import StatusTeller
from services.chassis.service import Service, telling
from services.chassis.work import Station, up_to, work_forever
from services.gateway.watch.snapshot import Observer
from services.gateway.watch.stalls import Edge
from services.gateway.watch.watchdog import Watchdog
from services.grader import gate
from services.grader.judge.judge import Judge
from services.grader.judge.settings import JudgeSettings
from services.grader.tools import Tools
from services.grader.worker import station as grading_station
from services.rollout.errors import EngineError
from services.rollout.policy_sync import PolicyFollower
from tests.builders import a_graded_group, a_group
from tests.contract.attempts import Learner, answering, until
from tests.contract.fake_team import FakeTeam, Stalling
from tests.contract.test_work_loop import DEPLOYMENT
from tests.contract.valkey_server import Server
from tests.unit.rollout.test_policy_sync import write_folder

if TYPE_CHECKING:
    from services.rollout.engine import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
LOOK_S = 0.1
DEAD_S = 0.5
BY_JUDGE = {"reward": {"outcome": "model_judge", "process": "equation_steps"}}


@dataclass
class Watch:
    """A watchdog that looks at a job, and can be told that time has passed."""

    exchange: Exchange
    dog: Watchdog = field(default_factory=Watchdog)
    passed_s: float = 0.0

    async def watch_forever(self) -> None:
        observer = Observer(self.exchange, DEAD_S, LOOK_S)
        while True:
            await self.dog.look(observer, time.monotonic() + self.passed_s)
            await asyncio.sleep(LOOK_S)

    async def why(self, job_id: str = "job") -> dict[str, Any]:
        job = await self.exchange.job(job_id)
        assert job is not None
        return self.dog.why(job)

    async def says(self, words: str, job_id: str = "job") -> bool:
        return words in ((await self.why(job_id))["because"] or "")

    async def until_named(self, edge: Edge) -> str:
        """Wait until a stall is told as an event, and exported; returns the event's words."""

        async def told() -> bool:
            return any(event.data["edge"] == edge for event in await self.events("stall:"))

        await until(told)
        assert exported(edge) == 1.0
        return next(
            event.message
            for event in reversed(await self.events("stall:"))
            if event.data["edge"] == edge
        )

    async def until_it_moves(self, stalls: int) -> None:
        async def told() -> bool:
            return len(await self.events("moves:")) == stalls

        await until(told)
        assert {edge for edge in Edge if exported(edge)} == set()

    async def events(self, kind: str) -> list[Any]:
        rows = await self.exchange.events("job")
        return [event for _, event in rows if event.id.startswith(kind)]


def exported(edge: Edge) -> float | None:
    labels = {"job": "job", "recipe": "small", "edge": edge.value}
    return REGISTRY.get_sample_value("weir_job_stalled", labels)


@asynccontextmanager
async def beside(*loops: Awaitable[None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(loop) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def watching(server: Server) -> AsyncIterator[Watch]:
    async with connect(server.url, me="gateway", patience_s=5) as exchange:
        watch = Watch(exchange)
        async with beside(watch.watch_forever()):
            yield watch


@pytest.fixture
async def watch(server: Server) -> AsyncIterator[Watch]:
    async with watching(server) as watch:
        yield watch


@pytest.fixture
def learner(exchange: Exchange, tmp_path: Path) -> Learner:
    return Learner(exchange, tmp_path)


@asynccontextmanager
async def learning(learner: Learner) -> AsyncIterator[None]:
    async with learner.attempting(), beside(StatusTeller(learner.services[-1]).tell_until_ended()):
        yield


@asynccontextmanager
async def worker(server: Server, name: str, station: Station) -> AsyncIterator[Service]:
    """A worker at its station, which tells what it does."""
    async with connect(server.url, me=f"{name}-host-1.1", patience_s=5) as exchange:
        service = Service(name, DEPLOYMENT, exchange)
        service.readiness.set(True)
        async with beside(work_forever(service, station), StatusTeller(service).tell_until_ended()):
            yield service
            service.stop()
            await asyncio.sleep(0)
        await exchange.forget_status(f"{name}-host-1")
        await exchange.leave(station.group)


def rollout(handle: Callable[..., Awaitable[RolloutGroup]] | None = None) -> Station:
    async def sample(_: ActiveJob, request: RolloutRequest) -> RolloutGroup:
        return a_group(request, version=request.step)

    return Station(
        (EVAL_REQUESTS, REQUESTS), ROLLOUTS, GRADED, handle or sample, up_to(4), verb="samples"
    )


def grader() -> Station:
    async def grade(_: ActiveJob, group: RolloutGroup) -> GradedGroup:
        return a_graded_group(group)

    return Station((ROLLOUTS,), GRADED, GRADED, grade, up_to(4), verb="grades")


async def test_a_job_without_learner_rollout_or_grader_says_which_one_it_lacks(
    server: Server, watch: Watch, learner: Learner
) -> None:
    await learner.submit(steps=1000)
    words = await watch.until_named(Edge.NO_LEARNER)
    assert words.endswith("the job waits for a learner; no learner is there")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(learning(learner))
        words = await watch.until_named(Edge.NO_ROLLOUT)
        assert "learner waits for group train:0, which is to be sampled" in words
        assert words.endswith("no rollout is there")
        await stack.enter_async_context(worker(server, "rollout", rollout()))
        words = await watch.until_named(Edge.NO_GRADER)
        assert words.endswith("which is to be graded; no grader is there")
        await stack.enter_async_context(worker(server, "grader", grader()))
        await watch.until_it_moves(3)
        why = await watch.why()
        assert (why["moving"], why["edge"]) == (True, None)
        assert {each["service"] for each in why["services"]} == {"learner", "rollout", "grader"}
        assert {each["stream"] for each in why["streams"]} == {
            *("requests", "eval_requests", "rollouts", "graded")
        }
        assert len(await watch.events("stall:")) == 3


async def test_a_training_step_that_hangs_is_told_from_one_that_takes_as_long_as_others(
    server: Server, watch: Watch, learner: Learner
) -> None:
    team = Stalling(4)
    learner.make_team = lambda: team
    await learner.submit()
    async with answering(server.url), learning(learner):
        await until(lambda: watch.says("learner trains step 5"))
        watch.passed_s = 20.0
        await asyncio.sleep(5 * LOOK_S)
        assert not await watch.events("stall:")
        watch.passed_s = 35.0
        words = await watch.until_named(Edge.TRAINING)
    assert "learner trains step 5" in words


async def test_a_full_redis_is_named_and_does_not_keep_anybody_from_saying_so(
    server: Server, watch: Watch, learner: Learner
) -> None:
    await learner.submit()
    server.exhaust_memory()
    async with learning(learner):
        words = await watch.until_named(Edge.MEMORY)
        assert words.endswith("Redis is full: learner waits for room in its memory")
        server.free_memory()
        async with answering(server.url):
            await watch.until_it_moves(1)


async def test_a_judge_that_is_down_is_named(
    server: Server, watch: Watch, learner: Learner
) -> None:
    settings = JudgeSettings("http://127.0.0.1:1/v1", "judge", retest_s=(0.1, 0.1))
    await learner.submit(tables=BY_JUDGE)
    async with Judge(settings) as judge:
        tools = Tools(None, judge)  # type: ignore[arg-type]  (no pool: nothing is graded)
        async with (
            learning(learner),
            worker(server, "rollout", rollout()),
            worker(server, "grader", grading_station(tools, 4)) as service,
            beside(gate.tell_forever(service, tools)),
        ):
            words = await watch.until_named(Edge.JUDGE)
    assert "which is to be graded; grader-host: the judge is not up: " in words
    assert "127.0.0.1:1" in words


class Exporting(FakeTeam):
    """Publishes folders that an engine could start on."""

    async def export(self, folder: Path) -> None:
        write_folder(folder)


async def test_an_engine_that_never_starts_is_named_and_told_now_and_then(
    server: Server, learner: Learner
) -> None:
    data_dir = learner.data_dir
    deployment = replace(DEPLOYMENT, data_dir=data_dir, memory_dir=data_dir / "weights")
    lives = itertools.count()

    async def start(*_: object) -> Engine:
        raise EngineError("the GPU is away:\n  no kernel for it")  # which is no job's fault

    async def follow_policy(service: Service) -> None:
        await PolicyFollower(service, start).follow_policy_forever()

    async def one_life() -> None:
        async with connect(server.url, me=f"rollout-host-1.{next(lives)}") as own:
            with pytest.raises(EngineError):
                await telling(Service("rollout", deployment, own), follow_policy)

    learner.make_team = Exporting
    await learner.submit(steps=1000)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(learning(learner))
        for _ in range(5):
            await one_life()
        # Only now, or a slow life before the last one would be a stall of its own.
        watch = await stack.enter_async_context(watching(server))
        words = await watch.until_named(Edge.CANNOT_START)
        assert "rollout-host does not start: the GPU is away: no kernel for it" in words
        assert words.endswith("attempt 5")
        told = [event.message for event in await watch.events("start:")]
        assert [message.split("; ")[1] for message in told] == [
            f"attempt {number}" for number in (1, 2, 4)
        ]
        await stack.enter_async_context(worker(server, "grader", grader()))
        await stack.enter_async_context(worker(server, "rollout", rollout()))
        await watch.until_it_moves(1)


async def test_a_paused_job_says_who_must_act_and_the_one_behind_it_runs(
    watch: Watch, learner: Learner
) -> None:
    await learner.submit()
    await learner.submit("behind")
    await learner.exchange.request_state("job", Requested.PAUSE)
    async with learning(learner):
        await until(lambda: watch.says("somebody has paused it; `weir resume` has it go on"))
        await until(lambda: watch.says("waits for group train:0", "behind"))
        await learner.exchange.request_state("job", Requested.RUN)
        await until(lambda: watch.says("it waits for job behind, which is running at step 0/6"))
    assert not await watch.events("stall:")


async def test_a_status_is_of_a_seat_and_goes_with_a_process_that_leaves_in_good_order(
    server: Server, exchange: Exchange
) -> None:
    async def wait(service: Service) -> None:
        service.readiness.set(True)
        while not await exchange.statuses():
            await asyncio.sleep(0.01)
        (status,) = (await exchange.statuses()).values()
        assert (status.seat, status.name, status.doing) == ("seat-1", "seat", "starts")
        service.stop()

    server.exhaust_memory()
    async with connect(server.url, me="seat-1.7") as own:
        await telling(Service("worker", DEPLOYMENT, own), wait)
    assert await exchange.statuses() == {}
