"""The gain in accuracy between two evaluations of a job."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """The mean gain from one evaluation to a later one, with its 95 % interval.

    ``tasks`` is the number of tasks compared; if unpaired, that of the smaller evaluation.
    """

    gain: float
    low: float
    high: float
    tasks: int
    paired: bool


def compare(first: Json, last: Json) -> Comparison | None:
    """Compare the accuracy of two evaluations, over the tasks that both could grade.

    With a and b the distances from either accuracy to its bound, the distance from the gain to its
    bound is sqrt(a² - 2rab + b²) (Newcombe 1998, method 10; Zou 2007). r is the correlation of the
    tasks' shares of correct responses. It counts one more task, which changed independently of the
    others, so that two equal evaluations do not prove equality. If a result lacks its tasks, r is
    0 and the comparison is unpaired. None if fewer than two tasks can be compared.
    """
    if first.get("accuracy_low") is None or last.get("accuracy_low") is None:
        return None
    before = first.get("per_task")
    after = last.get("per_task")
    if before is None or after is None:
        num_tasks = min(first["tasks"], last["tasks"])
        gain = last["accuracy"] - first["accuracy"]
        low, high = _bounds(first, last, gain, num_tasks, correlation=0.0)
        return Comparison(gain, low, high, num_tasks, paired=False)
    tasks = [task for task in before if task in after]
    if len(tasks) < 2:
        return None
    shares_before = [_share(before[task]) for task in tasks]
    shares_after = [_share(after[task]) for task in tasks]
    gain = statistics.fmean(map(operator.sub, shares_after, shares_before))
    correlation = _correlation(shares_before, shares_after)
    low, high = _bounds(first, last, gain, len(tasks), correlation)
    return Comparison(gain, low, high, len(tasks), paired=True)


def _share(counts: tuple[float, int]) -> float:
    num_correct, num_samples = counts
    return num_correct / num_samples


def _bounds(
    first: Json, last: Json, gain: float, num_tasks: int, correlation: float
) -> tuple[float, float]:
    def distance(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a**2 - 2 * correlation * a * b + b**2))

    first_below, first_above = _margins(first, num_tasks)
    last_below, last_above = _margins(last, num_tasks)
    low = gain - distance(first_above, last_below)
    high = gain + distance(first_below, last_above)
    return max(-1.0, low), min(1.0, high)


def _margins(result: Json, num_tasks: int) -> tuple[float, float]:
    """Return the accuracy's distances to its bounds, scaled to a smaller number of tasks."""
    accuracy = result["accuracy"]
    scale = math.sqrt(result["tasks"] / num_tasks)
    below = (accuracy - result["accuracy_low"]) * scale
    above = (result["accuracy_high"] - accuracy) * scale
    return below, above


def _correlation(before: list[float], after: list[float]) -> float:
    if len(set(before)) < 2 or len(set(after)) < 2:
        return 0.0
    num_tasks = len(before)
    return statistics.correlation(before, after) * num_tasks / (num_tasks + 1)
