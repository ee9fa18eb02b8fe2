"""Selection: the groups that a training step uses, and the number of further requests. Pure.

A step inspects groups in the order of their numbers and keeps those with a signal, until it has
``groups_per_step`` of them, or has judged ``max_oversampling`` times as many. Each decision depends
only on the first number, the groups and the step, so an attempt that repeats a step decides the
same. Without dynamic sampling the factor is 1: every group that has not failed is kept.

A group that is too old for its step is surplus: it is dropped unjudged, since it says nothing about
the tasks. A step still ends: at most ``groups_in_flight`` groups can be surplus, because requests
during the step are sampled with fresh enough weights.

A step also waits for a group that may turn out to be surplus: until it arrives, fresh enough
weights may still sample it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.messages import GradedGroup
from protocol.recipe import Recipe
from protocol.samples import USED

from services.learner.training.scoring import ScoredGroup, Scoring

NO_SIGNAL = "no_signal"
SURPLUS = "surplus"


@dataclass(frozen=True)
class Lookahead:
    """The numbers that may be requested, and the step that each is expected to serve."""

    step: int = 0
    position: int = 0  # the next number to inspect
    needs: tuple[int, ...] = ()  # numbers that this step and each later one may still inspect
    limit: int = 0  # numbers from the position on that may be requested at most

    @property
    def admitted(self) -> int:
        """Every number below may be requested."""
        return self.position + min(sum(self.needs), self.limit)

    def expected_step(self, number: int) -> int:
        """Return the step that is expected to inspect a number, at most the last one with needs."""
        end = self.position
        for ahead, need in enumerate(self.needs):
            end += need
            if number < end:
                return self.step + ahead
        return self.step + max(0, len(self.needs) - 1)


@dataclass
class Selection:
    recipe: Recipe
    scoring: Scoring
    step: int
    first: int  # the first number that the step inspects
    keep_rate: float = 1.0  # the recent share of kept groups
    looked_at: list[ScoredGroup] = field(default_factory=list)
    exposed_grading_seconds: float = 0.0  # the step waited for grading

    def __post_init__(self) -> None:
        training = self.recipe.training
        self._dynamic = training.dynamic_sampling
        self._per_step = training.groups_per_step
        self._oversampling = training.max_oversampling if self._dynamic else 1.0
        self._limit = math.ceil(self._per_step * self._oversampling)  # of judged groups

    @property
    def kept(self) -> list[ScoredGroup]:
        return used(self.looked_at)

    @property
    def dropped(self) -> list[str]:
        return [group.fate for group in self.looked_at if group.fate != USED]

    @property
    def next_number(self) -> int:
        return self.first + len(self.looked_at)

    @property
    def is_complete(self) -> bool:
        return self._deficit <= 0 or self._inspectable <= 0

    @property
    def is_undersampled(self) -> bool:
        """Whether dynamic sampling reached its limit before it had enough groups."""
        return self._dynamic and self.is_complete and self._deficit > 0

    @property
    def waste(self) -> float:
        """The share of dropped groups among those judged."""
        return (self.judged - len(self.kept)) / max(1, self.judged)

    @property
    def surplus(self) -> int:
        return self.dropped.count(SURPLUS)

    @property
    def judged(self) -> int:
        """The groups that count for ``max_oversampling``: all without surplus."""
        return len(self.looked_at) - self.surplus

    def counts(self, kept_with_signal: int) -> dict[str, float]:
        without_signal = len(self.kept) - kept_with_signal + self.dropped.count(NO_SIGNAL)
        return {
            "kept": len(self.kept),
            "looked_at": len(self.looked_at),
            "surplus": self.surplus,
            "waste": self.waste,
            "without_signal": without_signal,
            "exposed_grading_seconds": self.exposed_grading_seconds,
        }

    @property
    def to_check(self) -> list[GradedGroup]:
        """The groups whose lost scores are checked now: none, or the last ``groups_per_step``.

        The check is due after every ``groups_per_step`` groups and at the end: among fewer groups a
        single ungradable score would weigh too much.
        """
        is_due = self.is_complete or len(self.looked_at) % self._per_step == 0
        groups = self.looked_at[-self._per_step :] if is_due else []
        return [group.graded for group in groups]

    def look(self, group: GradedGroup, waited_s: float = 0.0) -> None:
        """Keep or drop the next group, for which the step waited ``waited_s``."""
        assert group.number == self.next_number, (
            "groups are inspected in the order of their numbers"
        )
        scored = ScoredGroup(group, self.scoring)
        if scored.fate == USED:
            scored.fate = self._decide_fate(scored)
        self.looked_at.append(scored)
        self.exposed_grading_seconds += min(waited_s, group.grading_seconds)
        if scored.fate != SURPLUS:  # its age says nothing about the tasks
            memory = 2 * self._per_step
            self.keep_rate += (float(scored.fate == USED) - self.keep_rate) / memory

    @property
    def lookahead(self) -> Lookahead:
        """The numbers to request now: this step's deficit, and ``max_staleness`` steps more.

        While the step is not complete, they include the next number.
        """
        training = self.recipe.training
        steps_ahead = min(training.max_staleness, training.steps - 1 - self.step)
        ahead = (min(self._to_keep(self._per_step), self._limit),) * max(0, steps_ahead)
        now = min(self._to_keep(self._deficit), self._inspectable)
        needs = (max(0, now), *ahead) if self.step < training.steps else ()
        return Lookahead(self.step, self.next_number, needs, self.recipe.groups_in_flight)

    def _decide_fate(self, group: ScoredGroup) -> str:
        if oldest_version(group.graded, self.step) < self.step - self.recipe.training.max_staleness:
            return SURPLUS
        return NO_SIGNAL if self._dynamic and not group.has_signal else USED

    def _to_keep(self, groups: int) -> int:
        """Estimate how many groups to inspect until ``groups`` are kept."""
        return math.ceil(groups / max(self.keep_rate, 1 / self._oversampling))

    @property
    def _deficit(self) -> int:
        return self._per_step - len(self.kept)

    @property
    def _inspectable(self) -> int:
        return self._limit - self.judged


def oldest_version(group: GradedGroup, default: int) -> int:
    """Return the oldest version of the policy that sampled a token of a group."""
    responses = group.group.responses if group.group is not None else ()
    return min((span.version for response in responses for span in response.spans), default=default)


def used(groups: Iterable[ScoredGroup]) -> list[ScoredGroup]:
    return [group for group in groups if group.fate == USED]
