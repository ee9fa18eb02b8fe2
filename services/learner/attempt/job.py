"""A job in the learner's hands: one attempt, from taking it up to its last word.

A learner process lives for one attempt. It ends when the job ends or is paused, when it is told to
stop, or when something breaks; its supervisor starts the next one, which takes up the same job from
the last checkpoint, or the next job of the queue that can run.

Only what the user asked for, or what broke in the job itself, ends a job as failed. What is wrong
with the machine holds it up, until an attempt finds that mended; the other jobs go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.exchange import Delivery, Disconnected, Exchange, Fenced, UnreadableRecord
from protocol.exchange.connection import Refused
from protocol.messages import ActiveJob, JobRecord, JobRef, JobState, Requested, Task
from protocol.recipe import Purpose, Recipe
from protocol.tasks import TaskFileError

from services.chassis.metrics import DEVICES, PHASES
from services.chassis.service import Service
from services.learner.algorithms import UnknownName
from services.learner.attempt.control import (
    CancelRequested,
    Control,
    PauseRequested,
    StopRequested,
    Wish,
)
from services.learner.attempt.engines import watch_engines_forever
from services.learner.attempt.evaluation import Evaluator
from services.learner.attempt.inputs import checked_models, tasks_of
from services.learner.attempt.lease import Role
from services.learner.attempt.loop import Learning
from services.learner.attempt.outcome import Outcome
from services.learner.attempt.parts import Parts
from services.learner.attempt.pretraining import Pretraining
from services.learner.attempt.report import Reporter
from services.learner.durable.checkpoint import (
    Checkpoints,
    LearnerState,
    remove_leftovers,
    write_whole,
)
from services.learner.durable.progress import LearnedNothing, Progress
from services.learner.durable.publish import Publisher, sweep
from services.learner.durable.sample_store import SampleStore, remove_old
from services.learner.faults import MachineFault, cause_of, machine_fault
from services.learner.formulas import check_formulas
from services.learner.model_source import NotOnHub
from services.learner.ordering import order_warnings
from services.learner.supply.feeder import Feeder
from services.learner.supply.intake import Intake
from services.learner.supply.lost import NothingCanWork
from services.learner.training.flops import Flops
from services.learner.training.model_check import UnsupportedModel
from services.learner.training.models import write_merged
from services.learner.training.ranks import Team, TeamBroken
from services.learner.training.scoring import Scoring

log = logging.getLogger(__name__)
_FAULTS_OF_THE_USER = (
    *(LearnedNothing, NothingCanWork, NotOnHub, TaskFileError),
    *(UnknownName, UnsupportedModel),
)
_QUEUE_WAIT_S = 1.0
_PHASES = (
    *("idle", "wait_for_groups", "train", "pretrain", "publish", "checkpoint", "evaluate"),
    "keep_samples",
)


async def work_on_one_job(service: Service, team: Team) -> None:
    """Consumes JOBS; produces one attempt at a job.

    Waits for: the learner's role, then a job. Unblocked by: the end of another learner, the
    gateway, or the service stopping.
    """
    PHASES.name(*_PHASES, rest="other")
    DEVICES.set(team.num_ranks)
    await _first_to_end(_work_in_role(service, team), team.keep_alive_forever())


async def _work_in_role(service: Service, team: Team) -> None:
    role = Role(service)
    if await role.acquire():
        service.readiness.set(True)
        service.activity.rests("waits for a job", "waiting")
        await _first_to_end(_take_up_one_job(service, team), role.hold_forever())
        await role.release()


async def _take_up_one_job(service: Service, team: Team) -> None:
    await sweep(service.exchange, service.deployment.weights_dir)
    while not service.stopping.is_set():
        with PHASES.during("idle"):
            delivery = await service.exchange.next_job(_QUEUE_WAIT_S)
        if delivery is None:
            continue
        try:
            record = await service.exchange.job(delivery.job_id)
        except UnreadableRecord as unreadable:
            await _set_aside(service.exchange, delivery, str(unreadable))
            continue
        if record is None or record.state.is_final:  # since just now
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
    record: JobRecord  # as it was before
    number: int = 0

    async def run(self) -> None:
        """Work on the job until it ends or the process must; whatever ends it leaves its reason."""
        self.number = await self.service.exchange.begin_attempt(self.record.id)
        log.info("attempt begins", extra={"job": self.record.id, "attempt": self.number})
        outcome = Outcome(self.service, self.delivery, self.record, self.number)
        try:
            await self._work(outcome)
        except Wish as wish:
            await outcome.obey(wish)
        except _FAULTS_OF_THE_USER as error:
            await outcome.end(JobState.FAILED, error=str(error))
        except (*Disconnected, Fenced, TeamBroken):
            raise  # no fault of the job, and nobody to tell or nothing to say
        except Exception as error:
            problem = machine_fault(error, self.service.deployment.data_dir)
            if problem is not None:
                log.exception("the machine's fault")
                await outcome.hold_up(problem, cause_of(error))
            elif not await outcome.fail(error):
                raise

    async def _work(self, outcome: Outcome) -> None:
        if self.record.requested is Requested.CANCEL:  # whatever else may be wrong
            raise CancelRequested
        await outcome.tell_of_silence()
        activity = self.service.activity
        activity.rests(f"works on {self.record.id}")
        with activity.during("loads the model", "starting"):
            learning = await self._prepare()
        parts = learning.parts
        try:
            await _first_to_end(
                learning.learn(),
                parts.feeder.feed_forever(),
                parts.pretraining.feeder.feed_forever(),
                parts.intake.take_in_forever(),
                parts.control.watch_forever(),
                watch_engines_forever(self.service, learning, self.record.error),
            )
        except (PauseRequested, StopRequested):
            await learning.save_checkpoint()
            raise
        except CancelRequested:
            await self._save_for_others(learning)
            raise
        await self._succeed(learning, outcome)

    async def _prepare(self) -> Learning:
        """Load the models and the tasks, restore the last checkpoint, replay the log after it."""
        recipe, deployment = self.record.recipe, self.service.deployment
        for folder in (self._folder, self._folder / "checkpoints"):
            await asyncio.to_thread(remove_leftovers, folder, self.number)
        await asyncio.to_thread(remove_old, deployment)
        check_formulas(recipe)
        train, held_out = await asyncio.to_thread(tasks_of, recipe, deployment.files_dir)
        policy, critic = await asyncio.to_thread(checked_models, recipe, deployment)
        await self.team.open(policy, recipe, critic)
        flops = Flops.of_models(recipe, policy, critic, self.team.num_ranks, self.team.device_name)
        learning = self._assemble(recipe, train, held_out, flops)
        await asyncio.to_thread(learning.parts.store.keep_tokenizer, policy)
        await asyncio.to_thread(learning.parts.store.keep_recipe, recipe)
        await self._restore(learning)
        await self._activate(learning)
        return learning

    async def _activate(self, learning: Learning) -> None:
        exchange, recipe = self.service.exchange, self.record.recipe
        await exchange.update_job(
            self.record.id,
            self.number,
            state=JobState.RUNNING,
            error=None,
            started_at=self.record.started_at or time.time(),
        )
        active = ActiveJob(job_id=self.record.id, attempt=self.number, recipe=recipe)
        await exchange.activate(active)
        message = f"attempt {self.number} begins at step {learning.step}"
        event_id = f"attempt:{self.number}"
        if self.record.state is JobState.PAUSED and self.record.error is not None:
            event_id = f"again:{self.record.step}"  # it may be one of many tries
        await learning.parts.reporter.say(event_id, message)
        for warning in order_warnings(recipe):
            await learning.parts.reporter.say("order", warning, level="warn")

    def _assemble(
        self,
        recipe: Recipe,
        train: tuple[Task, ...],
        held_out: tuple[Task, ...],
        flops: Flops,
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
            checkpoints=Checkpoints(self._folder / "checkpoints", attempt),
            store=SampleStore(self._folder / "samples", attempt, self.service.deployment),
            reporter=Reporter(exchange, job_id),
            flops=flops,
        )
        scoring = Scoring.of(recipe)
        return Learning(job_id, attempt, recipe, parts, scoring, replay_until=self.record.step)

    async def _restore(self, learning: Learning) -> None:
        parts, first_segment = learning.parts, ""
        if (newest := await self._newest_checkpoint(parts)) is not None:
            folder, state = newest
            await self.team.load(folder)
            learning.progress, learning.saved = Progress.of(state), folder.name
            first_segment = state.first_segment
        positions = learning.progress.positions
        logged = await asyncio.to_thread(parts.intake.replay, first_segment, positions)
        there = parts.intake.keys_waiting() | await parts.exchange.under_way(self.record.id)
        for feeder in (parts.feeder, parts.pretraining.feeder):
            feeder.resume(positions[feeder.purpose], there)
        parts.evaluator.begun = learning.progress.evaluated
        log.info("restored", extra={"step": learning.step, "logged_groups": logged})

    async def _newest_checkpoint(self, parts: Parts) -> tuple[Path, LearnerState] | None:
        """The newest whole one; people hear of newer ones that are damaged."""
        newest = await asyncio.to_thread(parts.checkpoints.newest)
        if newest is None:
            if self.record.step > self.record.recipe.training.checkpoint_every:
                raise MachineFault(
                    f"{parts.checkpoints.folder} has no checkpoint, though {self.record.step} "
                    "steps were made; mount or restore that folder, or cancel the job"
                )
            return None
        folder, state = newest
        for damaged, how in parts.checkpoints.damaged.items():
            message = f"the checkpoint {damaged} is damaged, {how}; it goes on from {folder}"
            await parts.reporter.say(f"damaged:{damaged.name}", message, level="warn")
        if state.ranks not in (None, self.team.num_ranks):
            raise MachineFault(
                f"{folder} was saved by {state.ranks} ranks, but the learner has "
                f"{self.team.num_ranks}; in WEIR_GPUS give it {state.ranks} GPUs again, or where "
                f"there are none set WEIR_LEARNER_RANKS={state.ranks}"
            )
        return newest

    async def _save_for_others(self, learning: Learning) -> None:
        """What a cancelled job has learned stays for other jobs, if the disk takes it."""
        try:
            if learning.is_ahead:
                await learning.save_checkpoint()
        except OSError as error:
            log.exception("no last checkpoint")
            message = f"its last checkpoint is lost: {error}"
            await learning.parts.reporter.say("unsaved", message, level="warn")

    async def _succeed(self, learning: Learning, outcome: Outcome) -> None:
        """Save the final weights beside a last checkpoint, and say how it went."""
        learning.drop_leftovers()
        if not learning.is_saved:
            await learning.save_checkpoint()
        models = {"model": self._folder / "model"}
        with self.service.activity.during("writes the model"):
            if (lora := self.record.recipe.model.lora) is not None and lora.merge:
                models["adapter"] = self._folder / "adapter"
                await write_whole(models["adapter"], self.team.export, attempt=self.number)
                await write_whole(models["model"], self._merge, attempt=self.number)
            else:
                await write_whole(models["model"], self.team.export, attempt=self.number)
            if self.record.recipe.critic is not None:
                models["critic"] = self._folder / "critic"
                await write_whole(models["critic"], self.team.export_critic, attempt=self.number)
        await outcome.end(JobState.SUCCEEDED, result=await _result(learning, models))

    async def _merge(self, target: Path) -> None:
        """Write the model that the job started from, with the adapter that it has trained."""
        assert self.team.adapts is not None
        adapter, dtype = self._folder / "adapter", self.record.recipe.model.dtype
        await asyncio.to_thread(write_merged, self.team.adapts, adapter, target, dtype)

    @property
    def _folder(self) -> Path:
        return self.service.deployment.job_dir(self.record.id)


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
    for task in tasks:  # several may fail at once, or while this is being cancelled itself
        task.add_done_callback(_take_note)
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


def _take_note(task: asyncio.Task[None]) -> None:
    """Retrieve a task's error, so that asyncio does not report it as one that nobody saw."""
    if not task.cancelled():
        task.exception()
