"""A job in the hands of the learner, with a stand-in for its ranks, and of who answers it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from protocol.exchange import Exchange
from protocol.messages import GradedGroup, JobRecord, JobState, Requested, RolloutRequest
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS

from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.learner.job import work_on_one_job
from services.learner.ranks import Team
from tests.architecture.project import ROOT
from tests.builders import a_graded_group, a_group, a_job_record, a_recipe
from tests.contract.fake_team import FakeTeam

Answer = Callable[[RolloutRequest], GradedGroup]
EXAMPLE = ROOT / "examples/arithmetic"
_INPUTS = (EVAL_REQUESTS, REQUESTS)


@dataclass
class Job:
    """One job, which may live several times; its data is in a folder."""

    exchange: Exchange
    folder: Path

    async def submit(self, **tables: Any) -> None:
        """Queue it, with four tasks; ``tables`` are changes to a small recipe."""
        (self.folder / "files").mkdir()
        lines = (EXAMPLE / "held_out.jsonl").read_text().splitlines()[:4]
        (self.folder / "files/tasks.jsonl").write_text("\n".join(lines) + "\n")
        example = {
            "model": {"path": "base-model"},
            "tasks": {"train": "tasks", "held_out": "tasks"},
        }
        recipe = a_recipe(**example, **({"algorithm": {"advantage": "grpo"}} | tables))
        await self.exchange.submit(a_job_record(recipe=recipe))

    @asynccontextmanager
    async def living(self, team: FakeTeam | None = None) -> AsyncIterator[asyncio.Task[None]]:
        """One life of the learner beside the body, which ends with it without a word."""
        environment = {
            "WEIR_REDIS_URL": "unused",
            "WEIR_DATA_DIR": str(self.folder),
            "WEIR_MODEL_ROOTS": str(EXAMPLE),
            "WEIR_PORT": "0",
            "WEIR_HEARTBEAT_S": "0.05",
        }
        service = Service("learner", Deployment.from_environment(environment), self.exchange)
        life = asyncio.create_task(work_on_one_job(service, cast(Team, team or FakeTeam())))
        try:
            async with asyncio.timeout(60):
                yield life
        finally:
            life.cancel()
            await asyncio.wait({life})

    async def live(self, team: FakeTeam | None = None) -> JobRecord:
        """One life of the learner, to its end."""
        async with self.living(team) as life:
            await life
        return await self.record()

    async def record(self) -> JobRecord:
        record = await self.exchange.job("job")
        assert record is not None
        return record

    async def until(self, condition: Callable[[JobRecord], bool]) -> JobRecord:
        """The record, once it is as wanted."""
        while not condition(record := await self.record()):
            await asyncio.sleep(0.02)
        return record

    async def until_it_is(self, state: JobState) -> JobRecord:
        return await self.until(lambda record: record.state is state)

    async def resume(self) -> None:
        """Wait until it is paused, and then until it goes on."""
        await self.until_it_is(JobState.PAUSED)
        await self.exchange.request_state("job", Requested.RUN)
        await self.until(lambda record: record.state is not JobState.PAUSED)

    async def warnings(self) -> list[str]:
        events = await self.exchange.events("job")
        return [event.message for _, event in events if event.level == "warn"]

    async def steps(self) -> list[Any]:
        """What the events say of each training step."""
        events = await self.exchange.events("job")
        return [event.data for _, event in events if event.id.startswith("step:")]


def right_and_wrong(request: RolloutRequest) -> GradedGroup:
    """An answer from weights that are just fresh enough."""
    group = a_group(request, version=request.min_version)
    return a_graded_group(group, [1.0, *[0.0] * (request.group_size - 1)])


def failing(*keys: str) -> Answer:
    """A failure for the requests of these keys, for all if there are none."""

    def answer(request: RolloutRequest) -> GradedGroup:
        if keys and request.key not in keys:
            return right_and_wrong(request)
        failure = "failures: RuntimeError: CUDA error"
        return GradedGroup(purpose=request.purpose, number=request.number, failure=failure)

    return answer


@asynccontextmanager
async def answered(exchange: Exchange, answer: Answer = right_and_wrong) -> AsyncIterator[None]:
    """Every request of the job is answered, while the body runs."""

    async def answer_forever() -> None:
        while True:
            deliveries = await exchange.claim(_INPUTS, "job", count=8, wait_s=0.1)
            for stream in _INPUTS:
                deliveries += await exchange.reclaim(stream, "job", count=8, held=deliveries)
            for delivery in deliveries:
                await exchange.hand_off(delivery, GRADED, answer(delivery.message()))

    task = asyncio.create_task(answer_forever())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
