"""What a person sees of a running job and its evaluations, and how far two of those are apart."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import chain, repeat
from threading import Event
from typing import Any

import pytest
from rich.console import Console

from weir import views
from weir.evaluations import compare
from weir.views import (
    Progress,
    cell,
    complain,
    evaluation_line,
    evaluations_table,
    gain_line,
    say,
    show,
    show_progress,
    spark,
    table,
    tell,
)


def a_step(step: int, **data: Any) -> dict[str, Any]:
    return an_event("metrics", f"step {step}", step=step, **data)


def an_event(kind: str, message: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "level": "info", "message": message, "data": data}


def shown(*events: dict[str, Any], terminal: bool = False, step: int = 0) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    show_progress(Progress("ftjob-1", steps=5, step=step), events, console)
    return out.getvalue()


def test_a_line_shows_what_is_there_and_tolerates_what_is_not() -> None:
    lines = shown(
        a_step(1, reward=0.5, accuracy=0.25, groups={"asked": 4}, tokens_per_second=1234.4),
        a_step(2, reward=None, entropy=0.1),
        an_event("metrics", "no numbers at all"),
    ).splitlines()
    assert lines[0] == "step 1/5  reward 0.500  accuracy 0.250  tokens/s 1,234"
    assert lines[1].startswith("step 2/5  reward 0.500")
    assert "entropy 0.100" in lines[2]


def test_from_the_third_step_on_the_median_of_their_times_says_how_long_the_rest_takes() -> None:
    first, second, third = shown(
        a_step(1, reward=0.5, seconds=600), a_step(2, seconds=90), a_step(3, seconds=60)
    ).splitlines()
    assert "left" not in first + second
    assert third == "step 3/5  reward 0.500  180 s left"
    text = shown(*(a_step(step, seconds=4000) for step in range(1, 4)), terminal=True)
    assert "3/5  2.2 h left" in text


def test_a_replayed_step_bears_its_own_number_and_no_time_that_is_left() -> None:
    lines = shown(*(a_step(step, reward=0.5, seconds=60) for step in range(1, 6)), step=4)
    steps = [f"step {step}/5  reward 0.500" for step in range(1, 6)]
    assert lines.splitlines() == [*steps[:3], f"{steps[3]}  60 s left", steps[4]]


@pytest.mark.parametrize("terminal", [False, True])
def test_until_the_first_step_it_says_what_the_job_waits_for(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(views, "_ASKS_EVERY_S", 0.0)
    words = chain(["rollout-0 starts, 1 s", "rollout-0 starts, 2 s", "the\x1b first"], repeat(""))
    asked_on, out = Event(), io.StringIO()

    def why() -> str:
        if not (reason := next(words)):
            asked_on.set()
        return reason

    def events() -> Iterator[dict[str, Any]]:
        assert asked_on.wait(60)
        yield a_step(1, reward=0.5)

    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    show_progress(Progress("ftjob-1", steps=5), events(), console, why)
    if terminal:
        assert "rollout-0 starts, 2 s" in out.getvalue()
    else:
        told = ["rollout-0 starts, 1 s", "the␛ first", "step 1/5  reward 0.500"]
        assert out.getvalue().splitlines() == told


def test_a_step_of_the_critic_alone_has_a_line_of_its_own_and_no_curve() -> None:
    lines = shown(
        an_event("metrics", "pretrain step 3", pretrain_step=3, tokens_per_second=9.0),
        a_step(1, reward=0.5),
    ).splitlines()
    assert lines == ["pretrain step 3", "step 1/5  reward 0.500"]


@pytest.mark.parametrize(
    ("curve", "bars"), [([1.0], "▁"), ([2.0, 2.0], "▁▁"), ([0.0, 1.0, 0.5], "▁█▅")]
)
def test_a_spark_line_spans_from_lowest_to_highest(curve: list[float], bars: str) -> None:
    assert spark(curve) == bars


def test_a_long_curve_is_shown_from_its_first_step_on() -> None:
    assert spark([0.0] * 160 + [1.0] * 160) == 16 * "▁" + 16 * "█"


def test_what_a_terminal_would_obey_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    evil, harmless = "[red]\x1b]0;owned\x07\x9b2J\u202e", "[red]␛]0;owned␇\ufffd2J\ufffd"
    for terminal in (False, True):
        assert harmless in shown(an_event("message", evil), terminal=terminal)
    rows = table("head")
    rows.add_row(cell(f"{evil}\n"))
    for write, what in ((say, evil), (complain, evil), (show, rows)):
        write(what)  # type: ignore[operator]
        out, err = capsys.readouterr()
        assert harmless in out + err
    tell([{"message": evil}])
    assert capsys.readouterr().out.isascii()


def a_result(step: int, correct: int, **changes: Any) -> dict[str, Any]:
    """10 tasks x 4 responses; ``correct`` of them right in every task."""
    share = correct / 4
    return {
        **{"step": step, "asked": 10, "failed": 0, "tasks": 10, "samples": 40},
        **{"accuracy": share, "accuracy_low": share - 0.125, "accuracy_high": share + 0.125},
        **{"pass@1": share, "pass@2": 0.9, "pass@4": 1.0, "pass@4_low": 0.7, "process": None},
        **{"response_length": 12.25, "truncated": 0.025, "ungradable": 3},
        "per_task": {f"t{n}": [correct, 4] for n in range(10)},
        **changes,
    }


def rows_of(*results: dict[str, Any]) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=1000, color_system=None).print(evaluations_table(results))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_the_table_has_a_row_per_evaluation_and_a_column_per_k() -> None:
    assert rows_of(a_result(0, 1), a_result(1200, 2, process=0.5, process_wrong=0.75)) == [
        "step tasks responses avg@k 95 % interval pass@2 pass@4 "
        "process of wrong length truncated ungradable failed",
        "0 10 40 0.250 0.125 to 0.375 0.900 1.000 - - 12.2 2.5% 3 0",
        "1200 10 40 0.500 0.375 to 0.625 0.900 1.000 0.500 0.750 12.2 2.5% 3 0",
    ]


def test_groups_that_failed_are_shown_with_how_many_were_asked_for() -> None:
    some = a_result(0, 1, tasks=3, failed=7)
    assert rows_of(some)[1].endswith(" 3 7 of 10")
    line = evaluation_line(an_event("metrics", "at 0", evaluation=some))
    assert line.startswith("at 0  accuracy 0.250 (0.125 to 0.375)  pass@4 1.000")
    assert line.endswith("  length 12.2  failed 7 of 10")
    untold = {name: value for name, value in some.items() if name not in {"asked", "failed"}}
    assert rows_of(untold)[1].endswith(" 3 -")


def test_the_gain_is_from_the_first_to_the_last_and_says_how_it_was_compared() -> None:
    results = [a_result(0, 1), a_result(5, 4), a_result(10, 2)]
    assert gain_line(results) == (
        "accuracy +0.250 from step 0 to step 10, 95 % interval +0.073 to +0.427 "
        "(the same 10 tasks, paired)"
    )
    for result in results:
        del result["per_task"]
    assert "(unpaired" in str(gain_line(results))
    assert gain_line(results[:1]) is None


def an_accuracy(
    correct: list[int], samples: int = 1, margins: tuple[float, float] = (0.1, 0.1)
) -> dict[str, Any]:
    """An evaluation with so many correct responses per task, and an interval as given."""
    accuracy = sum(correct) / len(correct) / samples
    below, above = margins
    return {
        "step": 0,
        "tasks": len(correct),
        "accuracy": accuracy,
        "accuracy_low": accuracy - below,
        "accuracy_high": accuracy + above,
        "per_task": {f"t{n}": [count, samples] for n, count in enumerate(correct)},
    }


def test_unpaired_it_is_newcombes_hybrid_score_interval() -> None:
    """Newcombe 1998 (unpaired), Table II, method 10: 56/70 less 48/80 is in 0.0524 to 0.3339."""
    first = {"tasks": 80, "accuracy": 0.6, "accuracy_low": 0.4905, "accuracy_high": 0.7004}
    last = {"tasks": 80, "accuracy": 0.8, "accuracy_low": 0.6918, "accuracy_high": 0.8769}
    found = compare(first, last)
    assert found is not None
    assert not found.paired
    assert (found.gain, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=3e-4)


def test_tasks_that_rise_together_narrow_the_interval() -> None:
    first, last = an_accuracy([0, 1, 2, 3] * 5, 4), an_accuracy([1, 2, 3, 4] * 5, 4)
    paired = compare(first, last)
    unpaired = compare(first | {"per_task": None}, last)
    assert paired is not None
    assert unpaired is not None
    assert (paired.gain, unpaired.gain) == (0.25, 0.25)
    assert paired.paired
    assert paired.tasks == unpaired.tasks == 20
    # r = 1 x 20/21, so 0.1 sqrt(2 (1 - 20/21)) to either side
    assert paired.gain - paired.low == pytest.approx(0.1 * (2 / 21) ** 0.5)
    assert unpaired.gain - unpaired.low == pytest.approx(0.1 * 2**0.5)


def test_the_lower_bound_takes_the_first_ones_upper_margin() -> None:
    first = an_accuracy([1, 1, 0, 0], margins=(0.0, 0.3))
    last = an_accuracy([1, 1, 1, 1], margins=(0.4, 0.0))
    found = compare(first, last)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.0, 0.5))


def test_fewer_than_two_tasks_or_no_interval_are_no_comparison() -> None:
    first, last = an_accuracy([1, 0, 0]), an_accuracy([1, 1, 0])
    last["per_task"] = {"t0": last["per_task"]["t0"]}
    assert compare(first, last) is None
    alone = {"tasks": 1, "accuracy": 1.0, "accuracy_low": None, "accuracy_high": None}
    assert compare(alone, alone) is None
