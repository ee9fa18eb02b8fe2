"""What a step leaves behind for people: an event in the job's story.

The gateway makes metrics of them (`services/gateway/watch/job_metrics.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from protocol.exchange import Exchange
from protocol.messages import JobEvent

from services.chassis.metrics import PHASES
from services.learner.supply.selection import Selection


class Reporter:
    """Records the events of one job."""

    def __init__(self, exchange: Exchange, job_id: str) -> None:
        self.exchange = exchange
        self.job_id = job_id
        self._told_seconds = PHASES.seconds()

    def phase_seconds(self) -> dict[str, float]:
        """The time of each phase since this was called last, of those that had any."""
        before, self._told_seconds = self._told_seconds, PHASES.seconds()
        spent = {name: s - before.get(name, 0.0) for name, s in self._told_seconds.items()}
        return {name: seconds for name, seconds in spent.items() if seconds > 0}

    async def say(self, event_id: str, message: str, *, data: Any = None, **values: Any) -> None:
        """Record a message; the same ``event_id`` is recorded once."""
        await self._record(event_id, message, data=data or {}, **values)

    async def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of a training step."""
        await self._record(f"step:{step}", f"step {step}", type="metrics", data=metrics)

    async def pretrain_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of a step that the critic made alone."""
        message = f"pretrain step {step}"
        for name in ("value_loss", "explained_variance"):
            if name in metrics:
                message += f"  {name.replace('_', ' ')} {metrics[name]:.3f}"
        await self._record(f"pretrain:{step}", message, type="metrics", data=metrics)

    async def undersampled(self, step: int, selection: Selection) -> None:
        """Warn of a step whose dynamic sampling gave up."""
        kept, wanted = len(selection.kept), selection.recipe.training.groups_per_step
        did = f"it trained on {kept} of {wanted} groups" if kept else "it made no update"
        message = (
            f"step {step}: {did}: of {selection.judged} groups, the most that "
            "training.max_oversampling allows, no more had a signal; raise it, or give tasks that "
            "the policy solves sometimes"
        )
        data = {"kept": kept, "judged": selection.judged, "surplus": selection.surplus}
        await self.say(f"undersampled:{step}", message, level="warn", data=data)

    async def evaluation(self, result: Mapping[str, Any], account: Mapping[str, Any]) -> None:
        """Record the result of an evaluation, and the ledger of all of them.

        That on a further held-out file has a ``name``, and is told in words.
        """
        step, name = result["step"], result.get("name")
        words = f"evaluation at step {step}"
        if name is None:
            data = {"step": step, "evaluation": result, "groups": account}
            await self._record(f"evaluation:{step}", words, type="metrics", data=data)
            return
        accuracy = result["accuracy"]
        words += f" on {name}: accuracy {'unknown' if accuracy is None else f'{accuracy:.3f}'}"
        data = {"step": step, "other_evaluation": result, "groups": account}
        await self.say(f"evaluation:{step}:{name}", words, data=data)

    async def _record(self, event_id: str, message: str, *, data: Any, **values: Any) -> None:
        values |= {"job_id": self.job_id, "message": message, "data": as_json(data)}
        await self.exchange.record_event(JobEvent(id=event_id, **values))


def numbers_in(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers among metrics; None for one that is not finite."""
    return {
        name: float(value) if math.isfinite(value) else None
        for name, value in metrics.items()
        if isinstance(value, Real)
    }


def as_json(value: Any) -> Any:
    """What JSON can hold of a value: null for a number that is not finite, a text for an object."""
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, Real) and not isinstance(value, int):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
