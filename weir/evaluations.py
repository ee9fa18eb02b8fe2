"""The gain in accuracy between two evaluations of a job."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Mapping, Sequence
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
    for result in (first, last):
        if result.get("accuracy_low") is None:
            return None
    before = first.get("per_task")
    after = last.get("per_task")
    if before is None or after is None:
        num_tasks = min(first["tasks"], last["tasks"])
        gain = last["accuracy"] - first["accuracy"]
        low, high = _bounds(first, last, gain, num_tasks, correlation=0.0)
        return Comparison(gain, low, high, num_tasks, paired=False)
    shares_before: list[float] = []
    shares_after: list[float] = []
    for task in before:
        if task in after:
            shares_before.append(_share(before[task]))
            shares_after.append(_share(after[task]))
    num_tasks = len(shares_before)
    if num_tasks < 2:
        return None
    gain = statistics.fmean(map(operator.sub, shares_after, shares_before))
    correlation = _correlation(shares_before, shares_after)
    low, high = _bounds(first, last, gain, num_tasks, correlation)
    return Comparison(gain, low, high, num_tasks, paired=True)


def _share(counts: Sequence[float]) -> float:
    num_correct, num_samples = counts[:2]
    return num_correct / num_samples


def _bounds(
    first: Json, last: Json, gain: float, num_tasks: int, correlation: float
) -> tuple[float, float]:
    def distance(a: float, b: float) -> float:
        square = a**2 - 2 * correlation * a * b + b**2
        return math.sqrt(max(0.0, square))

    first_below, first_above = _margins(first, num_tasks)
    last_below, last_above = _margins(last, num_tasks)
    below = distance(first_above, last_below)
    above = distance(first_below, last_above)
    return max(-1.0, gain - below), min(1.0, gain + above)


def _margins(result: Json, num_tasks: int) -> tuple[float, float]:
    """Return the accuracy's distances to its bounds, scaled to a smaller number of tasks."""
    accuracy = result["accuracy"]
    below = accuracy - result["accuracy_low"]
    above = result["accuracy_high"] - accuracy
    scale = math.sqrt(result["tasks"] / num_tasks)
    return below * scale, above * scale


def _correlation(before: list[float], after: list[float]) -> float:
    is_constant = len(set(before)) < 2 or len(set(after)) < 2
    if is_constant:
        return 0.0
    num_tasks = len(before)
    return statistics.correlation(before, after) * num_tasks / (num_tasks + 1)
