"""How an attempt at a job ends: in the job's record, in its events, and in the queue."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from protocol.exchange import Delivery
from protocol.messages import Fault, JobRecord, JobRef, JobState

from services.chassis.service import Service
from services.learner.attempt import Attempt
from services.learner.durable.publish import withdraw
from services.learner.faults import cause_of, fault_of, words_of
from services.learner.job.control import CancelRequested, PauseRequested, Wish
from services.learner.job.report import Reporter
from services.learner.training.batching import smaller_token_budget, with_token_budget

log = logging.getLogger(__name__)
_MOST_FAILURES = 3  # in a row, without progress
_SILENT_ATTEMPTS = 3  # in a row, before somebody is told
_RETRY_HEARTBEATS = 5  # a few seconds
_NO_SMALLER = (
    "out of memory: {}; micro-batches can be no smaller, for a sample may have model.max_context = "
    "{} tokens. Lower that or training.logprob_chunk_tokens, set training.recompute_activations, "
    "raise optimizer.zero_stage or training.sequence_parallel where there are several GPUs, or "
    "give the learner more memory; "
    "`weir plan` tells what fits"
)


@dataclass
class Outcome:
    """The last word of one attempt; ``record`` is the job's as it was before."""

    service: Service
    delivery: Delivery[JobRef]
    record: JobRecord
    attempt: Attempt

    async def after(self, error: Exception) -> None:
        """What ended the attempt costs the job as much as it is its fault.

        Raises:
            Exception: ``error`` where the process has to end by it.
        """
        fault = fault_of(error)
        if isinstance(error, Wish):
            await self._obey(error)
        elif fault is Fault.JOB:
            await self.end(JobState.FAILED, error=words_of(error))
        elif fault is Fault.MEMORY:
            await self._make_smaller(str(error))
        elif fault in {Fault.MACHINE, Fault.ENGINES}:
            log.error("the machine's fault", exc_info=error)
            await self._hold_up(words_of(error), cause_of(error), fault)
        elif fault is Fault.NOBODY or not await self._fail(words_of(error)):
            raise error

    async def end(self, state: JobState, error: str | None = None, **values: Any) -> None:
        """The job ends with the attempt."""
        failed, error = state is JobState.FAILED, error and self._without_places(error)
        # A job that has failed may be resumed, and fail once more.
        event_id = f"end:{state}:{self.attempt.number}" if failed else f"end:{state}"
        message = f"{state}: {error}" if failed else str(state)
        await self._reporter.say(event_id, message, level="error" if failed else "info")
        values |= {"state": state, "error": error, "fault": None, "finished_at": time.time()}
        await self.service.exchange.close_job(self.delivery, self.attempt.number, **values)
        await withdraw(self.service.deployment, self.record.id)
        log.info("job ends", extra={"job": self.record.id, "state": state})

    async def _obey(self, wish: Wish) -> None:
        """The job is cancelled, or paused, or goes on in the next attempt."""
        if isinstance(wish, CancelRequested):
            await self.end(JobState.CANCELLED)
        elif isinstance(wish, PauseRequested):
            await self._pause(str(wish) or None)
        else:
            await self.attempt.update(attempts_since_checkpoint=0)
            log.info("told to stop; the job goes on in the next attempt")

    async def _hold_up(self, problem: str, cause: str, fault: Fault) -> None:
        """The job waits until it is worth another attempt.

        Args:
            problem: what is wrong, and the remedy.
            cause: the same for the same problem; people are told once per step and cause.
            fault: whose it is.
        """
        self.service.readiness.set(False, problem)
        problem = self._without_places(problem)
        exchange = self.service.exchange
        if await exchange.lay_aside(self.record.id, self.attempt.number, problem, fault):
            step = (await self._current()).step
            message = f"paused at step {step}: {problem}. It goes on by itself when that is mended"
            await self._reporter.say(f"machine:{step}:{cause}", message, level="warn")
        # The next attempt, at this job or another one, may meet the same.
        await self.service.pause(_RETRY_HEARTBEATS * self.service.deployment.heartbeat_s)

    async def _make_smaller(self, error: str) -> None:
        """The next attempt takes micro-batches of half as many tokens, as far as that helps."""
        recipe = with_token_budget(self.record.recipe, self.record.micro_batch_tokens)
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
        await self._reporter.say(f"memory:{self.attempt.number}", message, level="warn")

    async def _fail(self, reason: str) -> bool:
        """The job itself is at fault: it ends if that happens too often; returns whether it does.

        What counts is failures in a row without a step or a checkpoint in between.
        """
        failures = (await self._current()).failures + 1
        reason = self._without_places(reason)
        if failures >= _MOST_FAILURES:
            last = f"{failures} attempts in a row broke without progress; the last one: {reason}"
            await self.end(JobState.FAILED, error=last)
            return True
        await self.attempt.update(
            failures=failures, attempts_since_checkpoint=0, error=reason, fault=None
        )
        number = self.attempt.number
        message = f"attempt {number} broke, {failures} of {_MOST_FAILURES} in a row: {reason}"
        await self._reporter.say(f"broke:{number}", message, level="warn")
        return False

    async def tell_of_silence(self) -> None:
        """Warn if the attempts before this one ended without a word."""
        silent = self.record.attempts_since_checkpoint
        if silent < _SILENT_ATTEMPTS:
            return
        message = (
            f"{silent} attempts in a row ended without a word and without progress: the learner "
            "was killed, perhaps for lack of memory (then lower training.micro_batch_tokens, or "
            "give its machine more), or it lost Redis; another attempt begins"
        )
        await self._reporter.say(f"silent:{self.record.step}", message, level="warn")

    def _without_places(self, text: str) -> str:
        """A text for people who use the stack, and need not know where its folders lie."""
        deployment = self.service.deployment
        text = text.replace(f"{deployment.memory_dir}/", "WEIR_MEMORY_DIR/")
        text = text.replace(f"{deployment.data_dir}/", "WEIR_DATA_DIR/")
        for root in deployment.model_roots:
            text = text.replace(f"{root}/", "WEIR_MODEL_ROOTS/")
        return text

    async def _pause(self, why: str | None) -> None:
        """The job rests until it is resumed; the next attempt may be at another job."""
        if await self.service.exchange.lay_aside(self.record.id, self.attempt.number, why):
            await self._reporter.say(f"paused:{self.attempt.number}", str(JobState.PAUSED))
            log.info("job is paused", extra={"job": self.record.id})

    async def _current(self) -> JobRecord:
        return await self.service.exchange.job(self.record.id) or self.record

    @property
    def _reporter(self) -> Reporter:
        return Reporter(self.service.exchange, self.record.id)
