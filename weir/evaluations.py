"""What a person sees of a job's evaluations: a table, and how far the last is from the first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from weir.terminal import cell, number, table

Result = Mapping[str, Any]
_BEFORE = ("step", "tasks", "responses", "avg@k", "95 % interval")
_AFTER = ("process", "of wrong", "length", "truncated", "ungradable", "failed")


def evaluations_in(events: Iterable[Mapping[str, Any]]) -> list[Result]:
    """The results that a job's events tell of, in order; those on further files have names."""
    told = (event["data"] for event in events)
    results = (data.get("evaluation", data.get("other_evaluation")) for data in told)
    return [result for result in results if result is not None]


def evaluations_table(results: Sequence[Result]) -> Table:
    """One row per evaluation; a column of pass@k for every k above 1."""
    passes = sorted({k for result in results for k in _passes(result)})
    rows = table()
    has_names = any("name" in result for result in results)
    if has_names:
        rows.add_column("on")
    for head in (*_BEFORE, *(f"pass@{k}" for k in passes), *_AFTER):
        rows.add_column(head, justify="right")
    for result in results:
        row = (
            *([result.get("name", "held_out")] if has_names else []),
            result["step"],
            f"{result['tasks']:,}",
            f"{result['samples']:,}",
            number(result["accuracy"]),
            _interval(result.get("accuracy_low"), result.get("accuracy_high")),
            *(number(result.get(f"pass@{k}")) for k in passes),
            number(result["process"]),
            number(result.get("process_wrong")),
            number(result["response_length"], "{:.1f}"),
            number(result.get("truncated"), "{:.1%}"),
            result["ungradable"],
            _failed(result),
        )
        rows.add_row(*map(cell, row))
    return rows


def gain_line(results: Sequence[Result]) -> str | None:
    """How far the last evaluation is from the first, in one line; None if unknown."""
    if len(results) < 2:
        return None
    first, last = results[0], results[-1]
    if (found := compare(first, last)) is None:
        return None
    how = "unpaired: too many tasks to keep the results of each"
    if found.paired:
        how = f"the same {found.tasks:,} tasks, paired"
    return (
        f"accuracy {found.gain:+.3f} from step {first['step']} to step {last['step']}, 95 % "
        f"interval {_interval(found.low, found.high, '{:+.3f}')} ({how})"
    )


def evaluation_line(event: Mapping[str, Any]) -> str:
    result = event["data"]["evaluation"]
    accuracy = f"accuracy {number(result['accuracy'])}"
    if result.get("accuracy_low") is not None:
        accuracy += f" ({_interval(result['accuracy_low'], result['accuracy_high'])})"
    names = [f"pass@{k}" for k in _passes(result)[-1:]]
    parts = [
        (name, number(result[name]))
        for name in (*names, "process", "process_wrong")
        if result.get(name) is not None
    ]
    if result.get("response_length") is not None:
        parts.append(("length", number(result["response_length"], "{:.1f}")))
    if result.get("failed"):
        parts.append(("failed", _failed(result)))
    told = (f"{name.replace('_', ' ')} {text}" for name, text in parts)
    return "  ".join([event["message"], accuracy, *told])


def _failed(result: Result) -> str:
    """How many of the groups that were asked for failed, which an earlier release did not tell."""
    failed = result.get("failed")
    return f"{failed:,} of {result['asked']:,}" if failed else number(failed, "{}")


def _passes(result: Result) -> list[int]:
    """Every k above 1 that a result has a pass@k for; pass@1 is the accuracy."""
    names = (name.removeprefix("pass@") for name in result if name.startswith("pass@"))
    return sorted(int(name) for name in names if name.isdigit() and int(name) > 1)


def _interval(low: float | None, high: float | None, form: str = "{:.3f}") -> str:
    return "-" if low is None or high is None else f"{form.format(low)} to {form.format(high)}"


@dataclass(frozen=True)
class Comparison:
    """The mean gain in accuracy from one evaluation to a later one."""

    gain: float
    low: float
    high: float
    tasks: int  # the gain is over so many; if unpaired, of the smaller evaluation
    paired: bool


def compare(first: Mapping[str, Any], last: Mapping[str, Any]) -> Comparison | None:
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
    first: Mapping[str, Any], last: Mapping[str, Any], gain: float, tasks: int, correlation: float
) -> tuple[float, float]:
    (first_below, first_above), (last_below, last_above) = (
        _margins(result, tasks) for result in (first, last)
    )
    below, above = (
        math.sqrt(max(0.0, one**2 - 2 * correlation * one * other + other**2))
        for one, other in ((first_above, last_below), (first_below, last_above))
    )
    return max(-1.0, gain - below), min(1.0, gain + above)


def _margins(result: Mapping[str, Any], tasks: int) -> tuple[float, float]:
    """From the accuracy down to its interval's end, and up; longer if it is over fewer tasks."""
    accuracy, scale = result["accuracy"], math.sqrt(result["tasks"] / tasks)
    below, above = accuracy - result["accuracy_low"], result["accuracy_high"] - accuracy
    return below * scale, above * scale


def _correlation(shares: list[tuple[float, float]]) -> float:
    before, after = zip(*shares, strict=True)
    if len(set(before)) < 2 or len(set(after)) < 2:
        return 0.0
    return statistics.correlation(before, after) * len(shares) / (len(shares) + 1)
