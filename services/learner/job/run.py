"""One attempt at a job, from its beginning to its last word.

Only what the user asked for, or what broke in the job itself, ends a job as failed. What is wrong
with the machine holds it up, until an attempt finds that mended; other jobs run meanwhile.
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

from services.chassis.renderer import PromptRenderer
from services.chassis.service import Service
from services.learner.attempt import Attempt
from services.learner.durable.checkpoint import write_whole
from services.learner.durable.publish import withdraw
from services.learner.faults import cause_of, fault_of, words_of
from services.learner.job.assembly import prepare
from services.learner.job.control import (
    CancelRequested,
    Control,
    PauseRequested,
    StopRequested,
    Wish,
    first_to_end,
)
from services.learner.job.learning import Learning
from services.learner.job.limits import watch_engines_forever
from services.learner.ordering import order_warnings
from services.learner.planning.footprint import limit_micro_batches, smaller_token_budget
from services.learner.training.models import write_merged
from services.learner.training.ranks import Team, machine_errors

log = logging.getLogger(__name__)
_MOST_FAILURES = 3  # in a row, without progress
_SILENT_ATTEMPTS = 3  # in a row, before a warning
_RETRY_HEARTBEATS = 5  # a few seconds
_NO_SMALLER = (
    "out of memory: {}; micro-batches can be no smaller, for a sample may have model.max_context = "
    "{} tokens. Lower that or training.logprob_chunk_tokens, set training.recompute_activations, "
    "raise optimizer.zero_stage or training.sequence_parallel where there are several GPUs, or "
    "give the learner more memory; `weir plan` shows what fits"
)


async def run(
    service: Service,
    team: Team,
    prompts: PromptRenderer,
    delivery: Delivery[JobRef],
    record: JobRecord,
) -> None:
    """Make an attempt at a job, until it ends or the process must; the end leaves its reason."""
    number = await service.exchange.begin_attempt(record.id)
    log.info("attempt begins", extra={"job": record.id, "attempt": number})
    folder = service.deployment.job_dir(record.id)
    attempt = Attempt(service.exchange, record.id, number, record.recipe, folder)
    this = Run(service, team, prompts, delivery, record, attempt)
    try:
        await this.work()
    except Exception as error:
        await this.end_by(error)


@dataclass
class Run:
    """An attempt; ``record`` is the job's as it was before."""

    service: Service
    team: Team
    prompts: PromptRenderer
    delivery: Delivery[JobRef]
    record: JobRecord
    attempt: Attempt

    async def work(self) -> None:
        """Raise what ends the attempt, unless that is the job's success."""
        if self.record.requested is Requested.CANCEL:  # whatever else may be wrong
            raise CancelRequested
        await self._warn_of_silence()
        activity = self.service.activity
        activity.set_idle(Doing.WORKS)
        with activity.during(Doing.LOADS_MODEL):
            control = Control(self.service, self.attempt.job_id)
            given = (self.service, self.team, self.prompts, control, self.attempt, self.record)
            assembly = await first_to_end(prepare(*given), control.end_preparation())
            await self._activate(assembly.learning)
        learning = assembly.learning
        try:
            await first_to_end(
                learning.learn(assembly.phases),
                *(feeder.feed_forever() for feeder in assembly.feeders),
                learning.intake.take_in_forever(),
                learning.control.watch_forever(),
                learning.versions.watch_forever(),
                learning.parity.watch_forever(),
                watch_engines_forever(self.service, learning, self.record.fault),
            )
            await self._succeed(learning)
        except PauseRequested as wish:
            await self.save_to_pause(learning, wish)
            raise
        except StopRequested:
            await learning.versions.save_if_ahead()
            raise
        except CancelRequested:
            await self._save_for_others(learning)
            raise
        finally:
            await learning.versions.give_up()
            await learning.versions.publisher.stop()

    async def save_to_pause(self, learning: Learning, wish: PauseRequested) -> None:
        """Write a checkpoint; if a client's silence was the reason and it fails, end the pause.

        The job is held up then, and a pause would keep it from going on by itself.
        """
        try:
            await learning.versions.save()
        except Exception:
            if wish.error is not None and wish.error.kind is ErrorKind.SILENT_CLIENT:
                await self.service.exchange.request_state(self.record.id, Requested.RUN)
            raise

    async def _warn_of_silence(self) -> None:
        silent = self.record.attempts_since_checkpoint
        if silent < _SILENT_ATTEMPTS:
            return
        message = (
            f"{silent} attempts in a row ended without a word and without progress: the learner "
            "was killed, perhaps for lack of memory (then lower training.micro_batch_tokens, or "
            "give its machine more), or it lost Redis; another attempt begins"
        )
        await self.attempt.say(f"silent:{self.record.step}", message, level="warn")

    async def _activate(self, learning: Learning) -> None:
        attempt, record = self.attempt, self.record
        started_at = record.started_at or time.time()
        await attempt.update(state=JobState.RUNNING, error=None, fault=None, started_at=started_at)
        await attempt.exchange.activate(attempt.active)
        message = f"attempt {attempt.number} begins at step {learning.progress.step}"
        event_id = f"attempt:{attempt.number}"
        if record.state is JobState.PAUSED and record.error is not None:
            event_id = f"again:{record.step}"  # it may be one of many tries
        await attempt.say(event_id, message, begins=True)
        for warning in order_warnings(attempt.recipe):
            await attempt.say("order", warning, level="warn")

    async def _succeed(self, learning: Learning) -> None:
        learning.drop_leftovers()
        await learning.versions.save_if_ahead()
        folder, models = self.attempt.folder, dict[str, Path]()
        with self.service.activity.during(Doing.WRITES_MODEL):
            for name, write in _writers(self.record.recipe, self.team, folder).items():
                models[name] = folder / name
                await write_whole(models[name], write, attempt=self.attempt.number)
        await self._end(JobState.SUCCEEDED, result=await _result(learning, models))

    async def _save_for_others(self, learning: Learning) -> None:
        """What a cancelled job has learned stays for other jobs, if the disk takes it."""
        try:
            if learning.progress.step > 0 and not learning.progress.is_replayed:
                await learning.versions.save_if_ahead()
        except OSError as error:
            log.exception("no last checkpoint")
            message = f"its last checkpoint is lost: {error}"
            await self.attempt.say("unsaved", message, level="warn")

    async def end_by(self, error: Exception) -> None:
        """What ended the attempt costs the job as much as it is its fault.

        Raises:
            Exception: ``error`` where the process has to end by it.
        """
        fault = fault_of(error)
        if isinstance(error, Wish):
            await self._obey(error)
        elif fault is Fault.JOB:
            await self._end(JobState.FAILED, error=words_of(error))
        elif fault is Fault.MEMORY:
            await self._make_smaller(str(error))
        elif fault in {Fault.MACHINE, Fault.ENGINES}:
            log.error("the machine's fault", exc_info=error)
            await self._hold_up(words_of(error), cause_of(error), fault)
        elif fault is Fault.NOBODY or not await self._fail(words_of(error)):
            raise error

    async def _obey(self, wish: Wish) -> None:
        if isinstance(wish, CancelRequested):
            await self._end(JobState.CANCELLED)
        elif isinstance(wish, PauseRequested):
            attempt = self.attempt
            if await attempt.exchange.pause_job(attempt.job_id, attempt.number, wish.error):
                await attempt.say(f"paused:{attempt.number}", str(JobState.PAUSED))
        else:
            await self.attempt.update(attempts_since_checkpoint=0)

    async def _end(self, state: JobState, error: str | None = None, **values: Any) -> None:
        failed = state is JobState.FAILED
        # A job that has failed may be resumed, and fail once more.
        event_id = f"end:{state}:{self.attempt.number}" if failed else f"end:{state}"
        message = f"{state}: {error}" if failed else str(state)
        await self.attempt.say(event_id, message, level="error" if failed else "info")
        values |= {"state": state, "error": error, "fault": None, "finished_at": time.time()}
        await self.service.exchange.close_job(self.delivery, self.attempt.number, **values)
        await withdraw(self.service.deployment, self.record.id)
        log.info("job ends", extra={"job": self.record.id, "state": state})

    async def _hold_up(self, problem: str, cause: str, fault: Fault) -> None:
        """The job waits until it is worth another attempt.

        Args:
            problem: what is wrong, and the remedy.
            cause: the same for the same problem; there is one event per step and cause.
            fault: whose it is.
        """
        self.service.readiness.set(False, problem)
        exchange = self.service.exchange
        if await exchange.pause_job(self.record.id, self.attempt.number, problem, fault):
            step = (await self._current()).step
            message = f"paused at step {step}: {problem}. It goes on by itself when that is mended"
            await self.attempt.say(f"machine:{step}:{cause}", message, level="warn")
        # The next attempt, at this job or another one, may meet the same.
        await self.service.pause(_RETRY_HEARTBEATS * self.service.deployment.heartbeat_s)

    async def _make_smaller(self, error: str) -> None:
        """The next attempt takes micro-batches of half as many tokens, as far as that helps."""
        recipe = limit_micro_batches(self.record.recipe, self.record.micro_batch_tokens)
        tokens = smaller_token_budget(recipe)
        if tokens is None:
            problem = _NO_SMALLER.format(error, recipe.model.max_context)
            await self._hold_up(problem, "memory", Fault.MEMORY)
            return
        await self.attempt.update(micro_batch_tokens=tokens, attempts_since_checkpoint=0)
        message = (
            f"attempt {self.attempt.number} ran out of memory: {error}. From the last checkpoint "
            f"it goes on with micro-batches of at most {tokens} tokens instead of "
            f"training.micro_batch_tokens = {recipe.training.micro_batch_tokens}"
        )
        await self.attempt.say(f"memory:{self.attempt.number}", message, level="warn")

    async def _fail(self, reason: str) -> bool:
        """The job itself is at fault: it ends if that happens too often; returns whether it does.

        What counts is failures in a row without a step or a checkpoint in between.
        """
        failures = (await self._current()).failures + 1
        if failures >= _MOST_FAILURES:
            last = f"{failures} attempts in a row broke without progress; the last one: {reason}"
            await self._end(JobState.FAILED, error=last)
            return True
        await self.attempt.update(
            failures=failures, attempts_since_checkpoint=0, error=reason, fault=None
        )
        number = self.attempt.number
        message = f"attempt {number} broke, {failures} of {_MOST_FAILURES} in a row: {reason}"
        await self.attempt.say(f"broke:{number}", message, level="warn")
        return False

    async def _current(self) -> JobRecord:
        return await self.service.exchange.job(self.record.id) or self.record


def _writers(
    recipe: Recipe, team: Team, folder: Path
) -> dict[str, Callable[[Path], Awaitable[None]]]:
    """What writes each model of a job's result, by its folder's name, in order."""
    writers: dict[str, Callable[[Path], Awaitable[None]]] = {"model": team.export}
    if team.adapts is not None and recipe.model.lora is not None and recipe.model.lora.merge:
        base, dtype = team.adapts, recipe.model.dtype

        def merge(target: Path) -> None:
            with machine_errors(target):
                write_merged(base, folder / "adapter", dtype, target)

        writers = {"adapter": team.export, "model": partial(asyncio.to_thread, merge)}
    if recipe.critic is not None:
        writers["critic"] = team.export_critic
    return writers


async def _result(learning: Learning, models: Mapping[str, Path]) -> dict[str, Any]:
    progress, versions = learning.progress, learning.versions
    totals, ledger = progress.totals, progress.ledgers[Purpose.TRAIN]
    evaluations = [result for result in progress.evaluations if "name" not in result]
    seconds = max(totals["train_seconds"], 1e-9)
    result: dict[str, Any] = {
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
        "groups": await learning.account_of(Purpose.TRAIN),
        "evaluation_groups": await learning.account_of(Purpose.EVAL),
        "evaluated": progress.evaluated,
        "evaluations": progress.evaluations,
    }
    if learning.recipe.num_pretrain_steps:
        result["pretraining_groups"] = await learning.account_of(Purpose.PRETRAIN)
    if evaluations:
        result |= {
            f"{name}_{when}": evaluation[name]
            for when, evaluation in (("before", evaluations[0]), ("after", evaluations[-1]))
            for name in ("accuracy", "process")
        }
    return result
