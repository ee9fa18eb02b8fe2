"""The report of a calibration: plain text in columns. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from services.grader.offline.agreement import (
    LEVELS,
    TOLERANCE,
    Agreement,
    Case,
    agreement,
    by_kind,
    confusion,
    percentile,
)
from services.grader.offline.calibration import Examined
from services.grader.offline.labelled import Labelled

Row = Sequence[str]

_OUTCOMES = {1.0: "right", 0.0: "wrong"}
_LEVELS = {level: f"{level:g}" for level in LEVELS}


def heading(solutions: Sequence[Labelled], *, has_judge: bool) -> str:
    """What was graded, and by whom it was not."""
    kinds = Counter(solution.kind for solution in solutions)
    num_problems = len({solution.problem for solution in solutions})
    text = f"{len(solutions)} labelled solutions of {num_problems} problems: "
    text += ", ".join(f"{count} {kind}" for kind, count in kinds.items()) + "\n"
    if not has_judge:
        text += "model_judge was not asked: WEIR_JUDGE_URL is not set\n"
    return text


def section(examined: Examined) -> str:
    """What there is to know about one verifier."""
    tables = [_facts(examined), _matrix(examined), _kinds(examined)]
    if examined.label == "process":
        tables.insert(0, _of_process(examined.cases))
    title = f"\n{examined.verifier} against the labelled {examined.label}\n"
    return title + "\n".join(f"{_columns(table)}\n" for table in tables)


def _facts(examined: Examined) -> list[Row]:
    cases = examined.cases
    whole = agreement(cases)
    latency = [case.ms for case in cases]
    lost = Counter(case.reason for case in cases if case.given is None)
    reasons = "".join(f", {count} {reason}" for reason, count in lost.items())
    return [
        *(_of_outcome(whole) if examined.label == "outcome" else []),
        ("ungradable", _share(1 - whole.num_graded / whole.num_cases) + reasons),
        ("latency p50", f"{percentile(latency, 0.5):.2f} ms"),
        ("latency p99", f"{percentile(latency, 0.99):.2f} ms"),
    ]


def _of_outcome(whole: Agreement) -> list[Row]:
    return [
        ("n", str(whole.num_cases)),
        ("agreement", _share(whole.exact)),
        ("Cohen's kappa", _number(whole.kappa)),
    ]


def _of_process(cases: Sequence[Case]) -> list[Row]:
    """Over all, and over those that a recipe with ``process_for = "correct"`` has scored."""
    columns = [agreement(cases), agreement([case for case in cases if case.is_right])]
    return [
        ("", "all", "right outcome"),
        ("n", *(str(each.num_cases) for each in columns)),
        (f"within {TOLERANCE:g}", *(_share(each.close) for each in columns)),
        ("same level", *(_share(each.exact) for each in columns)),
        ("mean error", *(_number(each.error) for each in columns)),
        ("weighted kappa", *(_number(each.kappa) for each in columns)),
    ]


def _matrix(examined: Examined) -> Sequence[Row]:
    """One row per label, one column per finding."""
    names = _OUTCOMES if examined.label == "outcome" else _LEVELS
    counts = confusion(examined.cases)
    head = ["label \\ given", *names.values(), "ungradable"]
    return [head] + [
        [name, *(str(counts.get((level, given), 0)) for given in [*names, None])]
        for level, name in names.items()
    ]


def _kinds(examined: Examined) -> Sequence[Row]:
    is_outcome = examined.label == "outcome"
    head = ["kind", "n", "agreement" if is_outcome else f"within {TOLERANCE:g}", "mean error"]
    return [head] + [
        [
            kind,
            str(found.num_cases),
            _share(found.exact if is_outcome else found.close),
            _number(found.error),
        ]
        for kind, found in by_kind(examined.cases).items()
    ]


def _columns(rows: Sequence[Row]) -> str:
    """The first column on the left, the others on the right of their widths."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if len(widths) == 2:  # facts: name and value
        return "\n".join(f"  {name:<{widths[0]}}  {value}" for name, value in rows)
    lines = (
        [f"{row[0]:<{widths[0]}}", *(f"{cell:>{width}}" for cell, width in _tail(row, widths))]
        for row in rows
    )
    return "\n".join("  " + "  ".join(line) for line in lines)


def _tail(row: Row, widths: Sequence[int]) -> list[tuple[str, int]]:
    return list(zip(row[1:], widths[1:], strict=True))


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
