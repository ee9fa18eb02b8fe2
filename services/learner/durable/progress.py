"""Progress: how far the learner is with a job; a checkpoint stores it with the tensors.

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

from services.learner.supply.curriculum import CurriculumState

_MAX_EVALUATIONS = 1000  # every checkpoint and the result hold them; the first stays as well
_MAX_PROBES = 8  # a rollout that lags names its version only among these
_EXPLAINED_STEPS = 3  # one step's explained variance is noisy, so their mean counts
_TOTALS = (
    "train_seconds",
    "samples",
    "tokens",
    "updates",
    "updates_without_gradient",
    "parity_max",
    "parity_tokens",
    "empty_steps",
    "groups_without_signal",
    "exposed_grading_seconds",
)


@dataclass
class Ledger:
    """The fates of the groups of one purpose, entered in the order of their numbers.

    An evaluation or pretraining group counts as trained when it is used.
    """

    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # by reason
    # Of responses, see `ScoredGroup.count_tokens`.
    tokens: Counter[str] = field(default_factory=Counter)

    @property
    def position(self) -> int:
        """The number of the first group whose fate is open."""
        return self.trained + sum(self.dropped.values())

    def enter(self, fates: Sequence[str]) -> None:
        """Enter the fates of the next groups: `USED`, or why they were dropped."""
        for fate in fates:
            if fate == USED:
                self.trained += 1
            else:
                self.drop(fate)

    def drop(self, reason: str, count: int = 1) -> None:
        if count > 0:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def account(self, purpose: Purpose, requested: int, open_keys: Set[str]) -> dict[str, Any]:
        """Return the account at this moment: asked = trained + dropped + under way.

        Args:
            purpose: of the groups.
            requested: how many groups had been requested before ``open_keys`` was looked up.
            open_keys: keys of groups in the exchange or waiting in the learner, of any purpose.
        """
        open_numbers = range(self.position, requested)
        return {
            "asked": requested,
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "under_way": sum(group_key(purpose, n) in open_keys for n in open_numbers),
        }


class Progress(BaseModel):
    """How far one job is; as JSON it is a checkpoint's ``state.json``."""

    model_config = ConfigDict(extra="forbid")

    # Training steps that are done; the policy after them has this number.
    step: int = 0
    # A client's last operation that changed the weights, -1 for none.
    operation: int = -1
    # Pretraining steps of the critic that are done.
    pretrained: int = 0
    # The explained variance of the newest of these.
    explained: list[float] = []
    # The recent share of groups that dynamic sampling kept.
    keep_rate: float = 1.0
    # The tasks of open numbers, and what later ones depend on.
    curriculum: CurriculumState = Field(default_factory=CurriculumState)
    # The user has accepted the losses among the groups below these numbers.
    accepted: dict[Purpose, int] = Field(default_factory=lambda: dict.fromkeys(Purpose, 0))
    ledgers: dict[Purpose, Ledger] = Field(default_factory=lambda: {p: Ledger() for p in Purpose})
    # The first and the newest, without their tasks.
    evaluations: list[dict[str, Any]] = []
    # The number of all evaluations.
    evaluated: int = 0
    # The step whose evaluation is under way.
    evaluating: int | None = None
    totals: dict[str, float] = Field(default_factory=lambda: dict.fromkeys(_TOTALS, 0.0))
    phase_seconds: dict[str, float] = {}
    # The metrics of the last step.
    metrics: dict[str, float | None] = {}
    # The oldest segment of the log that this checkpoint needs.
    first_segment: str = ""
    # The number of ranks that saved the models.
    ranks: int | None = None
    # Log-probs of the probes under the first version and the newest ones.
    probes: dict[int, list[float]] = {}
    # Steps that an earlier attempt reported.
    steps_reported: int = Field(default=0, exclude=True)

    @property
    def is_replayed(self) -> bool:
        """Whether an earlier attempt has made the next step."""
        return self.step < self.steps_reported

    @property
    def checkpoint_name(self) -> str:
        """The name of this moment's checkpoint; names sort in the order of training."""
        name = f"step-{self.step:06d}"
        if self.step == 0 and self.pretrained:
            name += f"-pretrain-{self.pretrained:06d}"
        return name

    @property
    def positions(self) -> dict[Purpose, int]:
        """The first number of each purpose whose fate is open."""
        return {purpose: ledger.position for purpose, ledger in self.ledgers.items()}

    def completed_steps(self, purpose: Purpose) -> int:
        """Return how many steps are done, or were when the running evaluation began.

        For the critic's pretraining these are the critic's steps.
        """
        if purpose is Purpose.PRETRAIN:
            return self.pretrained
        if purpose is Purpose.EVAL and self.evaluating is not None:
            return self.evaluating
        return self.step

    def note_evaluation(self, result: Mapping[str, Any]) -> None:
        """Add a result without its tasks, which its event has."""
        self.evaluated += 1
        self.evaluations.append({n: value for n, value in result.items() if n != "per_task"})
        del self.evaluations[1:-_MAX_EVALUATIONS]

    def note_pretraining(self, metrics: Mapping[str, float]) -> None:
        self.pretrained += 1
        explained = metrics.get("explained_variance", math.nan)
        if math.isfinite(explained):
            self.explained = [*self.explained, explained][-_EXPLAINED_STEPS:]

    def explains(self, min_variance: float | None) -> bool:
        """Whether the critic explained this share of the variance in its newest steps."""
        if min_variance is None or len(self.explained) < _EXPLAINED_STEPS:
            return False
        return fmean(self.explained) >= min_variance

    def note_probes(self, version: int, logprobs: list[float]) -> None:
        self.probes[version] = logprobs
        for old in sorted(self.probes)[1:-_MAX_PROBES]:
            del self.probes[old]

    def note_parity(self, metrics: Mapping[str, float]) -> None:
        """Add the gap between the log-probs of learner and rollouts, if it was measured."""
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
            self.totals["updates_without_gradient"] += updates
        self.totals["groups_without_signal"] += metrics.get("without_signal", 0.0)
        self.totals["exposed_grading_seconds"] += metrics.get("exposed_grading_seconds", 0.0)

    def note_work(self, seconds: float, responses: int, tokens: int) -> None:
        """Add a training step's responses and tokens, and the seconds since the step before."""
        self.totals["train_seconds"] += seconds
        self.totals["samples"] += responses
        self.totals["tokens"] += tokens

    def note_phases(self, phase_seconds: Mapping[str, float]) -> dict[str, Any]:
        """Add the seconds of each phase since the last step; return them and all totals."""
        for phase, seconds in phase_seconds.items():
            self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + seconds
        return {
            "phase_seconds": dict(phase_seconds),
            "phase_seconds_total": dict(self.phase_seconds),
            "totals": dict(self.totals),
        }

    def learning_failure(self) -> str | None:
        """Return why no step changed the policy, or None if one did."""
        ledger = self.ledgers[Purpose.TRAIN]
        if ledger.trained and not self.totals["updates"]:
            return "nothing was learned: no update had a finite loss and gradient"
        if ledger.trained and self.totals["updates_without_gradient"] < self.totals["updates"]:
            return None
        lost = Counter(ledger.dropped) + Counter(no_signal=ledger.trained)
        return (
            f"nothing was learned: none of {ledger.position} groups was trained "
            f"({format_counts(lost)})"
        )


def format_counts(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in reasons.items())
