"""An attempt: one try of a learner to run a job."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from protocol.exchange import Exchange
from protocol.messages import ActiveJob, AnyEventData, JobEvent, Notice, RolloutRequest
from protocol.recipe import Purpose, Recipe


class JobFault(RuntimeError):
    """The job can never succeed as it was submitted; the text says why."""


class MachineFault(RuntimeError):
    """The job has to wait until the machine is repaired; the text says how."""


class RepeatNeeded(RuntimeError):
    """The attempt ends so that the next one repeats lost work; the text says which."""


class EnginesFault(RuntimeError):
    """No rollout starts an engine, and none did before the job came; the text has the remedy."""


@dataclass(frozen=True)
class Attempt:
    """All its writes carry its number, and are refused once there is a newer attempt."""

    exchange: Exchange
    job_id: str
    number: int
    recipe: Recipe
    folder: Path  # the job's folder, with its log, samples and checkpoints

    @property
    def active(self) -> ActiveJob:
        return ActiveJob(job_id=self.job_id, attempt=self.number, recipe=self.recipe)

    async def update(self, **values: Any) -> None:
        """Write values into the job's record.

        Raises:
            Fenced: if there is a newer attempt.
        """
        await self.exchange.update_job(self.job_id, self.number, **values)

    async def report(
        self, event_id: str, message: str, *, data: AnyEventData | None = None, **values: Any
    ) -> None:
        """Record an event of the job; the same ``event_id`` is recorded once.

        Args:
            values: further fields of the `JobEvent`.
        """
        values |= {"job_id": self.job_id, "message": message, "data": data or Notice()}
        await self.exchange.record_event(JobEvent(id=event_id, **values))

    async def warn(self, event_id: str, message: str, **details: Any) -> None:
        """Report a warning; ``details`` are its data, see `to_json`."""
        data = Notice(details=to_json(details))
        await self.report(event_id, message, data=data, level="warn")

    def request(self, purpose: Purpose, number: int, **values: Any) -> RolloutRequest:
        """Return the request of this job with this number; ``values`` are its other fields."""
        return RolloutRequest(
            job_id=self.job_id,
            attempt=self.number,
            number=number,
            purpose=purpose,
            prompt_template=self.recipe.model.prompt_template,
            seed=request_seed(self.recipe.training.seed, purpose, number),
            in_environment=self.recipe.environment is not None,
            **values,
        )


def to_json(value: Any) -> Any:
    """Return a value as JSON can hold it: null for NaN and infinity, a string for an object."""
    if isinstance(value, Mapping):
        return {str(name): to_json(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(element) for element in value]
    if isinstance(value, Real) and not isinstance(value, int):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def request_seed(seed: int, purpose: Purpose, number: int) -> int:
    """Return the sampling seed of a request: it differs by job seed, purpose and number."""
    return random.Random(f"{seed}:{purpose}:{number}").getrandbits(31)
