"""Attempts at a job by the real learner, but for its ranks, with a stand-in that answers it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
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
    Task,
)
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS

from services.chassis.renderer import PromptRenderer
from services.chassis.service import Service
from services.learner.job.role import work_on_one_job
from services.learner.training.ranks import Team
from tests.architecture.project import ROOT
from tests.builders import a_graded_group, a_group, a_job_record, a_recipe, a_task
from tests.contract.exchange_steps import PATIENCE_S, a_deployment, record_of, until
from tests.contract.fake_team import FakeTeam, Stalling
from tests.inline_prompts import InlinePrompts

CUDA_ERROR = (FailureKind.FAILURES, "RuntimeError: CUDA error")


@dataclass
class Learner:
    """A learner that is started again and again, as a supervisor does, with a team of one kind.

    Where it has the server's ``url``, a graded group answers every request of the active job while
    an attempt runs. Requests whose keys are ``failing`` fail.
    """

    exchange: Exchange
    data_dir: Path
    make_team: Callable[[], FakeTeam] = FakeTeam
    url: str = ""
    models: Path = ROOT / "examples/arithmetic"
    is_confined: bool = False  # what renders prompts, which takes a second to start
    claim_idle_s: float = 1.0
    failing: Collection[str] = ()
    failure: tuple[FailureKind, str] = CUDA_ERROR
    num_answerers: int = 1
    answers_training: bool = True
    answers_evaluations: bool = True
    max_answers: int = 10**9
    answers: Counter[str] = field(default_factory=Counter, init=False)  # by the request's key
    service: Service = field(init=False)  # of the last attempt
    team: FakeTeam = field(init=False)

    def start(self, team: FakeTeam | None = None) -> asyncio.Task[None]:
        """Begin an attempt."""
        deployment = a_deployment(
            self.data_dir,
            model_roots=(self.models,),
            heartbeat_s=0.05,
            keep_samples_bytes=10**9,
            claim_idle_s=self.claim_idle_s,
        )
        self.service = Service("learner", deployment, self.exchange)
        self.team = team or self.make_team()
        return asyncio.create_task(self._attempt(self.service, self.team))

    async def attempt(self, *failing: str) -> JobRecord:
        """One attempt, to its end; return the record as it is then."""
        self.failing = failing
        async with asyncio.timeout(PATIENCE_S):
            await self.start()
        return await self.record()

    @asynccontextmanager
    async def attempting(self) -> AsyncIterator[asyncio.Task[None]]:
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
        running = self.start(team)

        def is_written() -> bool:
            """Checkpoints are written beside the steps, and the log is cut after them."""
            return not list((self.job_dir / "checkpoints").glob(".*")) and all(
                path.name >= with_log_from for path in (self.job_dir / "log").glob("*.segment")
            )

        async with asyncio.timeout(PATIENCE_S):
            await team.stalls.wait()
        await until(is_written)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    async def submit(
        self, job_id: str = "job", tables: Mapping[str, Any] | None = None, **training: Any
    ) -> None:
        """Queue a job with a task file of its own; ``tables`` are further ones of its recipe."""
        write_tasks(self.data_dir / "files", (a_task(id=f"task-{number}") for number in range(5)))
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

    async def uninterrupted(self, tables: Mapping[str, Any] | None = None, **training: Any) -> str:
        """What the model of the job is in the end if nothing happens to it."""
        other = Learner(self.exchange, self.data_dir / "other", url=self.url)
        await other.submit("other", tables, **training)
        await other.start()
        return other.team.digest

    async def paused_and_resumed(self, *failing: str) -> None:
        record = await self.attempt(*failing)
        assert record.state is JobState.PAUSED
        await self.exchange.request_state("job", Requested.RUN)

    async def record(self) -> JobRecord:
        return await record_of(self.exchange)

    async def events(self, kind: str = "") -> list[JobEvent]:
        """The events whose ids begin with ``kind``."""
        rows = await self.exchange.events("job")
        return [event for _, event in rows if event.id.startswith(kind)]

    async def warning(self) -> str:
        """The only one that there was."""
        (warning,) = (event.message for event in await self.events() if event.level == "warn")
        return warning

    async def is_ready(self) -> bool:
        return self.service.readiness.ready

    async def reach(self, step: int) -> None:
        """Wait until the job has made so many steps."""

        async def has_made() -> bool:
            return (await self.record()).step >= step

        await until(has_made)

    @property
    def job_dir(self) -> Path:
        return self.data_dir / "jobs" / "job"

    @property
    def checkpoints(self) -> list[Path]:
        return sorted((self.job_dir / "checkpoints").glob("step-*"))

    async def _attempt(self, service: Service, team: FakeTeam) -> None:
        prompts = PromptRenderer(1) if self.is_confined else InlinePrompts()
        answering = {
            asyncio.create_task(self._answer_forever(f"answerer-{number}"))
            for number in range(self.num_answerers)
        }
        try:
            async with prompts:
                await work_on_one_job(service, cast(Team, team), prompts)
        finally:
            for answerer in answering:
                answerer.cancel()
            await asyncio.wait(answering)

    async def _answer_forever(self, name: str) -> None:
        if not self.url:
            return
        async with connect(self.url, me=name, patience_s=PATIENCE_S) as exchange:
            while True:
                await self._answer(exchange)

    async def _answer(self, exchange: Exchange) -> None:
        streams = [EVAL_REQUESTS] * self.answers_evaluations + [REQUESTS] * self.answers_training
        active = await exchange.active()
        if active is None or not streams:
            await asyncio.sleep(0.01)
            return
        count = min(8, self.max_answers - self.answers.total())
        if count == 0:
            await asyncio.sleep(0.01)
            return
        claimed = await exchange.claim(streams, active.job_id, count=count, wait_s=0.02)
        for stream in streams:
            claimed += await exchange.reclaim(stream, active.job_id, count=8, leases=claimed)
        for delivery in claimed:
            request = delivery.message()
            if (version := await _find_version(exchange, request)) is not None:
                answer = an_answer(request, version)
                if request.key in self.failing:
                    answer = delivery.as_failed(*self.failure)
                await exchange.hand_off(delivery, GRADED, answer)
                self.answers[request.key] += 1


def write_tasks(folder: Path, tasks: Iterable[Task], name: str = "train") -> None:
    """With a blank line before the tasks, so the first one is in line 2."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(task.model_dump(exclude_none=True)) + "\n" for task in tasks)
    (folder / f"{name}.jsonl").write_text("\n" + "".join(lines))


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
    group = a_group(
        request,
        [1 + request.number % 3, *[2] * num_others],
        version=version,
    )
    return a_graded_group(group, [float(request.number % 2), *[1.0] * num_others])
