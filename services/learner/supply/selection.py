"""Selection: which groups a training step takes, and how many more to ask for. Pure.

A step looks at groups in the order of their numbers and keeps those that have something to teach,
until it has ``groups_per_step`` of them, or has judged ``max_oversampling`` times as many. Each
decision follows from the first number, the groups and the step alone, so that an attempt which
takes a step again decides the same. Without dynamic sampling it is the same rule with a factor of
1: every group that has not failed is kept, and none is replaced.

A group that is too old for its step is surplus: it is dropped unjudged, and says nothing about the
tasks. A step ends for all that, since it comes upon at most ``groups_in_flight`` of them: what is
asked for while a step is under way is answered by weights that are fresh enough for it, so surplus
was asked for before, when at most so many numbers from the step's first on were admitted.

A step waits in the order of the numbers for such a group too, although it may only drop it: until
it is answered, weights that are fresh enough may still answer it.
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
    """How far ahead may be asked, and which step a number is expected to serve."""

    step: int = 0
    position: int = 0  # the next number that will be looked at
    needs: tuple[int, ...] = ()  # so many numbers this step and those after it may yet look at
    most: int = 0  # so many numbers from the position on may be asked for, whatever the needs

    @property
    def admitted(self) -> int:
        """Every number below may be asked for."""
        return self.position + min(sum(self.needs), self.most)

    def step_of(self, number: int) -> int:
        """The step that is expected to look at a number, at most the last one that has needs."""
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
    first: int  # the first number that the step looks at
    keep_rate: float = 1.0  # the recent share of groups that were kept
    looked_at: list[ScoredGroup] = field(default_factory=list)
    exposed_grading_seconds: float = 0.0  # that the step waited for while groups were graded

    def __post_init__(self) -> None:
        training = self.recipe.training
        self._dynamic, self._per_step = training.dynamic_sampling, training.groups_per_step
        self._oversampling = training.max_oversampling if self._dynamic else 1.0
        self._limit = math.ceil(self._per_step * self._oversampling)  # to be judged

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
        return self._wanted <= 0 or self._may_look_at <= 0

    @property
    def is_undersampled(self) -> bool:
        """Whether dynamic sampling has given up before it had enough groups."""
        return self._dynamic and self.is_complete and self._wanted > 0

    @property
    def waste(self) -> float:
        """The share of dropped groups among those judged."""
        return (self.judged - len(self.kept)) / max(1, self.judged)

    @property
    def surplus(self) -> int:
        return self.dropped.count(SURPLUS)

    @property
    def judged(self) -> int:
        """How many groups count against ``max_oversampling``: all but surplus."""
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
        """The groups whose losses are to be checked now: none, or the last ``groups_per_step``.

        They are due whenever so many are new, and once more in the end: fewer would let a single
        score that could not be graded outweigh them.
        """
        is_due = self.is_complete or len(self.looked_at) % self._per_step == 0
        return [group.graded for group in self.looked_at[-self._per_step :]] if is_due else []

    def look(self, group: GradedGroup, waited_s: float = 0.0) -> None:
        """Keep the next group, for which the step has waited so long, or drop it for a reason."""
        assert group.number == self.next_number, (
            "groups are looked at in the order of their numbers"
        )
        scored = ScoredGroup(group, self.scoring)
        if scored.fate == USED:
            scored.fate = self._fate_of(scored)
        self.looked_at.append(scored)
        self.exposed_grading_seconds += min(waited_s, group.grading_seconds)
        if scored.fate != SURPLUS:  # its age says nothing about what the tasks have to teach
            memory = 2 * self._per_step
            self.keep_rate += (float(scored.fate == USED) - self.keep_rate) / memory

    @property
    def lookahead(self) -> Lookahead:
        """What to ask for now: this step's deficit, and ``max_staleness`` steps more.

        While the step is not complete, the next number is always among it.
        """
        training = self.recipe.training
        steps_ahead = min(training.max_staleness, training.steps - 1 - self.step)
        ahead = (min(self._to_keep(self._per_step), self._limit),) * max(0, steps_ahead)
        now = min(self._to_keep(self._wanted), self._may_look_at)
        needs = (max(0, now), *ahead) if self.step < training.steps else ()
        return Lookahead(self.step, self.next_number, needs, self.recipe.groups_in_flight)

    def _fate_of(self, group: ScoredGroup) -> str:
        if oldest_version(group.graded, self.step) < self.step - self.recipe.training.max_staleness:
            return SURPLUS
        return NO_SIGNAL if self._dynamic and not group.has_signal else USED

    def _to_keep(self, groups: int) -> int:
        """How many groups to look at, by experience, until so many are kept."""
        return math.ceil(groups / max(self.keep_rate, 1 / self._oversampling))

    @property
    def _wanted(self) -> int:
        return self._per_step - len(self.kept)

    @property
    def _may_look_at(self) -> int:
        return self._limit - self.judged


def oldest_version(group: GradedGroup, default: int) -> int:
    """The oldest version of the policy that sampled a token of a group, else ``default``."""
    responses = group.group.responses if group.group is not None else ()
    return min((span.version for r in responses for span in r.spans), default=default)


def used(groups: Iterable[ScoredGroup]) -> list[ScoredGroup]:
    return [group for group in groups if group.fate == USED]
