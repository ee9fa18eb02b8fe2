"""A job in the learner's hands: one attempt, from taking it up to its last word.

A learner process lives for one attempt. It ends when the job ends, when it is told to stop, or when
something breaks; its supervisor starts the next one, which takes up the same job from the last
checkpoint, or the next job of the queue.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.exchange import Delivery, Exchange, Fenced, UnreadableRecord
from protocol.exchange.connection import Refused
from protocol.messages import ActiveJob, JobRecord, JobRef, JobState, Task
from protocol.recipe import Purpose, Recipe
from protocol.tasks import TaskFileError, read_tasks

from deploy.placement import PlacementError, parse
from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.learner.algorithms import UnknownName
from services.learner.checkpoint import Checkpoints, write_whole
from services.learner.control import CancelRequested, Control, StopRequested
from services.learner.evaluation import Evaluator
from services.learner.feeder import Feeder
from services.learner.formulas import check_formulas
from services.learner.intake import Intake
from services.learner.loop import LearnedNothing, Learning, Parts
from services.learner.model_check import UnsupportedModel, check_models, check_split
from services.learner.model_source import ModelNotFound, model_folder
from services.learner.ordering import order_warnings
from services.learner.pretraining import Pretraining
from services.learner.progress import Progress
from services.learner.publish import Publisher
from services.learner.ranks import Team
from services.learner.report import Reporter
from services.learner.scoring import Scoring

log = logging.getLogger(__name__)
MAX_ATTEMPTS_WITHOUT_CHECKPOINT = 3
_FAULTS_OF_A_JOB = (
    LearnedNothing,
    ModelNotFound,
    PlacementError,
    TaskFileError,
    UnknownName,
    UnsupportedModel,
)
_QUEUE_WAIT_S = 1.0


async def work_on_one_job(service: Service, team: Team) -> None:
    """Consumes JOBS; produces one attempt at a job.

    Waits for: a job. Unblocked by: the gateway, or the service stopping.
    """
    service.readiness.set(True)
    while not service.stopping.is_set():
        delivery = await service.exchange.next_job(_QUEUE_WAIT_S)
        if delivery is None:
            continue
        try:
            record = await service.exchange.job(delivery.job_id)
        except UnreadableRecord as unreadable:
            await _set_aside(service.exchange, delivery, str(unreadable))
            continue
        if record is None or record.state.is_final:
            await service.exchange.forget_queued(delivery)
            continue
        await _Attempt(service, team, delivery, record).run()
        return


async def _set_aside(exchange: Exchange, delivery: Delivery[JobRef], error: str) -> None:
    """End a job that nobody here can work on; a release that can read it finds it failed."""
    log.error("a job is set aside", extra={"job": delivery.job_id, "why": error})
    end: dict[str, Any] = {"state": JobState.FAILED, "error": error, "finished_at": time.time()}
    try:
        attempt = await exchange.begin_attempt(delivery.job_id)
        await exchange.close_job(delivery, attempt, **end)
    except (Fenced, Refused):  # it has ended already, or is too damaged for that
        await exchange.forget_queued(delivery)


@dataclass
class _Attempt:
    service: Service
    team: Team
    delivery: Delivery[JobRef]
    record: JobRecord
    number: int = 0

    async def run(self) -> None:
        """Work on the job until it ends or the process must; a broken attempt leaves its reason."""
        exchange, job_id = self.service.exchange, self.delivery.job_id
        self.number = await exchange.begin_attempt(job_id)
        log.info("attempt begins", extra={"job": job_id, "attempt": self.number})
        if self.record.attempts_since_checkpoint >= MAX_ATTEMPTS_WITHOUT_CHECKPOINT:
            await self._end(JobState.FAILED, error=self._last_error())
            return
        try:
            await self._work()
        except CancelRequested:
            await self._end(JobState.CANCELLED)
        except _FAULTS_OF_A_JOB as error:
            await self._end(JobState.FAILED, error=str(error))
        except StopRequested:
            log.info("told to stop; the job goes on in the next attempt")
        except Exception as error:
            await exchange.update_job(job_id, self.number, error=f"{type(error).__name__}: {error}")
            raise

    async def _work(self) -> None:
        learning = await self._prepare()
        parts = learning.parts
        try:
            await _first_to_end(
                learning.learn(),
                parts.feeder.feed_forever(),
                parts.pretraining.feeder.feed_forever(),
                parts.intake.take_in_forever(),
                parts.control.watch_forever(),
                self.team.keep_alive_forever(),
            )
        except StopRequested:
            await learning.save_checkpoint()
            raise
        await self._succeed(learning)

    async def _prepare(self) -> Learning:
        """Load the models and the tasks, restore the last checkpoint, replay the log after it."""
        recipe, deployment = self.record.recipe, self.service.deployment
        check_formulas(recipe)
        train = read_tasks(deployment.files_dir / f"{recipe.tasks.train}.jsonl")
        held_out = self._held_out_tasks(recipe, deployment.files_dir)
        policy, critic = await asyncio.to_thread(_model_folders, recipe, deployment)
        check_models(policy, critic)
        line = os.environ.get("WEIR_GPUS")
        check_split(policy, parse(line) if line else None)
        await self.team.open(policy, recipe, critic)
        learning = self._assemble(recipe, train, held_out)
        await self._restore(learning)
        await self._activate(learning)
        return learning

    async def _activate(self, learning: Learning) -> None:
        exchange, recipe = self.service.exchange, self.record.recipe
        await exchange.update_job(
            self.record.id,
            self.number,
            state=JobState.RUNNING,
            started_at=self.record.started_at or time.time(),
        )
        active = ActiveJob(job_id=self.record.id, attempt=self.number, recipe=recipe)
        await exchange.activate(active)
        message = f"attempt {self.number} begins at step {learning.step}"
        await learning.parts.reporter.say(f"attempt:{self.number}", message)
        for warning in order_warnings(recipe):
            await learning.parts.reporter.say("order", warning, level="warn")

    def _held_out_tasks(self, recipe: Recipe, files: Path) -> tuple[Task, ...]:
        if recipe.evaluation is None or recipe.tasks.held_out is None:
            return ()
        return read_tasks(files / f"{recipe.tasks.held_out}.jsonl")[: recipe.evaluation.tasks]

    def _assemble(
        self, recipe: Recipe, train: tuple[Task, ...], held_out: tuple[Task, ...]
    ) -> Learning:
        exchange, job_id, attempt = self.service.exchange, self.record.id, self.number
        intake = Intake(exchange, job_id, attempt, self._folder / "log")

        def feeder(purpose: Purpose) -> Feeder:
            def is_answered(number: int) -> bool:
                return bool(intake.have(purpose, [number]))

            return Feeder(exchange.ask, job_id, attempt, recipe, train, purpose, is_answered)

        critic = self._folder / "critic-pretrained"
        parts = Parts(
            exchange=exchange,
            team=self.team,
            control=Control(self.service, job_id),
            feeder=feeder(Purpose.TRAIN),
            pretraining=Pretraining(recipe, feeder(Purpose.PRETRAIN), critic),
            intake=intake,
            evaluator=Evaluator(exchange, job_id, attempt, recipe, held_out),
            publisher=Publisher(exchange, job_id, attempt, self.service.deployment.weights_dir),
            checkpoints=Checkpoints(self._folder / "checkpoints"),
            reporter=Reporter(exchange, job_id),
        )
        scoring = Scoring.of(recipe)
        return Learning(job_id, attempt, recipe, parts, scoring, replay_until=self.record.step)

    async def _restore(self, learning: Learning) -> None:
        parts, first_segment = learning.parts, ""
        if (newest := parts.checkpoints.newest()) is not None:
            folder, state = newest
            await self.team.load(folder)
            learning.progress, learning.saved = Progress.of(state), folder.name
            first_segment = state.first_segment
        positions = learning.progress.positions
        logged = parts.intake.replay(first_segment, positions)
        there = parts.intake.keys_waiting() | await parts.exchange.under_way(self.record.id)
        for feeder in (parts.feeder, parts.pretraining.feeder):
            feeder.resume(positions[feeder.purpose], there)
        parts.evaluator.begun = learning.progress.evaluated
        log.info("restored", extra={"step": learning.step, "logged_groups": logged})

    async def _succeed(self, learning: Learning) -> None:
        """Save the final weights beside a last checkpoint, and say how it went."""
        learning.drop_leftovers()
        if not learning.is_saved:
            await learning.save_checkpoint()
        models = {"model": self._folder / "model"}
        await write_whole(models["model"], self.team.export)
        if self.record.recipe.critic is not None:
            models["critic"] = self._folder / "critic"
            await write_whole(models["critic"], self.team.export_critic)
        await self._end(JobState.SUCCEEDED, result=await _result(learning, models))
        await learning.parts.publisher.withdraw()

    @property
    def _folder(self) -> Path:
        return self.service.deployment.job_dir(self.record.id)

    def _last_error(self) -> str:
        reason = self.record.error or "its process was killed or ran out of memory"
        return (
            f"the learner died {self.record.attempts_since_checkpoint} times without a new "
            f"checkpoint; the last time: {reason}"
        )

    async def _end(self, state: JobState, **values: Any) -> None:
        exchange, job_id = self.service.exchange, self.record.id
        reporter = Reporter(exchange, job_id)
        level = "error" if state is JobState.FAILED else "info"
        message = f"{state}: {values['error']}" if "error" in values else str(state)
        await reporter.say(f"end:{state}", message, level=level)
        await exchange.close_job(
            self.delivery, self.number, state=state, finished_at=time.time(), **values
        )
        log.info("job ends", extra={"job": job_id, "state": state})


def _model_folders(recipe: Recipe, deployment: Deployment) -> tuple[Path, Path | None]:
    """Where the policy starts from, and the critic if there is one."""
    policy = model_folder(recipe.model.path, deployment)
    if recipe.critic is None:
        return policy, None
    if recipe.critic.path is None:
        return policy, policy
    return policy, model_folder(recipe.critic.path, deployment, "critic.path")


async def _result(learning: Learning, models: Mapping[str, Path]) -> dict[str, Any]:
    """What the job's record says in the end."""
    totals, evaluations = learning.progress.totals, learning.progress.evaluations
    seconds = max(totals["train_seconds"], 1e-9)
    result: dict[str, Any] = {
        **{name: str(folder) for name, folder in models.items()},
        "checkpoint": str(learning.parts.checkpoints.folder / learning.saved),
        "steps": learning.step,
        "train_seconds": totals["train_seconds"],
        "samples_per_second": totals["samples"] / seconds,
        "tokens_per_second": totals["tokens"] / seconds,
        "trained_tokens": int(totals["tokens"]),
        "parity_max_abs": totals["parity_max"],
        "parity_tokens": int(totals["parity_tokens"]),
        "groups": await learning.account(Purpose.TRAIN),
        "evaluation_groups": await learning.account(Purpose.EVAL),
        "evaluated": learning.progress.evaluated,
        "evaluations": evaluations,
    }
    if learning.recipe.num_pretrain_steps:
        result["pretraining_groups"] = await learning.account(Purpose.PRETRAIN)
    if evaluations:
        result |= {
            f"{name}_{when}": evaluation[name]
            for when, evaluation in (("before", evaluations[0]), ("after", evaluations[-1]))
            for name in ("accuracy", "process")
        }
    return result


async def _first_to_end(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run side by side until one ends or raises; then stop the others."""
    tasks = {asyncio.create_task(coroutine) for coroutine in coroutines}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        # A library may take one cancellation for a timeout of its own, and go on.
        while running := {task for task in tasks if not task.done()}:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=1.0)
