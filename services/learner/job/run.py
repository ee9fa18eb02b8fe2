"""One attempt at a job, from its beginning to the record of its end.

A job fails only by a fault of its own. A fault of the machine pauses it until an attempt finds the
machine repaired; other jobs run meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from protocol.exchange import Delivery
from protocol.messages import (
    Doing,
    ErrorKind,
    FailureKind,
    Fault,
    JobRecord,
    JobRef,
    JobState,
    Requested,
)
from protocol.recipe import Purpose, Recipe

from services.chassis.cost import report_attempt_forever
from services.chassis.renderer import PromptRenderer
from services.chassis.service import Service, run_until_first_ends
from services.learner.attempt import Attempt
from services.learner.durable.checkpoint import write_whole
from services.learner.durable.publish import withdraw
from services.learner.faults import classify_fault, describe_fault, fault_key
from services.learner.job.assembly import prepare
from services.learner.job.control import (
    CancelRequested,
    Control,
    Interruption,
    PauseRequested,
    StopRequested,
)
from services.learner.job.learning import Learning
from services.learner.job.limits import watch_budget_forever, watch_engines_forever
from services.learner.ordering import order_warnings
from services.learner.planning.footprint import limit_micro_batches, smaller_token_budget
from services.learner.training.models import write_merged
from services.learner.training.ranks import Team, machine_errors

log = logging.getLogger(__name__)
_MAX_FAILURES = 3  # attempts in a row without progress; a fault that recurs twice is the job's
_MAX_SILENT_ATTEMPTS = 3  # in a row, before a warning: one or two may be restarts of the machine
_RETRY_HEARTBEATS = 5  # a few seconds before the machine is tried again
_MICRO_BATCHES_TOO_LARGE = (
    "out of memory: {}; micro-batches can be no smaller, for a sample may have model.max_context = "
    "{} tokens. Lower that or training.logprob_chunk_tokens, set training.recompute_activations = "
    "true, raise optimizer.zero_stage or training.sequence_parallel if there are several GPUs, or "
    "give the learner more memory; `weir plan` shows what fits"
)


async def run(
    service: Service,
    team: Team,
    prompts: PromptRenderer,
    delivery: Delivery[JobRef],
    record: JobRecord,
) -> None:
    """Make an attempt at a job and record how it ends; raise if the process has to end."""
    number = await service.exchange.begin_attempt(record.id)
    log.info("attempt begins", extra={"job": record.id, "attempt": number})
    folder = service.deployment.job_dir(record.id)
    attempt = Attempt(service.exchange, record.id, number, record.recipe, folder)
    job_run = Run(service, team, prompts, delivery, record, attempt)
    heartbeat_s = service.deployment.heartbeat_s
    reporting = report_attempt_forever(service.exchange, record.id, heartbeat_s)
    try:
        await run_until_first_ends(job_run.work(), reporting)
    except Exception as error:
        await job_run.finish(error)


@dataclass
class Run:
    """An attempt; ``record`` is the job's record before it."""

    service: Service
    team: Team
    prompts: PromptRenderer
    delivery: Delivery[JobRef]
    record: JobRecord
    attempt: Attempt

    async def work(self) -> None:
        """Run the job to its success, or raise the error that ends the attempt."""
        if self.record.requested is Requested.CANCEL:
            raise CancelRequested
        await self._warn_of_silence()
        activity = self.service.activity
        activity.set_idle(Doing.WORKS)
        with activity.during(Doing.LOADS_MODEL):
            control = Control(self.service, self.attempt.job_id)
            assembly = await run_until_first_ends(
                prepare(self.service, self.team, self.prompts, control, self.attempt, self.record),
                control.end_preparation(),
            )
            await self._activate(assembly.learning)
        learning = assembly.learning
        try:
            await run_until_first_ends(
                learning.learn(assembly.phases),
                *(feeder.feed_forever() for feeder in assembly.feeders),
                learning.intake.take_in_forever(),
                learning.control.watch_forever(),
                learning.versions.watch_forever(),
                learning.parity.watch_forever(),
                watch_budget_forever(self.service, learning),
                watch_engines_forever(self.service, learning, self.record.fault),
            )
            await self._succeed(learning)
        except PauseRequested as pause:
            await self.save_before_pause(learning, pause)
            raise
        except StopRequested:
            await learning.versions.save_if_ahead()
            raise
        except CancelRequested:
            await self._save_for_later_jobs(learning)
            raise
        finally:
            await learning.versions.abandon()
            await learning.versions.publisher.stop()

    async def save_before_pause(self, learning: Learning, pause: PauseRequested) -> None:
        """Write a checkpoint; end a pause for the client's silence if that fails.

        The job is then paused for the machine's fault, and must be able to resume by itself.
        """
        try:
            await learning.versions.save()
        except Exception:
            if pause.error is not None and pause.error.kind is ErrorKind.SILENT_CLIENT:
                await self.service.exchange.request_state(self.record.id, Requested.RUN)
            raise

    async def _warn_of_silence(self) -> None:
        num_silent = self.record.attempts_since_checkpoint
        if num_silent < _MAX_SILENT_ATTEMPTS:
            return
        message = (
            f"{num_silent} attempts in a row ended without an error and without progress: the "
            "learner was killed, perhaps for lack of memory (then lower "
            "training.micro_batch_tokens, or give its machine more), or it lost Redis; another "
            "attempt begins"
        )
        await self.attempt.warn(f"silent:{self.record.step}", message)

    async def _activate(self, learning: Learning) -> None:
        attempt = self.attempt
        record = self.record
        started_at = record.started_at or time.time()
        await attempt.update(state=JobState.RUNNING, error=None, fault=None, started_at=started_at)
        await attempt.exchange.activate(attempt.active)
        message = f"attempt {attempt.number} begins at step {learning.progress.step}"
        event_id = f"attempt:{attempt.number}"
        # A job that the machine pauses may be tried many times.
        if record.state is JobState.PAUSED and record.error is not None:
            event_id = f"again:{record.step}"
        await attempt.report(event_id, message, begins=True)
        for warning in order_warnings(attempt.recipe):
            await attempt.warn("order", warning)

    async def _succeed(self, learning: Learning) -> None:
        if learning.recipe.only_evaluates:
            await learning.versions.store.sync()
            await self._end(JobState.SUCCEEDED, result=await _common_result(learning))
            return
        learning.drop_surplus()
        await learning.versions.save_if_ahead()
        folder = self.attempt.folder
        models: dict[str, Path] = {}
        with self.service.activity.during(Doing.WRITES_MODEL):
            for name, write in _model_writers(self.record.recipe, self.team, folder).items():
                models[name] = folder / name
                await write_whole(models[name], write, attempt=self.attempt.number)
        await self._end(JobState.SUCCEEDED, result=await _result(learning, models))

    async def _save_for_later_jobs(self, learning: Learning) -> None:
        """Save a cancelled job's last checkpoint for other jobs, if the disk allows it."""
        try:
            if learning.progress.step > 0 and not learning.progress.is_replayed:
                await learning.versions.save_if_ahead()
        except OSError as error:
            log.exception("no last checkpoint")
            message = f"its last checkpoint is lost: {error}"
            await self.attempt.warn("unsaved", message)

    async def finish(self, error: Exception) -> None:
        """Record the end of the attempt: only the job's own faults count against the job.

        Raises:
            Exception: ``error`` if the process has to end by it.
        """
        fault = classify_fault(error)
        if isinstance(error, Interruption):
            await self._obey(error)
        elif fault is Fault.JOB:
            await self._end(JobState.FAILED, error=describe_fault(error))
        elif fault is Fault.MEMORY:
            await self._shrink_micro_batches(str(error))
        elif fault in {Fault.MACHINE, Fault.ENGINES}:
            log.error("the machine's fault", exc_info=error)
            await self._pause_for_machine(describe_fault(error), fault_key(error), fault)
        elif fault is Fault.NOBODY or not await self._count_failure(describe_fault(error)):
            raise error

    async def _obey(self, interruption: Interruption) -> None:
        if isinstance(interruption, CancelRequested):
            await self._end(JobState.CANCELLED)
        elif isinstance(interruption, PauseRequested):
            attempt = self.attempt
            error = interruption.error
            if await attempt.exchange.pause_job(attempt.job_id, attempt.number, error):
                await attempt.report(f"paused:{attempt.number}", str(JobState.PAUSED))
        else:
            await self.attempt.update(attempts_since_checkpoint=0)

    async def _end(self, state: JobState, error: str | None = None, **values: Any) -> None:
        if state is JobState.FAILED:
            # A failed job may be resumed, and fail again.
            event_id = f"end:{state}:{self.attempt.number}"
            await self.attempt.report(event_id, f"{state}: {error}", level="error")
        else:
            await self.attempt.report(f"end:{state}", str(state))
        values |= {"state": state, "error": error, "fault": None, "finished_at": time.time()}
        await self.service.exchange.close_job(self.delivery, self.attempt.number, **values)
        await withdraw(self.service.deployment, self.record.id)
        log.info("job ends", extra={"job": self.record.id, "state": state})

    async def _pause_for_machine(self, problem: str, key: str, fault: Fault) -> None:
        """Pause the job until another attempt is worthwhile.

        Args:
            problem: the problem, and the remedy.
            key: the same for the same problem; there is one event per step and key.
            fault: the fault of the attempt.
        """
        self.service.readiness.set(False, problem)
        exchange = self.service.exchange
        if await exchange.pause_job(self.record.id, self.attempt.number, problem, fault):
            step = (await self._read_record()).step
            message = f"paused at step {step}: {problem}. It resumes by itself after the repair"
            await self.attempt.warn(f"machine:{step}:{key}", message)
        # The next attempt, at this job or another one, may meet the same problem.
        await self.service.pause(_RETRY_HEARTBEATS * self.service.deployment.heartbeat_s)

    async def _shrink_micro_batches(self, error: str) -> None:
        """Halve the tokens of a micro-batch for the next attempt, if it can be smaller."""
        recipe = limit_micro_batches(self.record.recipe, self.record.micro_batch_tokens)
        tokens = smaller_token_budget(recipe)
        if tokens is None:
            problem = _MICRO_BATCHES_TOO_LARGE.format(error, recipe.model.max_context)
            await self._pause_for_machine(problem, "memory", Fault.MEMORY)
            return
        await self.attempt.update(micro_batch_tokens=tokens, attempts_since_checkpoint=0)
        message = (
            f"attempt {self.attempt.number} ran out of memory: {error}. It continues from the last "
            f"checkpoint with micro-batches of at most {tokens} tokens instead of "
            f"training.micro_batch_tokens = {recipe.training.micro_batch_tokens}"
        )
        await self.attempt.warn(f"memory:{self.attempt.number}", message)

    async def _count_failure(self, reason: str) -> bool:
        """Count a failure without a step or checkpoint since the last; return if the job ends."""
        failures = (await self._read_record()).failures + 1
        if failures >= _MAX_FAILURES:
            error = f"{failures} attempts in a row broke without progress; the last one: {reason}"
            await self._end(JobState.FAILED, error=error)
            return True
        await self.attempt.update(
            failures=failures, attempts_since_checkpoint=0, error=reason, fault=None
        )
        number = self.attempt.number
        message = f"attempt {number} broke, {failures} of {_MAX_FAILURES} in a row: {reason}"
        await self.attempt.warn(f"broke:{number}", message)
        return False

    async def _read_record(self) -> JobRecord:
        return await self.service.exchange.job(self.record.id) or self.record


def _model_writers(
    recipe: Recipe, team: Team, folder: Path
) -> dict[str, Callable[[Path], Awaitable[None]]]:
    """Return the writers of the models of a job's result, by folder name, in order."""
    writers: dict[str, Callable[[Path], Awaitable[None]]] = {"model": team.export}
    if team.adapts is not None and recipe.model.lora is not None and recipe.model.lora.merge:
        base = team.adapts

        def merge(target: Path) -> None:
            with machine_errors(target):
                write_merged(base, folder / "adapter", recipe.model.dtype, target)

        writers = {"adapter": team.export, "model": partial(asyncio.to_thread, merge)}
    if recipe.critic is not None:
        writers["critic"] = team.export_critic
    return writers


async def _common_result(learning: Learning) -> dict[str, Any]:
    progress = learning.progress
    return {
        "bill": await learning.make_bill(),
        "evaluation_groups": await learning.group_account(Purpose.EVAL),
        "evaluated": progress.evaluated,
        "evaluations": progress.evaluations,
    }


async def _result(learning: Learning, models: Mapping[str, Path]) -> dict[str, Any]:
    progress = learning.progress
    versions = learning.versions
    totals = progress.totals
    ledger = progress.ledgers[Purpose.TRAIN]
    evaluations = [result for result in progress.evaluations if "name" not in result]
    seconds = max(totals["train_seconds"], 1e-9)
    result: dict[str, Any] = {
        **await _common_result(learning),
        **{name: str(folder) for name, folder in models.items()},
        "checkpoint": str(versions.checkpoints.folder / versions.saved),
        "steps": progress.step,
        "train_seconds": totals["train_seconds"],
        "samples_per_second": totals["samples"] / seconds,
        "tokens_per_second": totals["tokens"] / seconds,
        "trained_tokens": int(totals["tokens"]),
        "parity_max_abs": totals["parity_max"],
        "parity_tokens": int(totals["parity_tokens"]),
        "unworkable": ledger.dropped.get(FailureKind.UNWORKABLE, 0) / max(1, ledger.position),
        "groups": await learning.group_account(Purpose.TRAIN),
    }
    if learning.recipe.num_pretrain_steps:
        result["pretraining_groups"] = await learning.group_account(Purpose.PRETRAIN)
    if evaluations:
        for when, place in (("before", 0), ("after", -1)):
            for name in ("accuracy", "process"):
                result[f"{name}_{when}"] = evaluations[place][name]
    return result
