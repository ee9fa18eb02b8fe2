"""How an attempt at a job ends: in the job's record, in its events, and in the queue."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from protocol.exchange import Delivery
from protocol.messages import JobRecord, JobRef, JobState, Requested

from services.chassis.service import Service
from services.learner.control import Control, StopRequested
from services.learner.publish import withdraw
from services.learner.report import Reporter

log = logging.getLogger(__name__)
_MOST_FAILURES = 3  # in a row, without progress
_SILENT_ATTEMPTS = 3  # in a row, before somebody is told
_RETRY_HEARTBEATS = 5  # a few seconds


@dataclass
class Outcome:
    """The last word of one attempt; ``record`` is the job's as it was before."""

    service: Service
    delivery: Delivery[JobRef]
    record: JobRecord
    attempt: int

    async def end(self, state: JobState, error: str | None = None, **values: Any) -> None:
        """The job ends with the attempt."""
        failed, error = state is JobState.FAILED, error and self._without_places(error)
        # A job that has failed may be resumed, and fail once more.
        event_id = f"end:{state}:{self.attempt}" if failed else f"end:{state}"
        message = f"{state}: {error}" if failed else str(state)
        await self._reporter.say(event_id, message, level="error" if failed else "info")
        values |= {"state": state, "error": error, "finished_at": time.time()}
        await self.service.exchange.close_job(self.delivery, self.attempt, **values)
        await withdraw(self.service.deployment.weights_dir, self.record.id)
        log.info("job ends", extra={"job": self.record.id, "state": state})

    async def stop(self) -> None:
        """The process was told to stop; the job goes on in the next attempt."""
        await self._update(attempts_since_checkpoint=0)
        log.info("told to stop; the job goes on in the next attempt")

    async def pause_for(self, problem: str, cause: str) -> None:
        """The machine is at fault: pause the job, and wait until it is worth another attempt.

        Args:
            problem: what is wrong, and the remedy.
            cause: the same for the same problem; people are told once per step and cause.
        """
        self.service.readiness.set(False, problem)
        problem = self._without_places(problem)
        await self._update(state=JobState.PAUSED, error=problem, attempts_since_checkpoint=0)
        step = (await self._current()).step
        message = f"paused at step {step}: {problem}. It goes on by itself when that is mended"
        await self._reporter.say(f"machine:{step}:{cause}", message, level="warn")
        control = Control(self.service, self.record.id)
        for _ in range(_RETRY_HEARTBEATS):
            await self.service.pause(self.service.deployment.heartbeat_s)
            await control.refresh()
            with suppress(StopRequested):
                await control.until_resumed()
            if control.requested is Requested.CANCEL:
                await self.end(JobState.CANCELLED)
                return

    async def fail(self, error: Exception) -> bool:
        """The job itself is at fault: it ends if that happens too often; returns whether it does.

        What counts is failures in a row without a step or a checkpoint in between.
        """
        failures = (await self._current()).failures + 1
        reason = self._without_places(f"{type(error).__name__}: {error}")
        if failures >= _MOST_FAILURES:
            last = f"{failures} attempts in a row broke without progress; the last one: {reason}"
            await self.end(JobState.FAILED, error=last)
            return True
        await self._update(failures=failures, attempts_since_checkpoint=0, error=reason)
        message = f"attempt {self.attempt} broke, {failures} of {_MOST_FAILURES} in a row: {reason}"
        await self._reporter.say(f"broke:{self.attempt}", message, level="warn")
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
        text = text.replace(f"{deployment.data_dir}/", "WEIR_DATA_DIR/")
        for root in deployment.model_roots:
            text = text.replace(f"{root}/", "WEIR_MODEL_ROOTS/")
        return text

    async def _current(self) -> JobRecord:
        return await self.service.exchange.job(self.record.id) or self.record

    async def _update(self, **values: Any) -> None:
        await self.service.exchange.update_job(self.record.id, self.attempt, **values)

    @property
    def _reporter(self) -> Reporter:
        return Reporter(self.service.exchange, self.record.id)
