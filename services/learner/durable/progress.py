"""Progress: how far the learner is with a job, all that a checkpoint keeps beside the tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.recipe import Purpose

from services.learner.durable.checkpoint import LearnerState, checkpoint_name
from services.learner.supply.ledger import Ledger, in_words

_KEPT_EVALUATIONS = 1000  # beside the first


_TOTALS = (
    *("train_seconds", "samples", "tokens", "updates", "parity_max", "parity_tokens"),
    *("empty_steps", "groups_without_signal", "exposed_grading_seconds"),
)


def _no_totals() -> dict[str, float]:
    return dict.fromkeys(_TOTALS, 0.0)


@dataclass
class Progress:
    """How far one job is. ``step`` counts training steps, and names the policy after them.

    The user has accepted what was lost of the groups below ``accepted``. Of the ``evaluated``
    evaluations the first and the newest are here, without what they say of each task.
    """

    step: int = 0
    pretrained: int = 0
    keep_rate: float = 1.0
    accepted: dict[Purpose, int] = field(default_factory=lambda: dict.fromkeys(Purpose, 0))
    ledgers: dict[Purpose, Ledger] = field(default_factory=lambda: {p: Ledger(p) for p in Purpose})
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    evaluated: int = 0
    totals: dict[str, float] = field(default_factory=_no_totals)
    phase_seconds: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)  # of the last step
    evaluating: int | None = None  # the step whose evaluation is under way
    made_before: int = 0  # steps that an earlier attempt has made, and told of

    @property
    def is_replayed(self) -> bool:
        """Whether the next step is one that an earlier attempt has made."""
        return self.step < self.made_before

    @classmethod
    def of(cls, state: LearnerState) -> Progress:
        """The progress that a checkpoint holds."""
        progress = cls(
            step=state.step,
            pretrained=state.pretrained,
            keep_rate=state.keep_rate,
            accepted=dict.fromkeys(Purpose, 0) | state.accepted,
            # A state of an earlier release has all evaluations, and counts no updates.
            evaluations=[_flat(result) for result in state.evaluations],
            evaluated=max(state.evaluated, len(state.evaluations)),
            totals=_no_totals() | {"updates": float(state.step)} | state.totals,
            phase_seconds=dict(state.phase_seconds),
            metrics=dict(state.metrics),
            evaluating=state.evaluating,
        )
        for purpose, stored in state.ledgers.items():
            progress.ledgers[purpose].restore(stored)
        return progress

    def state(self, first_segment: str) -> LearnerState:
        """What a checkpoint keeps, with the first segment of the log that it needs."""
        return LearnerState(
            step=self.step,
            pretrained=self.pretrained,
            keep_rate=self.keep_rate,
            accepted=self.accepted,
            first_segment=first_segment,
            ledgers={purpose: ledger.state() for purpose, ledger in self.ledgers.items()},
            evaluations=self.evaluations,
            evaluated=self.evaluated,
            totals=self.totals,
            phase_seconds=self.phase_seconds,
            metrics=self.metrics,
            evaluating=self.evaluating,
        )

    @property
    def checkpoint_name(self) -> str:
        return checkpoint_name(self.step, self.pretrained)

    @property
    def positions(self) -> dict[Purpose, int]:
        """The first number of each purpose that has not been looked at for good."""
        return {purpose: ledger.position for purpose, ledger in self.ledgers.items()}

    def steps_of(self, purpose: Purpose) -> int:
        """How many steps are done, or were when the evaluation that is under way began.

        Those of the critic alone where the purpose is its pretraining.
        """
        if purpose is Purpose.EVAL and self.evaluating is not None:
            return self.evaluating
        return self.pretrained if purpose is Purpose.PRETRAIN else self.step

    def note_evaluation(self, result: Mapping[str, Any]) -> None:
        """Take in the result of an evaluation."""
        self.evaluated += 1
        self.evaluations.append(_flat(result))
        del self.evaluations[1:-_KEPT_EVALUATIONS]

    def note_parity(self, metrics: Mapping[str, float]) -> None:
        """Take in how far the learner's log-probs were from those of the rollouts, if measured."""
        gap = metrics.get("parity_max", 0.0)
        if math.isfinite(gap):
            self.totals["parity_max"] = max(self.totals["parity_max"], gap)
        self.totals["parity_tokens"] += metrics.get("parity_tokens", 0.0)

    def note_update(self, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a training step, those of its selection among them."""
        self.note_parity(metrics)
        updates = metrics.get("updates", 1.0)
        self.totals["updates"] += updates
        self.totals["empty_steps"] += not updates
        self.totals["groups_without_signal"] += metrics.get("without_signal", 0.0)
        self.totals["exposed_grading_seconds"] += metrics.get("exposed_grading_seconds", 0.0)

    def why_nothing_was_learned(self) -> str | None:
        """Why the policy is as it was after all steps; None if it is not."""
        ledger = self.ledgers[Purpose.TRAIN]
        if not ledger.trained:
            lost = in_words(ledger.dropped)
            return f"nothing was learned: none of {ledger.position} groups was trained ({lost})"
        if not self.totals["updates"]:
            return "nothing was learned: no update had a loss and a gradient that were finite"
        return None

    def note_phases(self, phase_seconds: Mapping[str, float]) -> dict[str, Any]:
        """Take in where the time since the last step went; returns that and all totals."""
        for phase, more in phase_seconds.items():
            self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + more
        return {
            "phase_seconds": dict(phase_seconds),
            "phase_seconds_total": dict(self.phase_seconds),
            "totals": dict(self.totals),
        }

    def note_work(self, seconds: float, responses: int, tokens: int) -> None:
        """Take in what a training step trained on, and the time since the one before."""
        self.totals["train_seconds"] += seconds
        self.totals["samples"] += responses
        self.totals["tokens"] += tokens


def _flat(result: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation's result without its largest part, which its event has told."""
    return {name: value for name, value in result.items() if name != "per_task"}
