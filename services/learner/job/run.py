"""One attempt at a job, from its beginning to its last word.

Only what the user asked for, or what broke in the job itself, ends a job as failed. What is wrong
with the machine holds it up, until an attempt finds that mended; the other jobs go on meanwhile.
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
from protocol.messages import Doing, JobRecord, JobRef, JobState, Requested
from protocol.recipe import Purpose, Recipe

from services.chassis.service import Service
from services.learner.attempt import Attempt
from services.learner.durable.checkpoint import write_whole
from services.learner.job.assembly import prepare
from services.learner.job.control import (
    CancelRequested,
    PauseRequested,
    StopRequested,
    first_to_end,
)
from services.learner.job.learning import Learning
from services.learner.job.limits import watch_engines_forever
from services.learner.job.outcome import Outcome
from services.learner.ordering import order_warnings
from services.learner.training.models import write_merged
from services.learner.training.ranks import Team, machine_errors

log = logging.getLogger(__name__)
Writer = Callable[[Path], Awaitable[None]]


@dataclass
class Run:
    """An attempt that has not begun; ``record`` is the job's as it was before."""

    service: Service
    team: Team
    delivery: Delivery[JobRef]
    record: JobRecord

    async def run(self) -> None:
        """Work on the job until it ends or the process must; whatever ends it leaves its reason."""
        exchange, record = self.service.exchange, self.record
        number = await exchange.begin_attempt(record.id)
        log.info("attempt begins", extra={"job": record.id, "attempt": number})
        folder = self.service.deployment.job_dir(record.id)
        attempt = Attempt(exchange, record.id, number, record.recipe, folder)
        outcome = Outcome(self.service, self.delivery, record, attempt)
        try:
            await self._work(attempt, outcome)
        except Exception as error:
            await outcome.after(error)

    async def _work(self, attempt: Attempt, outcome: Outcome) -> None:
        if self.record.requested is Requested.CANCEL:  # whatever else may be wrong
            raise CancelRequested
        await outcome.tell_of_silence()
        activity = self.service.activity
        activity.rests(Doing.WORKS)
        with activity.during(Doing.LOADS_MODEL):
            assembly = await prepare(self.service, self.team, attempt, self.record)
            await self._activate(assembly.learning)
        learning = assembly.learning
        try:
            await first_to_end(
                learning.learn(assembly.phases),
                *(feeder.feed_forever() for feeder in assembly.feeders),
                learning.intake.take_in_forever(),
                learning.control.watch_forever(),
                learning.versions.watch_forever(),
                watch_engines_forever(self.service, learning, self.record.fault),
            )
            await self._succeed(learning, outcome)
        except PauseRequested:
            await learning.versions.save()
            raise
        except StopRequested:
            await learning.versions.save_if_ahead()
            raise
        except CancelRequested:
            await _save_for_others(learning)
            raise
        finally:
            await learning.versions.give_up()
            await learning.versions.publisher.stop()

    async def _activate(self, learning: Learning) -> None:
        attempt, record, reporter = learning.attempt, self.record, learning.reporter
        started_at = record.started_at or time.time()
        await attempt.update(state=JobState.RUNNING, error=None, fault=None, started_at=started_at)
        await attempt.exchange.activate(attempt.active)
        message = f"attempt {attempt.number} begins at step {learning.progress.step}"
        event_id = f"attempt:{attempt.number}"
        if record.state is JobState.PAUSED and record.error is not None:
            event_id = f"again:{record.step}"  # it may be one of many tries
        await reporter.say(event_id, message, begins=True)
        for warning in order_warnings(attempt.recipe):
            await reporter.say("order", warning, level="warn")

    async def _succeed(self, learning: Learning, outcome: Outcome) -> None:
        """Save the final weights beside a last checkpoint, and say how it went."""
        learning.drop_leftovers()
        await learning.versions.save_if_ahead()
        writers, models = _writers(self.record.recipe, self.team, learning.attempt.folder), {}
        with self.service.activity.during(Doing.WRITES_MODEL):
            for name, write in writers.items():
                models[name] = learning.attempt.folder / name
                await write_whole(models[name], write, attempt=learning.attempt.number)
        await outcome.end(JobState.SUCCEEDED, result=await _result(learning, models))


def _writers(recipe: Recipe, team: Team, folder: Path) -> dict[str, Writer]:
    """What writes each model of a job's result, by its folder's name, in order."""
    writers: dict[str, Writer] = {"model": team.export}
    if team.adapts is not None and recipe.model.lora is not None and recipe.model.lora.merge:
        base, dtype = team.adapts, recipe.model.dtype

        def merge(target: Path) -> None:
            with machine_errors(target):
                write_merged(base, folder / "adapter", dtype, target)

        writers = {"adapter": team.export, "model": partial(asyncio.to_thread, merge)}
    if recipe.critic is not None:
        writers["critic"] = team.export_critic
    return writers


async def _save_for_others(learning: Learning) -> None:
    """What a cancelled job has learned stays for other jobs, if the disk takes it."""
    try:
        if learning.progress.step > 0 and not learning.progress.is_replayed:
            await learning.versions.save_if_ahead()
    except OSError as error:
        log.exception("no last checkpoint")
        message = f"its last checkpoint is lost: {error}"
        await learning.reporter.say("unsaved", message, level="warn")


async def _result(learning: Learning, models: Mapping[str, Path]) -> dict[str, Any]:
    """What the job's record says in the end."""
    progress, versions = learning.progress, learning.versions
    totals = progress.totals
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
