"""Progress: how far the learner is with a job; a checkpoint keeps it with the tensors.

The ledger accounts for every group: it is trained, dropped for a reason, or under way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from protocol.messages import group_key
from protocol.recipe import Purpose
from protocol.samples import USED
from pydantic import BaseModel, ConfigDict, Field

_KEPT_EVALUATIONS = 1000  # and the first
_KEPT_PROBES = 8  # versions
_STEPS_OF_A_MEAN = 3  # since one step's explained variance is noisy
_TOTALS = (
    *("train_seconds", "samples", "tokens", "updates", "parity_max", "parity_tokens"),
    *("empty_steps", "groups_without_signal", "exposed_grading_seconds"),
    "updates_without_gradient",  # which checkpoints of older releases lack
)


@dataclass
class Ledger:
    """What became of the groups of one purpose, entered in the order of their numbers.

    An evaluation or pretraining group counts as trained when it is used.
    """

    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # by reason

    @property
    def position(self) -> int:
        """The number of the first group whose fate is open."""
        return self.trained + sum(self.dropped.values())

    def enter(self, fates: Sequence[str]) -> None:
        """What became of the next groups: `USED`, or why they were dropped."""
        for fate in fates:
            if fate == USED:
                self.trained += 1
            else:
                self.drop(fate)

    def drop(self, reason: str, count: int = 1) -> None:
        if count > 0:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def account(self, purpose: Purpose, asked: int, there: Set[str]) -> dict[str, Any]:
        """The account at this moment: asked = trained + dropped + under way.

        Args:
            purpose: of the groups.
            asked: how many numbers had been given out before ``there`` was looked up.
            there: keys of groups in the exchange or waiting in the learner, of any purpose.
        """
        open_numbers = range(self.position, asked)
        return {
            "asked": asked,
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "under_way": sum(group_key(purpose, n) in there for n in open_numbers),
        }


class Progress(BaseModel):
    """How far one job is; as JSON it is a checkpoint's ``state.json``."""

    model_config = ConfigDict(extra="forbid")

    step: int = 0  # training steps that are done; the policy after them has this number
    operation: int = -1  # of a client, that has made the weights what they are
    pretrained: int = 0  # steps that the critic made alone, before the policy's first
    explained: list[float] = []  # explained variance of the newest of these
    keep_rate: float = 1.0  # the recent share of groups that dynamic sampling kept
    # The user has accepted what was lost of the groups below these numbers.
    accepted: dict[Purpose, int] = Field(default_factory=lambda: dict.fromkeys(Purpose, 0))
    ledgers: dict[Purpose, Ledger] = Field(default_factory=lambda: {p: Ledger() for p in Purpose})
    evaluations: list[dict[str, Any]] = []  # the first and the newest, without their tasks
    evaluated: int = 0  # evaluations, with those that are left out
    evaluating: int | None = None  # the step whose evaluation is under way
    totals: dict[str, float] = Field(default_factory=lambda: dict.fromkeys(_TOTALS, 0.0))
    phase_seconds: dict[str, float] = {}
    metrics: dict[str, float | None] = {}  # of the last step
    first_segment: str = ""  # of the log, that this checkpoint needs
    ranks: int | None = None  # that saved the models
    probes: dict[int, list[float]] = {}  # log-probs of the first version and the newest ones
    made_before: int = Field(default=0, exclude=True)  # steps that an earlier attempt reported

    @property
    def is_replayed(self) -> bool:
        """Whether the next step is one that an earlier attempt has made."""
        return self.step < self.made_before

    @property
    def checkpoint_name(self) -> str:
        """The name of this moment's checkpoint; names sort in the order of training."""
        name = f"step-{self.step:06d}"
        if self.step == 0 and self.pretrained:
            name += f"-pretrain-{self.pretrained:06d}"
        return name

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
        """Add a result, without its largest part, which its event has."""
        self.evaluated += 1
        self.evaluations.append({n: value for n, value in result.items() if n != "per_task"})
        del self.evaluations[1:-_KEPT_EVALUATIONS]

    def note_pretraining(self, metrics: Mapping[str, float]) -> None:
        self.pretrained += 1
        explained = metrics.get("explained_variance", math.nan)
        if math.isfinite(explained):
            self.explained = [*self.explained, explained][-_STEPS_OF_A_MEAN:]

    def explains(self, least: float | None) -> bool:
        """Whether the critic has explained so much of the variance in its newest steps."""
        recent = self.explained
        return least is not None and len(recent) == _STEPS_OF_A_MEAN and fmean(recent) >= least

    def note_probes(self, version: int, logprobs: list[float]) -> None:
        self.probes[version] = logprobs
        for old in sorted(self.probes)[1:-_KEPT_PROBES]:
            del self.probes[old]

    def note_parity(self, metrics: Mapping[str, float]) -> None:
        """Add how far the learner's log-probs were from those of the rollouts, if measured."""
        gap = metrics.get("parity_max", 0.0)
        if math.isfinite(gap):
            self.totals["parity_max"] = max(self.totals["parity_max"], gap)
        self.totals["parity_tokens"] += metrics.get("parity_tokens", 0.0)

    def note_update(self, metrics: Mapping[str, float]) -> None:
        self.note_parity(metrics)
        updates = metrics.get("updates", 1.0)
        self.totals["updates"] += updates
        self.totals["empty_steps"] += not updates
        if metrics.get("grad_norm") == 0:
            self.totals["updates_without_gradient"] = self._idle_updates + updates
        self.totals["groups_without_signal"] += metrics.get("without_signal", 0.0)
        self.totals["exposed_grading_seconds"] += metrics.get("exposed_grading_seconds", 0.0)

    def note_work(self, seconds: float, responses: int, tokens: int) -> None:
        """Add what a training step trained on, and the seconds since the one before."""
        self.totals["train_seconds"] += seconds
        self.totals["samples"] += responses
        self.totals["tokens"] += tokens

    def note_phases(self, phase_seconds: Mapping[str, float]) -> dict[str, Any]:
        """Add where the time since the last step went; returns that and all totals."""
        for phase, more in phase_seconds.items():
            self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + more
        return {
            "phase_seconds": dict(phase_seconds),
            "phase_seconds_total": dict(self.phase_seconds),
            "totals": dict(self.totals),
        }

    def why_nothing_was_learned(self) -> str | None:
        """Why the policy is as it was after all steps; None if it is not."""
        ledger = self.ledgers[Purpose.TRAIN]
        if ledger.trained and not self.totals["updates"]:
            return "nothing was learned: no update had a loss and a gradient that were finite"
        if ledger.trained and self._idle_updates < self.totals["updates"]:
            return None
        lost = Counter(ledger.dropped) + Counter(no_signal=ledger.trained)
        return (
            f"nothing was learned: none of {ledger.position} groups was trained ({in_words(lost)})"
        )

    @property
    def _idle_updates(self) -> float:
        return self.totals.get("updates_without_gradient", 0.0)


def in_words(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in reasons.items())
