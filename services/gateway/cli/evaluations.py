"""What a person sees of a job's evaluations: a table, and how far the last is from the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from services.gateway.cli.comparison import compare
from services.gateway.cli.terminal import cell, table

Result = Mapping[str, Any]
_BEFORE = ("step", "tasks", "responses", "avg@k", "95 % interval")
_AFTER = ("process", "of wrong", "length", "truncated", "ungradable", "failed")


def evaluations_in(events: Iterable[Mapping[str, Any]]) -> list[Result]:
    """The results of the evaluations that a job's events tell of, in their order."""
    return [event["data"]["evaluation"] for event in events if "evaluation" in event["data"]]


def all_evaluations_in(events: Iterable[Mapping[str, Any]]) -> list[Result]:
    """The same with those on further files, which have names."""
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
            _number(result["accuracy"]),
            _interval(result.get("accuracy_low"), result.get("accuracy_high")),
            *(_number(result.get(f"pass@{k}")) for k in passes),
            _number(result["process"]),
            _number(result.get("process_wrong")),
            _number(result["response_length"], "{:.1f}"),
            _number(result.get("truncated"), "{:.1%}"),
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
    comparison = compare(first, last)
    if comparison is None:
        return None
    how = (
        f"the same {comparison.tasks:,} tasks, paired"
        if comparison.paired
        else "unpaired: too many tasks to keep the results of each"
    )
    return (
        f"accuracy {comparison.gain:+.3f} from step {first['step']} to step {last['step']}, 95 % "
        f"interval {_interval(comparison.low, comparison.high, '{:+.3f}')} ({how})"
    )


def evaluation_line(event: Mapping[str, Any]) -> str:
    """The result of an evaluation in one plain line."""
    result = event["data"]["evaluation"]
    accuracy = f"accuracy {_number(result['accuracy'])}"
    if result.get("accuracy_low") is not None:
        accuracy += f" ({_interval(result['accuracy_low'], result['accuracy_high'])})"
    names = [f"pass@{k}" for k in _passes(result)[-1:]]
    parts = [
        (name, _number(result[name]))
        for name in (*names, "process", "process_wrong")
        if result.get(name) is not None
    ]
    if result.get("response_length") is not None:
        parts.append(("length", _number(result["response_length"], "{:.1f}")))
    if result.get("failed"):
        parts.append(("failed", _failed(result)))
    told = (f"{name.replace('_', ' ')} {text}" for name, text in parts)
    return "  ".join([event["message"], accuracy, *told])


def _failed(result: Result) -> str:
    """How many of the groups that were asked for failed, which an earlier release did not tell."""
    failed = result.get("failed")
    return f"{failed:,} of {result['asked']:,}" if failed else _number(failed, "{}")


def _passes(result: Result) -> list[int]:
    """Every k above 1 that a result has a pass@k for; pass@1 is the accuracy."""
    names = (name.removeprefix("pass@") for name in result if name.startswith("pass@"))
    return sorted(int(name) for name in names if name.isdigit() and int(name) > 1)


def _interval(low: float | None, high: float | None, form: str = "{:.3f}") -> str:
    return "-" if low is None or high is None else f"{form.format(low)} to {form.format(high)}"


def _number(value: float | None, form: str = "{:.3f}") -> str:
    return "-" if value is None else form.format(value)
