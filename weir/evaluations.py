"""How far two evaluations of a job are apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """The mean gain in accuracy from one evaluation to a later one."""

    gain: float
    low: float
    high: float
    tasks: int  # the gain is over so many; if unpaired, of the smaller evaluation
    paired: bool


def compare(first: Json, last: Json) -> Comparison | None:
    """Compare the accuracy of two evaluation results, over the tasks that both could grade.

    The interval is made of the two evaluations' own, less what their tasks have in common: with a
    and b the distances from either accuracy to its bound, the distance from the gain to its bound
    is sqrt(a² - 2rab + b²) (Newcombe 1998, method 10; Zou 2007). r is the correlation of the shares
    over the tasks, taken as if one more task had changed independently of the others, so
    that two evaluations that agree are no proof of equality. r is 0 where a result is not told by
    task: then the comparison is not paired, and its interval wider. None if there are not at least
    two tasks to compare.
    """
    if any(result.get("accuracy_low") is None for result in (first, last)):
        return None
    before, after = first.get("per_task"), last.get("per_task")
    if before is None or after is None:
        gain, tasks = last["accuracy"] - first["accuracy"], min(first["tasks"], last["tasks"])
        return Comparison(gain, *_bounds(first, last, gain, tasks, 0.0), tasks, paired=False)
    shares = [
        (before[task][0] / before[task][1], after[task][0] / after[task][1])
        for task in before
        if task in after
    ]
    if len(shares) < 2:
        return None
    gain, tasks = statistics.fmean(later - earlier for earlier, later in shares), len(shares)
    bounds = _bounds(first, last, gain, tasks, _correlation(shares))
    return Comparison(gain, *bounds, tasks, paired=True)


def _bounds(
    first: Json, last: Json, gain: float, tasks: int, correlation: float
) -> tuple[float, float]:
    (first_below, first_above), (last_below, last_above) = (
        _margins(result, tasks) for result in (first, last)
    )
    below, above = (
        math.sqrt(max(0.0, one**2 - 2 * correlation * one * other + other**2))
        for one, other in ((first_above, last_below), (first_below, last_above))
    )
    return max(-1.0, gain - below), min(1.0, gain + above)


def _margins(result: Json, tasks: int) -> tuple[float, float]:
    """From the accuracy down to its interval's end, and up; longer if it is over fewer tasks."""
    accuracy, scale = result["accuracy"], math.sqrt(result["tasks"] / tasks)
    below, above = accuracy - result["accuracy_low"], result["accuracy_high"] - accuracy
    return below * scale, above * scale


def _correlation(shares: list[tuple[float, float]]) -> float:
    before, after = zip(*shares, strict=True)
    if len(set(before)) < 2 or len(set(after)) < 2:
        return 0.0
    return statistics.correlation(before, after) * len(shares) / (len(shares) + 1)
