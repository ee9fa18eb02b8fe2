"""The result of an evaluation: avg@k and pass@k on held-out tasks, with 95 % intervals. Pure.

The tasks are the sample, not the responses: another evaluation with more responses to the same
tasks says more about these tasks, but little about others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.messages import FinishReason, Grade, GradedGroup, RolloutGroup, is_right

MAX_TASKS_REPORTED = 2000  # the result is one event, and events are kept
_Z = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class TaskResult:
    """How the responses to one task were graded; those that could not be are left out."""

    task_id: str
    accuracies: tuple[float, ...]  # [graded response]

    @property
    def graded(self) -> int:
        return len(self.accuracies)

    @property
    def share(self) -> float:
        """The mean accuracy: the share of correct responses where each is right or wrong."""
        return sum(self.accuracies) / self.graded

    def pass_at(self, k: int) -> float:
        return pass_at_k(self.graded, sum(map(is_right, self.accuracies)), k)


def summarize(step: int, groups: Sequence[GradedGroup]) -> dict[str, Any]:
    """The result of an evaluation, flat but for ``per_task``: a number each, or None.

    The learner's README defines them. Above `MAX_TASKS_REPORTED` tasks ``per_task`` is absent.
    """
    answered = [group.group for group in groups if group.group is not None]
    results = [result for result in map(_task_result, groups) if result.graded]
    grades = [grade for group in groups for grade in group.grades]
    summary = {
        "step": step,
        "asked": len(groups),
        "failed": len(groups) - len(answered),
        "tasks": len(results),
        "samples": sum(len(group.responses) for group in answered),
        **_accuracy(results),
        **_pass_at_each_k(results, max((len(g.responses) for g in answered), default=0)),
        "process": _process(grade for grade in grades if grade.is_right),
        "process_wrong": _process(grade for grade in grades if not grade.is_right),
        "response_length": _mean(n for group in answered for n in group.own_lengths.tolist() if n),
        "truncated": _mean(_truncated(answered)),
        "ungradable": sum(grade.accuracy is None for grade in grades),
    }
    if len(results) <= MAX_TASKS_REPORTED:
        summary["per_task"] = {r.task_id: [sum(r.accuracies), r.graded] for r in results}
    return summary


def _task_result(group: GradedGroup) -> TaskResult:
    task_id = "" if group.group is None else group.group.request.task.id
    accuracies = (grade.accuracy for grade in group.grades)
    return TaskResult(task_id, tuple(value for value in accuracies if value is not None))


def _accuracy(results: Sequence[TaskResult]) -> dict[str, float | None]:
    draws = sum(result.graded for result in results)
    flat = _flat("accuracy", estimate([result.share for result in results], draws))
    low, high = flat["accuracy_low"], flat["accuracy_high"]
    half = None if low is None or high is None else (high - low) / 2
    return {**flat, "accuracy_interval": half}


def _pass_at_each_k(results: Sequence[TaskResult], samples: int) -> dict[str, float | None]:
    flat: dict[str, float | None] = {}
    for k in (2**power for power in range(samples.bit_length())):
        enough = [result for result in results if result.graded >= k]
        draws = sum(result.graded // k for result in enough)
        flat |= _flat(f"pass@{k}", estimate([result.pass_at(k) for result in enough], draws))
        flat[f"pass@{k}_left_out"] = len(results) - len(enough)
    return flat


def _flat(name: str, value: Estimate | None) -> dict[str, float | None]:
    """An estimate as keys of the summary, whose values become metrics by their names."""
    if value is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: value.mean, f"{name}_low": value.low, f"{name}_high": value.high}


def _process(grades: Iterable[Grade]) -> float | None:
    return _mean(grade.process_score for grade in grades if grade.process_score is not None)


def _truncated(groups: Iterable[RolloutGroup]) -> Iterator[bool]:
    for group in groups:
        for response in (each for each in group.responses if not each.is_broken):
            yield response.finish_reason is FinishReason.LENGTH


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks in [0, 1]; the interval is absent where there is only one task."""

    mean: float
    low: float | None
    high: float | None


def pass_at_k(graded: int, correct: int, k: int) -> float:
    """The chance that at least one of ``k`` responses is correct, of ``graded >= k`` given ones.

    1 - C(n-c, k) / C(n, k), the unbiased estimator of Chen et al. 2021 (arXiv:2107.03374, eq. 1).
    The binomials are exact integers, so nothing overflows or is rounded before the one division.
    """
    choices = math.comb(graded, k)
    return (choices - math.comb(graded - correct, k)) / choices


def estimate(shares: Sequence[float], draws: int) -> Estimate | None:
    """The mean of one share in [0, 1] per task; ``draws`` is how many draws all shares rest on.

    The interval is Wilson's with the effective number of draws, as in surveys of proportions in
    clusters (Korn and Graubard 1998): as many independent draws as would have the variance
    that the shares show over tasks, at least one per task and at most ``draws``, with Student's t
    for the number of tasks. It stays in [0, 1] and has a width even where all shares are equal;
    with one draw per task it is Wilson's own. In simulated evaluations of 30 tasks it held the
    truth in 95 % or more where difficulty is mixed, and in 84 % where all but one or two tasks are
    too hard.
    """
    if not shares:
        return None
    mean = math.fsum(shares) / len(shares)
    if len(shares) == 1:
        return Estimate(mean, None, None)
    spread = statistics.pvariance(shares, mean)
    effective = float(len(shares))
    if 0 < mean < 1:
        most = mean * (1 - mean) * len(shares)  # effective draws times the spread
        effective = most / spread if spread * draws > most else float(draws)
    return Estimate(mean, *_wilson(mean, effective, _student_t(len(shares) - 1)))


def _wilson(share: float, draws: float, critical: float) -> tuple[float, float]:
    """Wilson 1927: the shares that a test at this critical value would not reject."""
    weight = critical * critical / draws
    centre = share + weight / 2
    half = math.sqrt(weight * (share * (1 - share) + weight / 4))
    return max(0.0, (centre - half) / (1 + weight)), min(1.0, (centre + half) / (1 + weight))


def _student_t(freedom: int) -> float:
    """The 97.5 % point of Student's t, by its expansion around the normal one.

    Abramowitz and Stegun 26.7.5; off by 11 % for 1 degree of freedom, by less than 1 % from 2 on.
    """
    z = _Z
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))
