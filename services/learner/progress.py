"""Progress: how far the learner is with a job, all that a checkpoint keeps beside the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.recipe import Purpose

from services.learner.checkpoint import LearnerState, checkpoint_name
from services.learner.ledger import Ledger


def _no_totals() -> dict[str, float]:
    names = ("train_seconds", "samples", "tokens", "parity_max", "parity_tokens")
    return dict.fromkeys(names, 0.0)


@dataclass
class Progress:
    """How far one job is. ``step`` counts training steps, and names the policy after them.

    The user has accepted that scores of the groups below ``accepted`` could not be graded.
    """

    step: int = 0
    pretrained: int = 0
    keep_rate: float = 1.0
    accepted: dict[Purpose, int] = field(default_factory=lambda: dict.fromkeys(Purpose, 0))
    ledgers: dict[Purpose, Ledger] = field(default_factory=lambda: {p: Ledger(p) for p in Purpose})
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=_no_totals)

    @classmethod
    def of(cls, state: LearnerState) -> Progress:
        """The progress that a checkpoint holds."""
        progress = cls(
            step=state.step,
            pretrained=state.pretrained,
            keep_rate=state.keep_rate,
            accepted=dict.fromkeys(Purpose, 0) | state.accepted,
            evaluations=list(state.evaluations),
            totals=dict(state.totals),
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
            totals=self.totals,
        )

    @property
    def checkpoint_name(self) -> str:
        """The name of a checkpoint made now."""
        return checkpoint_name(self.step, self.pretrained)

    @property
    def positions(self) -> dict[Purpose, int]:
        """The first number of each purpose that has not been looked at for good."""
        return {purpose: ledger.position for purpose, ledger in self.ledgers.items()}

    def note_parity(self, metrics: Mapping[str, float]) -> None:
        """Take in how far the learner's log-probs were from those of the rollouts, if measured."""
        self.totals["parity_max"] = max(self.totals["parity_max"], metrics.get("parity_max", 0.0))
        self.totals["parity_tokens"] += metrics.get("parity_tokens", 0.0)

    def note_work(self, seconds: float, responses: int, tokens: int) -> None:
        """Take in what a training step trained on, and the time since the one before."""
        self.totals["train_seconds"] += seconds
        self.totals["samples"] += responses
        self.totals["tokens"] += tokens
