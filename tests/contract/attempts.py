"""Attempts at a job by the real learner, but for its ranks, with a stand-in that answers it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from protocol.exchange import Exchange, connect
from protocol.messages import (
    FailureKind,
    GradedGroup,
    JobEvent,
    JobRecord,
    JobState,
    Requested,
    RolloutRequest,
)
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS

from services.chassis.deployment import Deployment
from services.chassis.renderer import PromptRenderer
from services.chassis.service import Service
from services.learner.job.role import work_on_one_job
from services.learner.training.ranks import Team
from tests.architecture.project import ROOT
from tests.builders import a_graded_group, a_group, a_job_record, a_recipe, a_task
from tests.contract.fake_team import FakeTeam, Stalling
from tests.inline_prompts import InlinePrompts

PATIENCE_S = 60.0
CUDA_ERROR = (FailureKind.FAILURES, "RuntimeError: CUDA error")


@dataclass
class Learner:
    """A learner that is started again and again, as a supervisor does, with a team of one kind."""

    exchange: Exchange
    data_dir: Path
    make_team: Callable[[], FakeTeam] = FakeTeam
    models: Path = ROOT / "examples/arithmetic"
    is_confined: bool = False  # what renders prompts, which takes a second to start
    claim_idle_s: float = 1.0
    keep_samples_bytes: int = 10**9
    services: list[Service] = field(default_factory=list)

    def start(self) -> asyncio.Task[FakeTeam]:
        """Begin an attempt; the task's result is the team as it was in the end."""
        service = Service("learner", self._deployment, self.exchange)
        self.services.append(service)
        prompts = PromptRenderer(1) if self.is_confined else InlinePrompts()
        return asyncio.create_task(_attempt(service, self.make_team(), prompts))

    async def attempt(self) -> FakeTeam:
        """One attempt, to its end."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.start()

    @asynccontextmanager
    async def attempting(self) -> AsyncIterator[asyncio.Task[FakeTeam]]:
        """An attempt beside the body, which ends with it without a word."""
        running = self.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield running
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def killed_at(self, step: int, *, with_log_from: str = "") -> None:
        """An attempt that makes so many steps, and ends without a word in the next one.

        Args:
            with_log_from: the oldest segment that its checkpoints leave in the log.
        """
        team = Stalling(step)
        make_team, self.make_team = self.make_team, lambda: team
        running = self.start()
        self.make_team = make_team
        async with asyncio.timeout(PATIENCE_S):
            await team.stalls.wait()
            # Checkpoints are written beside the steps, and the log is cut after them.
            while list((self.job_dir / "checkpoints").glob(".*")) or any(
                path.name < with_log_from for path in (self.job_dir / "log").glob("*.segment")
            ):
                await asyncio.sleep(0.01)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    async def submit(
        self, job_id: str = "job", tables: Mapping[str, Any] | None = None, **training: Any
    ) -> None:
        """Queue a job with a task file of its own; ``tables`` are further ones of its recipe."""
        files = self.data_dir / "files"
        files.mkdir(parents=True, exist_ok=True)
        tasks = [a_task(id=f"task-{number}") for number in range(5)]
        lines = (json.dumps(task.model_dump(exclude_none=True)) + "\n" for task in tasks)
        (files / "train.jsonl").write_text("".join(lines))
        settings = {"steps": 6, "checkpoint_every": 2, "groups_per_step": 2} | training
        recipe = a_recipe(
            **{
                "model": {"path": "base-model", "prompt_template": "{prompt}"},
                "tasks": {"train": "train", "held_out": "train"},
                "training": settings,
                **(tables or {}),
            }
        )
        await self.exchange.submit(a_job_record(job_id, recipe=recipe))

    async def uninterrupted(self, **training: Any) -> str:
        """What the model of the job is in the end if nothing happens to it."""
        other = Learner(self.exchange, self.data_dir / "other")
        await other.submit("other", **training)
        return (await other.attempt()).digest

    async def paused_and_resumed(self) -> None:
        await self.attempt()
        assert (await self.record()).state is JobState.PAUSED
        await self.exchange.request_state("job", Requested.RUN)

    async def record(self, job_id: str = "job") -> JobRecord:
        record = await self.exchange.job(job_id)
        assert record is not None
        return record

    async def events(self, job_id: str = "job", kind: str = "") -> list[JobEvent]:
        """What was told, as far as its id begins with ``kind``."""
        rows = await self.exchange.events(job_id)
        return [event for _, event in rows if event.id.startswith(kind)]

    async def is_ready(self) -> bool:
        return self.services[-1].readiness.ready

    def is_in(self, state: JobState) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return (await self.record()).state is state

        return look

    def has_made(self, steps: int) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return (await self.record()).step >= steps

        return look

    async def warning(self) -> str:
        """The only one that there was."""
        (warning,) = (event.message for event in await self.events() if event.level == "warn")
        return warning

    @property
    def job_dir(self) -> Path:
        return self.data_dir / "jobs" / "job"

    @property
    def checkpoints(self) -> list[Path]:
        return sorted((self.job_dir / "checkpoints").glob("step-*"))

    @property
    def _deployment(self) -> Deployment:
        environment = {
            "WEIR_REDIS_URL": "redis://unused",
            "WEIR_DATA_DIR": str(self.data_dir),
            "WEIR_MODEL_ROOTS": str(self.models),
            "WEIR_PORT": "0",
            "WEIR_HEARTBEAT_S": "0.05",
            "WEIR_KEEP_SAMPLES_BYTES": str(self.keep_samples_bytes),
            "WEIR_CLAIM_IDLE_S": str(self.claim_idle_s),
        }
        return Deployment.from_environment(environment)


async def _attempt(service: Service, team: FakeTeam, prompts: PromptRenderer) -> FakeTeam:
    async with prompts:
        await work_on_one_job(service, cast(Team, team), prompts)
    return team


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def answering(
    url: str,
    *failing: str,
    why: tuple[FailureKind, str] = CUDA_ERROR,
    evaluates: asyncio.Event | None = None,
) -> AsyncIterator[None]:
    """Beside the body, every request of the active job is answered by a graded group.

    Those whose keys are ``failing`` fail; those of evaluations wait until ``evaluates`` is set.
    """
    async with connect(url, me="answerer", patience_s=PATIENCE_S) as exchange:
        task = asyncio.create_task(_answer_forever(exchange, failing, why, evaluates))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _answer_forever(
    exchange: Exchange,
    failing: Collection[str],
    why: tuple[FailureKind, str],
    evaluates: asyncio.Event | None,
) -> None:
    while True:
        active = await exchange.active()
        if active is None:
            await asyncio.sleep(0.01)
            continue
        streams = [EVAL_REQUESTS, REQUESTS]
        if evaluates is not None and not evaluates.is_set():
            streams = [REQUESTS]
        claimed = await exchange.claim(streams, active.job_id, count=8, wait_s=0.02)
        for stream in streams:
            claimed += await exchange.reclaim(stream, active.job_id, count=8, leases=claimed)
        for delivery in claimed:
            request = delivery.message()
            if (version := await _find_version(exchange, request)) is not None:
                answer = an_answer(request, version)
                if request.key in failing:
                    answer = delivery.as_failed(*why)
                await exchange.hand_off(delivery, GRADED, answer)


async def _find_version(exchange: Exchange, request: RolloutRequest) -> int | None:
    """The version of an evaluation, or the newest; None if the job has ended before."""
    while await exchange.active() is not None:
        policy = await exchange.newest_policy(request.job_id)
        if policy is not None and policy.number >= request.min_version:
            return policy.number if request.version is None else request.version
        await asyncio.sleep(0.01)
    return None


def an_answer(request: RolloutRequest, version: int) -> GradedGroup:
    """The same for the same request, but for the version."""
    num_others = request.group_size - 1
    group = a_group(request, [1 + request.number % 3, *[2] * num_others], version=version)
    return a_graded_group(group, [float(request.number % 2), *[1.0] * num_others])
