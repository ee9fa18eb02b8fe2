"""The result of an evaluation: avg@k and pass@k on held-out tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.messages import FinishReason, Grade, GradedGroup, RolloutGroup

from services.learner.job.phases.estimates import Estimate, estimate, pass_at_k

MAX_TASKS_TOLD = 2000  # the result is one event, and events are kept


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
        """The chance that at least one of k responses is correct."""
        return pass_at_k(self.graded, self.accuracies.count(1.0), k)


def summarize(step: int, groups: Sequence[GradedGroup]) -> dict[str, Any]:
    """The result of an evaluation, flat but for ``per_task``: a number each, or None.

    The learner's README has what each means. Above `MAX_TASKS_TOLD` tasks ``per_task`` is absent.
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
        "process": _process(grade for grade in grades if grade.accuracy == 1.0),
        "process_wrong": _process(grade for grade in grades if grade.accuracy not in (1.0, None)),
        "response_length": _mean(n for group in answered for n in group.lengths.tolist()),
        "truncated": _mean(_truncated(answered)),
        "ungradable": sum(grade.accuracy is None for grade in grades),
    }
    if len(results) <= MAX_TASKS_TOLD:
        told = {result.task_id: [sum(result.accuracies), result.graded] for result in results}
        summary["per_task"] = told
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
        for response in group.responses:
            yield response.finish_reason is FinishReason.LENGTH


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None
