"""Limits: what pauses or ends a job by itself; none applies to steps that are replayed."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from protocol.messages import (
    FailureKind,
    Fault,
    Graded,
    GradedGroup,
    Requested,
    Status,
    Ungradable,
)
from protocol.recipe import Purpose, Recipe

from services.chassis.service import Service
from services.learner.attempt import EnginesFault, JobFault
from services.learner.durable.progress import format_counts
from services.learner.job.control import PauseRequested
from services.learner.job.learning import Learning

_MAX_EXAMPLE_CHARS = 500  # enough for an error with its cause, in a line of a job's history
# Each rollout's engine may fail to start this often in a row for a job. The same error twice is
# enough: it will not go away.
_MAX_FAILED_STARTS = 3
_MAX_REPEATED_STARTS = 2
# Reasons of verifiers for a response without a readable answer.
_UNREADABLE = {"no_answer", "not_parsable", "no_output", "no_solution"}
_SPENT = (
    "paused: the job has used {:.4g} of its training.budget_gpu_hours = {:.4g}; raise the budget: "
    "weir resume {} --budget HOURS"
)
_MESSAGES = {
    "ungradable": "paused: {share:.0%} of the scores of {moment} could not be graded ({reasons}), "
    "more than reward.max_ungradable = {limit:.0%}; repair the grader, then resume the job",
    "broken": "paused: {share:.0%} of the episodes of {moment} broke ({reasons}), more than "
    "reward.max_ungradable = {limit:.0%}; repair the environment, then resume the job; the last "
    "error: {example}",
    "failed": "paused: {share:.0%} of the groups of {moment} failed ({reasons}), more than "
    "training.max_failed = {limit:.0%}; repair the cause, then resume the job, which continues "
    "without these groups; the last error: {example}",
}


async def check_lost(learning: Learning, groups: Sequence[GradedGroup], moment: str) -> None:
    """Pause a job that loses more than its recipe allows: PAPO must not silently become GRPO.

    Resuming the job accepts the loss. The checkpoint records that; an attempt that begins from an
    older checkpoint pauses again, unless an earlier attempt has made the step.

    Raises:
        PauseRequested: if too much was lost of these groups.
        JobFault: if no worker can work on any of them, and no group was trained before.
    """
    progress = learning.progress
    if not groups or progress.is_replayed:
        return
    await _warn_of_no_answers(learning, groups, moment)
    last = groups[-1]
    accepted = progress.accepted[last.purpose]
    losses = find_losses(groups, learning.recipe, accepted)
    unworkable = None
    if not progress.ledgers[last.purpose].trained:
        unworkable = unworkable_reason(groups, accepted)
    if losses or unworkable:
        progress.accepted[last.purpose] = last.number + 1
    if unworkable:
        await learning.versions.save()
        raise JobFault(f"none of the {len(groups)} groups of {moment} can work: {unworkable}")
    for lost in losses:
        await learning.attempt.warn(
            f"{lost.kind}:{learning.attempt.number}",
            lost.message(moment),
            share=lost.share,
            reasons=lost.reasons,
        )
    if losses:
        await _pause(learning, "\n".join(lost.message(moment) for lost in losses))


async def _warn_of_no_answers(
    learning: Learning, groups: Sequence[GradedGroup], moment: str
) -> None:
    outcomes = [grade.outcome for group in groups for grade in group.grades]
    reasons = Counter(str(outcome.reason) for outcome in outcomes if isinstance(outcome, Graded))
    if reasons and reasons.keys() <= _UNREADABLE:
        message = (
            f"{moment}: none of {reasons.total()} responses had a readable answer; check the "
            f"prompt ({format_counts(reasons)})"
        )
        await learning.attempt.warn("no_answers", message, reasons=reasons)


async def check_finite(learning: Learning, moment: str, metrics: Mapping[str, float]) -> None:
    """Warn of metrics that are not finite; their updates were skipped.

    Raises:
        PauseRequested: if the recipe pauses the job then.
    """
    names = [name for name, value in metrics.items() if not math.isfinite(value)]
    if not names:
        return
    message = (
        f"{moment}: not finite: {', '.join(names)}; updates with such a loss or gradient are "
        "skipped. If this continues, lower optimizer.learning_rate, or look at the samples of "
        "the step"
    )
    await learning.attempt.warn(f"non_finite:{moment}", message, metrics=names)
    if learning.recipe.training.on_nonfinite == "pause" and not learning.progress.is_replayed:
        await _pause(learning, message)


async def _pause(learning: Learning, reason: str) -> None:
    await learning.control.pause(reason)
    if learning.control.requested is Requested.PAUSE:
        raise PauseRequested(learning.control.pause_error)


@dataclass(frozen=True)
class Lost:
    """The share of scores or groups that were lost, their reasons, and one reason in full."""

    kind: Literal["ungradable", "failed"]
    share: float
    limit: float  # the largest share that the recipe allows
    reasons: Mapping[str, int]
    example: str = ""

    def message(self, moment: str) -> str:
        """Return why the job pauses at a moment, for example "step 7"."""
        is_broken = self.kind == "ungradable" and self.example
        return _MESSAGES["broken" if is_broken else self.kind].format(
            share=self.share,
            limit=self.limit,
            moment=moment,
            reasons=format_counts(self.reasons),
            example=self.example,
        )


def find_losses(groups: Sequence[GradedGroup], recipe: Recipe, accepted: int) -> list[Lost]:
    """Return the losses among a purpose's groups that exceed the recipe's limits.

    Args:
        accepted: the losses of groups below this number do not count.
    """
    open_groups = [group for group in groups if group.number >= accepted]
    losses = [_failed_groups(groups, open_groups, recipe.training.max_failed)]
    # The result of an evaluation reports its ungradable scores.
    if any(group.purpose is not Purpose.EVAL for group in groups):
        losses.append(_ungradable_scores(groups, open_groups, recipe.reward.max_ungradable))
    return [lost for lost in losses if lost.share > lost.limit]


def _failed_groups(
    groups: Sequence[GradedGroup], open_groups: Sequence[GradedGroup], limit: float
) -> Lost:
    failures = [group.failure for group in open_groups if group.failure]
    share = len(failures) / max(1, len(groups))
    example = str(failures[-1])[:_MAX_EXAMPLE_CHARS] if failures else ""
    reasons = Counter(str(failure.kind) for failure in failures)
    return Lost("failed", share, limit, reasons, example)


def _ungradable_scores(
    groups: Sequence[GradedGroup], open_groups: Sequence[GradedGroup], limit: float
) -> Lost:
    num_scores = sum(len(_scores(group)) for group in groups)
    scores = [score for group in open_groups for score in _scores(group)]
    reasons = Counter(score.reason for score in scores if isinstance(score, Ungradable))
    errors = [error for group in open_groups for error in _environment_errors(group)]
    example = errors[-1][:_MAX_EXAMPLE_CHARS] if errors else ""
    return Lost("ungradable", reasons.total() / max(1, num_scores), limit, reasons, example)


def _scores(group: GradedGroup) -> list[Graded | Ungradable]:
    scores = (score for grade in group.grades for score in (grade.outcome, grade.process))
    return [score for score in scores if score is not None]


def _environment_errors(group: GradedGroup) -> Iterator[str]:
    """Return the errors of episodes without a score; a reward may be out of the check's range."""
    if group.group is None:
        return
    for response, grade in zip(group.group.responses, group.grades, strict=False):
        if response.episode is not None and grade.accuracy is None:
            yield response.episode.words or f"the reward {response.episode.reward:g}"


def unworkable_reason(groups: Sequence[GradedGroup], accepted: int) -> str | None:
    """Return why no worker can work on any of these groups, with the remedy, or None if one can.

    Args:
        accepted: the user has accepted the losses of groups below this number.
    """
    failures = [group.failure for group in groups if group.number >= accepted and group.failure]
    if len(failures) < len(groups):
        return None
    if any(failure.kind is not FailureKind.UNWORKABLE for failure in failures):
        return None
    example = failures[-1].message[:_MAX_EXAMPLE_CHARS]
    return f"{example}; repair that, or resume the job, which continues without these groups"


async def watch_budget_forever(service: Service, learning: Learning) -> NoReturn:
    """Consumes the job's cost; produces a pause when its budget is spent.

    Waits for: the next heartbeat; in the end, to be cancelled. Unblocked by: time.
    """
    attempt = learning.attempt
    control = learning.control
    while True:
        await asyncio.sleep(service.deployment.heartbeat_s)
        budget = await service.exchange.changed_budget(attempt.job_id)
        budget = budget or learning.recipe.training.budget_gpu_hours
        if budget is None or control.requested is not Requested.RUN:
            continue
        spent = (await learning.make_bill())["gpu_hours"]
        if spent >= budget:
            message = _SPENT.format(spent, budget, attempt.job_id)
            await attempt.warn(f"budget:{attempt.number}", message, gpu_hours=spent)
            # The user sees it also if the learner stops before it obeys.
            await attempt.update(error=message)
            await control.pause(message)


async def watch_engines_forever(
    service: Service, learning: Learning, last_fault: Fault | None
) -> None:
    """Consumes the rollouts' statuses; produces an error if none can serve the job.

    Waits for: the next heartbeat; in the end, to be cancelled. Unblocked by: time.

    Args:
        service: the learner.
        learning: this attempt at the job.
        last_fault: the fault that ended the attempt before.

    Raises:
        JobFault: if no engine has ever started, and each rollout has tried often enough.
        EnginesFault: if the rollouts failed before the job came, so that it may not be at fault.
    """
    progress = learning.progress
    starts = FailedStarts(
        learning.attempt.job_id,
        has_served=bool(learning.intake.waiting) or any(progress.positions.values()),
        was_paused=last_fault is Fault.ENGINES,
    )
    while progress.step == progress.steps_reported == 0 and not starts.has_served:
        statuses = (await service.exchange.statuses()).values()
        error = starts.find_error([status for status in statuses if status.service == "rollout"])
        if error and starts.failed_before:
            raise EnginesFault(
                f"{error}; the rollouts were failing before this job started; check their machine"
            )
        if error:
            raise JobFault(
                f"{error}; repair that and resume the job, or submit it with another model or "
                "settings"
            )
        await asyncio.sleep(service.deployment.heartbeat_s)
    await asyncio.Event().wait()


@dataclass
class FailedStarts:
    """The starts of the rollouts' engines since the job's activation.

    A start has failed if the engine dies before it has served the job.
    """

    job_id: str
    has_served: bool = False  # a later failure is the machine's fault
    was_paused: bool = False  # the rollouts were failing when the job first came
    _starts_before: dict[str, int] = field(default_factory=dict)  # in earlier attempts, by replica
    _errors: dict[tuple[str, int], str] = field(default_factory=dict)  # by replica and starts
    _failed_for_others: set[str] = field(default_factory=set)  # replicas

    @property
    def failed_before(self) -> bool:
        """Whether a rollout was failing when the job came."""
        return any(self._starts_before[replica] > 1 for replica in self._failed_for_others)

    def find_error(self, rollouts: Collection[Status]) -> str | None:
        """Return the last error of an engine if every rollout has failed too often for the job."""
        self.has_served = self.has_served or any(status.holds for status in rollouts)
        failed = [status for status in rollouts if self._fails(status)]
        errors = [status.failure.words for status in failed if status.failure]
        if self.has_served or not errors or len(errors) < len(rollouts):
            return None
        return f"no engine starts for it after several tries: {errors[-1]}; see the rollout's log"

    def _fails(self, status: Status) -> bool:
        replica = status.replica
        job_id = status.failure.job_id if status.failure else None
        is_new = replica not in self._starts_before
        if is_new and (self.was_paused or job_id != self.job_id):
            self._failed_for_others.add(replica)
        before = min(self._starts_before.get(replica, status.starts), status.starts)
        self._starts_before[replica] = before
        # The last start has not failed yet.
        num_failed = status.starts - max(1, before)
        error = status.failure.words if status.failure else ""
        self._errors[replica, status.starts] = error
        is_repeated = self._errors.get((replica, status.starts - 1)) == error
        limit = _MAX_REPEATED_STARTS if is_repeated else _MAX_FAILED_STARTS
        return job_id is not None and num_failed >= limit
