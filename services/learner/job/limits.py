"""Limits: what makes a job pause by itself, or end; none holds for steps that are replayed."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from protocol.messages import (
    FailureKind,
    Fault,
    Graded,
    GradedGroup,
    Notice,
    Requested,
    Status,
    Ungradable,
)
from protocol.recipe import Purpose, Recipe

from services.chassis.service import Service
from services.learner.attempt import EnginesFault, JobFault
from services.learner.durable.progress import in_words
from services.learner.job.control import PauseRequested
from services.learner.job.learning import Learning

_LONGEST_EXAMPLE = 500
_MOST_STARTS = 3  # of each rollout that fail for the job, in a row; one less for the same reason
_UNREADABLE = {"no_answer", "not_parsable", "no_output", "no_solution"}  # reasons
_LOST = {
    "ungradable": "paused: {share:.0%} of the scores of {moment} could not be graded ({reasons}), "
    "more than reward.max_ungradable = {most:.0%}; mend the grader, then resume the job",
    "broken": "paused: {share:.0%} of the episodes of {moment} broke ({reasons}), more than "
    "reward.max_ungradable = {most:.0%}; mend the environment, then resume the job; it said last: "
    "{example}",
    "failed": "paused: {share:.0%} of the groups of {moment} failed ({reasons}), more than "
    "training.max_failed = {most:.0%}; mend what made them fail, then resume the job, which goes "
    "on without them; the last one: {example}",
}


async def check_lost(learning: Learning, groups: Sequence[GradedGroup], moment: str) -> None:
    """Above the recipe's limits the user decides: PAPO must not silently become GRPO.

    Resuming the job accepts the loss. The checkpoint remembers that; an attempt that begins from
    an older one pauses again, unless an earlier attempt has made the step.

    Raises:
        PauseRequested: if too much was lost of these groups.
        JobFault: if no worker can work on any of them, nor could on one before.
    """
    progress = learning.progress
    if not groups or progress.is_replayed:
        return
    await _warn_of_no_answers(learning, groups, moment)
    last = groups[-1]
    accepted = progress.accepted[last.purpose]
    lost = too_much_lost(groups, learning.recipe, accepted)
    trained = progress.ledgers[last.purpose].trained
    end = None if trained else why_none_can_work(groups, accepted)
    if lost or end:
        progress.accepted[last.purpose] = last.number + 1
    if end:
        await learning.versions.save()
        raise JobFault(f"none of the {len(groups)} groups of {moment} can work: {end}")
    for part in lost:
        data = Notice(details={"share": part.share, "reasons": dict(part.reasons)})
        event_id = f"{part.kind}:{learning.attempt.number}"
        await learning.attempt.say(event_id, part.words(moment), level="warn", data=data)
    if lost:
        await _pause(learning, "\n".join(part.words(moment) for part in lost))


async def _warn_of_no_answers(
    learning: Learning, groups: Sequence[GradedGroup], moment: str
) -> None:
    outcomes = [grade.outcome for group in groups for grade in group.grades]
    reasons = Counter(str(each.reason) for each in outcomes if isinstance(each, Graded))
    if reasons and reasons.keys() <= _UNREADABLE:
        why = (
            f"{moment}: none of {reasons.total()} responses had a readable answer: see the prompt "
            f"({in_words(reasons)})"
        )
        await learning.attempt.say(
            "no_answers", why, level="warn", data=Notice(details={"reasons": dict(reasons)})
        )


async def check_finite(learning: Learning, moment: str, metrics: Mapping[str, float]) -> None:
    """Whatever was not finite was not learned from; the user may want to know before more.

    Raises:
        PauseRequested: if the recipe wants a pause then.
    """
    names = [name for name, value in metrics.items() if not math.isfinite(value)]
    if not names:
        return
    why = (
        f"{moment}: not finite: {', '.join(names)}; no update was made of a loss or a gradient "
        "that is not finite. If this goes on, lower optimizer.learning_rate, or look at the "
        "samples of the step"
    )
    data = Notice(details={"metrics": [*names]})
    await learning.attempt.say(f"non_finite:{moment}", why, level="warn", data=data)
    if learning.recipe.training.on_nonfinite == "pause" and not learning.progress.is_replayed:
        await _pause(learning, why)


async def _pause(learning: Learning, why: str) -> None:
    await learning.control.pause(why)
    if learning.control.requested is Requested.PAUSE:
        raise PauseRequested(learning.control.pause_error)


@dataclass(frozen=True)
class Lost:
    """The share of scores or groups that was lost, how many by reason, and one reason in full."""

    kind: Literal["ungradable", "failed"]
    share: float
    most: float  # that the recipe allows
    reasons: Mapping[str, int]
    example: str = ""

    def words(self, moment: str) -> str:
        """Why the job pauses at a moment, for example "step 7"."""
        is_broken = self.kind == "ungradable" and self.example
        return _LOST["broken" if is_broken else self.kind].format(
            share=self.share,
            most=self.most,
            moment=moment,
            reasons=in_words(self.reasons),
            example=self.example,
        )


def too_much_lost(groups: Sequence[GradedGroup], recipe: Recipe, accepted: int) -> list[Lost]:
    """What was lost of a purpose's groups, as far as it is more than allowed.

    Args:
        accepted: groups with a number below count as if nothing had been lost of them.
    """
    open_groups = [group for group in groups if group.number >= accepted]
    failures = [group.failure for group in open_groups if group.failure]
    share = len(failures) / max(1, len(groups))
    example = str(failures[-1])[:_LONGEST_EXAMPLE] if failures else ""
    most = recipe.training.max_failed
    reasons = Counter(str(failure.kind) for failure in failures)
    lost = [Lost("failed", share, most, reasons, example)]
    if any(group.purpose is not Purpose.EVAL for group in groups):  # its result has them
        asked = sum(1 for group in groups for _ in _scores(group))
        scores = [score for group in open_groups for score in _scores(group)]
        reasons = Counter(score.reason for score in scores if isinstance(score, Ungradable))
        share, most = reasons.total() / max(1, asked), recipe.reward.max_ungradable
        words = [words for group in open_groups for words in _said_by_environments(group)]
        example = words[-1][:_LONGEST_EXAMPLE] if words else ""
        lost.append(Lost("ungradable", share, most, reasons, example))
    return [part for part in lost if part.share > part.most]


def _scores(group: GradedGroup) -> list[Graded | Ungradable]:
    scores = (score for grade in group.grades for score in (grade.outcome, grade.process))
    return [score for score in scores if score is not None]


def _said_by_environments(group: GradedGroup) -> Iterator[str]:
    """About the episodes without a score; a reward may be outside of the check's range."""
    for response, grade in zip(
        group.group.responses if group.group else (), group.grades, strict=False
    ):
        if response.episode is not None and grade.accuracy is None:
            yield response.episode.words or f"the reward {response.episode.reward:g}"


def why_none_can_work(groups: Sequence[GradedGroup], accepted: int) -> str | None:
    """What the workers said of the last of these groups if they could work on none, and the remedy.

    Args:
        accepted: the user has accepted what became of the groups below this number.
    """
    failures = [group.failure for group in groups if group.number >= accepted and group.failure]
    if len(failures) < len(groups):
        return None
    if any(failure.kind is not FailureKind.UNWORKABLE for failure in failures):
        return None
    example = failures[-1].message[:_LONGEST_EXAMPLE]
    return f"{example}; mend that, or resume the job, which goes on without them"


async def watch_engines_forever(
    service: Service, learning: Learning, last_fault: Fault | None
) -> None:
    """Consumes the rollouts' statuses; produces an error if none can serve the job.

    Waits for: the next heartbeat; in the end, to be cancelled. Unblocked by: time.

    Args:
        service: the learner.
        learning: this attempt at the job.
        last_fault: what the attempt before this one ended with.

    Raises:
        JobFault: if no engine has ever started, and each rollout has tried often enough.
        EnginesFault: if the rollouts had already failed before, so that others may be to blame.
    """
    progress = learning.progress
    starts = FailedStarts(
        learning.attempt.job_id,
        any_served=bool(learning.intake.waiting) or any(progress.positions.values()),
        was_held_up=last_fault is Fault.ENGINES,
    )
    while progress.step == progress.made_before == 0 and not starts.any_served:
        statuses = await service.exchange.statuses()
        if why := starts.why_none_works([s for s in statuses.values() if s.service == "rollout"]):
            if starts.failed_before:
                raise EnginesFault(f"{why}; they had failed before it, too; see to their machine")
            raise JobFault(
                f"{why}; mend that and resume the job, or submit it with another model or settings"
            )
        await asyncio.sleep(service.deployment.heartbeat_s)
    await asyncio.Event().wait()


@dataclass
class FailedStarts:
    """The starts of the rollouts' engines, looked at from the job's activation on.

    One that dies before it has served the job has not started.
    """

    job_id: str
    any_served: bool = False  # what breaks after that is the machine
    was_held_up: bool = False  # since the rollouts were failing when the job first came
    _before: dict[str, int] = field(default_factory=dict)  # starts in earlier attempts, by replica
    _said: dict[tuple[str, int], str] = field(default_factory=dict)  # after a replica's starts
    _for_others: set[str] = field(default_factory=set)  # replicas that had failed for other jobs

    @property
    def failed_before(self) -> bool:
        """Whether a rollout was failing when the job came."""
        return any(self._before[replica] > 1 for replica in self._for_others)

    def why_none_works(self, rollouts: Collection[Status]) -> str | None:
        """What the engine said last if every rollout has failed for the job too often."""
        self.any_served = self.any_served or any(status.holds for status in rollouts)
        said = [
            status.failure.words for status in rollouts if self._fails(status) if status.failure
        ]
        if self.any_served or not said or len(said) < len(rollouts):
            return None
        return f"no engine starts for it, tried again and again: {said[-1]}; see the rollout's log"

    def _fails(self, status: Status) -> bool:
        job_id = status.failure.job_id if status.failure else None
        if status.replica not in self._before and (self.was_held_up or job_id != self.job_id):
            self._for_others.add(status.replica)
        before = min(self._before.get(status.replica, status.starts), status.starts)
        self._before[status.replica] = before
        failed = status.starts - max(1, before)  # the last start has not failed yet
        words = status.failure.words if status.failure else ""
        self._said[status.replica, status.starts] = words
        is_repeated = self._said.get((status.replica, status.starts - 1)) == words
        return job_id is not None and failed >= _MOST_STARTS - is_repeated
