"""What a person sees of a job's evaluations."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from services.gateway.cli.evaluations import (
    evaluation_line,
    evaluations_table,
    gain_line,
)


def a_result(step: int, correct: int, **changes: Any) -> dict[str, Any]:
    """10 tasks x 4 responses; ``correct`` of them right in every task."""
    share = correct / 4
    return {
        "step": step,
        "asked": 10,
        "failed": 0,
        "tasks": 10,
        "samples": 40,
        "accuracy": share,
        "accuracy_low": share - 0.125,
        "accuracy_high": share + 0.125,
        "accuracy_interval": 0.125,
        "pass@1": share,
        "pass@2": 0.9,
        "pass@4": 1.0,
        "pass@4_low": 0.7,
        "pass@4_left_out": 0,
        "process": None,
        "response_length": 12.25,
        "truncated": 0.025,
        "ungradable": 3,
        "per_task": {f"t{n}": [correct, 4] for n in range(10)},
        **changes,
    }


def an_event(result: dict[str, Any]) -> dict[str, Any]:
    step = result["step"]
    message = f"evaluation at step {step}"
    return {"type": "metrics", "message": message, "data": {"step": step, "evaluation": result}}


def rows_of(*results: dict[str, Any]) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=1000, color_system=None).print(evaluations_table(results))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_the_table_has_a_row_per_evaluation_and_a_column_per_k() -> None:
    assert rows_of(a_result(0, 1), a_result(1200, 2, process=0.5)) == [
        "step tasks responses avg@k 95 % interval pass@2 pass@4 "
        "process length truncated ungradable failed",
        "0 10 40 0.250 0.125 to 0.375 0.900 1.000 - 12.2 2.5% 3 0",
        "1200 10 40 0.500 0.375 to 0.625 0.900 1.000 0.500 12.2 2.5% 3 0",
    ]


def test_groups_that_failed_are_shown_with_how_many_were_asked_for() -> None:
    some = a_result(0, 1, tasks=3, failed=7)
    assert rows_of(some)[1].endswith(" 3 7 of 10")
    assert evaluation_line(an_event(some)).endswith("  length 12.2  failed 7 of 10")
    untold = {name: value for name, value in some.items() if name not in {"asked", "failed"}}
    assert rows_of(untold)[1].endswith(" 3 -")
    assert evaluation_line(an_event(untold)).endswith("  length 12.2")


def test_the_gain_is_from_the_first_to_the_last_and_says_how_it_was_compared() -> None:
    results = [a_result(0, 1), a_result(5, 4), a_result(10, 2)]
    text = gain_line(results)
    assert text is not None
    assert text.startswith("accuracy +0.250 from step 0 to step 10, 95 % interval +0.073 to +0.427")
    assert text.endswith("(the same 10 tasks, paired)")
    for result in results:
        del result["per_task"]
    unpaired = gain_line(results)
    assert unpaired is not None
    assert "(unpaired" in unpaired
