"""An attempt: one life of the learner at one job."""

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
    """The job can never work as it was given; the text says why."""


class MachineFault(RuntimeError):
    """The job has to wait until the machine is mended; the text says how."""


class RepeatNeeded(RuntimeError):
    """The attempt ends so that the next one does lost work again; the text says which."""


class EnginesFault(RuntimeError):
    """No rollout starts an engine, and none did before the job came; the text has the remedy."""


@dataclass(frozen=True)
class Attempt:
    """Whatever it writes carries its number, and is refused once there is a newer one."""

    exchange: Exchange
    job_id: str
    number: int
    recipe: Recipe
    folder: Path  # the job's, where its log, samples and checkpoints are

    @property
    def active(self) -> ActiveJob:
        return ActiveJob(job_id=self.job_id, attempt=self.number, recipe=self.recipe)

    async def update(self, **values: Any) -> None:
        """Write values into the job's record.

        Raises:
            Fenced: if there is a newer attempt.
        """
        await self.exchange.update_job(self.job_id, self.number, **values)

    async def say(
        self, event_id: str, message: str, *, data: AnyEventData | None = None, **values: Any
    ) -> None:
        """Record an event of the job; the same ``event_id`` is recorded once.

        Args:
            values: further fields of the `JobEvent`.
        """
        values |= {"job_id": self.job_id, "message": message, "data": data or Notice()}
        await self.exchange.record_event(JobEvent(id=event_id, **values))

    def request(self, purpose: Purpose, number: int, **values: Any) -> RolloutRequest:
        """The request of this job with this number; ``values`` are its other fields."""
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


def as_json(value: Any) -> Any:
    """What JSON can hold of a value: null for a number that is not finite, a text for an object."""
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, Real) and not isinstance(value, int):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def request_seed(seed: int, purpose: Purpose, number: int) -> int:
    """The sampling seed of a request, different for every job seed, purpose and number."""
    return random.Random(f"{seed}:{purpose}:{number}").getrandbits(31)
