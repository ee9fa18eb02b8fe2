"""Views of a running job and its evaluations, and the comparison of two evaluations."""

import io
import json
from collections.abc import Iterator
from itertools import chain, repeat
from threading import Event
from typing import Any

import numpy as np
import pytest
from protocol.recipe import parse_recipe
from rich.console import Console
from rich.text import Text

from services.learner.job.phases.summary import estimate
from weir import views
from weir.evaluations import Comparison, compare
from weir.suite import SUITES, load_suite, report
from weir.views import Progress, evaluation_line, evaluations_table, gain_line


def an_event(kind: str, message: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "level": "info", "message": message, "data": data}


def a_step(step: int, **data: Any) -> dict[str, Any]:
    return an_event("metrics", f"step {step}", step=step, **data)


def a_console(terminal: bool = False, width: int = 100) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=width, color_system=None), out


def shown(*events: dict[str, Any], terminal: bool = False, step: int = 0) -> str:
    console, out = a_console(terminal)
    views.show_progress(Progress("ftjob-1", steps=5, step=step), events, console)
    return out.getvalue()


def test_a_line_shows_the_numbers_that_exist() -> None:
    lines = shown(
        a_step(1, reward=0.5, accuracy=0.25, groups={"asked": 4}, tokens_per_second=1234.4),
        a_step(2, reward=None, entropy=0.1),
        an_event("metrics", "no numbers at all"),
        an_event("metrics", "pretrain step 3", pretrain_step=3, tokens_per_second=9.0),
    ).splitlines()
    assert lines[0] == "step 1/5  reward 0.500  accuracy 0.250  tokens/s 1,234"
    assert lines[1].startswith("step 2/5  reward 0.500")
    assert "entropy 0.100" in lines[2]
    assert lines[3] == "pretrain step 3"


def test_the_median_time_of_the_steps_predicts_the_remaining_time() -> None:
    text = shown(a_step(1, reward=0.5, seconds=600), a_step(2, seconds=90), a_step(3, seconds=60))
    first, second, third = text.splitlines()
    assert "left" not in first + second
    assert third == "step 3/5  reward 0.500  180 s left"
    steps = [a_step(step, seconds=4000) for step in range(1, 4)]
    assert "3/5  2.2 h left" in shown(*steps, terminal=True)


def test_a_replayed_step_has_its_own_number_and_no_remaining_time() -> None:
    steps = [a_step(step, reward=0.5, seconds=60) for step in range(1, 6)]
    lines = [f"step {step}/5  reward 0.500" for step in range(1, 6)]
    lines[3] += "  60 s left"
    assert shown(*steps, step=4).splitlines() == lines


@pytest.mark.parametrize("terminal", [False, True])
def test_before_the_first_step_the_reason_for_waiting_is_shown(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(views, "_POLL_S", 0.0)
    reasons = chain(["rollout-0 starts, 1 s", "rollout-0 starts, 2 s", "the\x1b first"], repeat(""))
    all_asked = Event()

    def why() -> str:
        reason = next(reasons)
        if not reason:
            all_asked.set()
        return reason

    def events() -> Iterator[dict[str, Any]]:
        assert all_asked.wait(60)
        yield a_step(1, reward=0.5)

    console, out = a_console(terminal)
    views.show_progress(Progress("ftjob-1", steps=5), events(), console, why)
    if terminal:
        assert "rollout-0 starts, 2 s" in out.getvalue()
    else:
        lines = ["rollout-0 starts, 1 s", "the␛ first", "step 1/5  reward 0.500"]
        assert out.getvalue().splitlines() == lines


def test_characters_that_a_terminal_obeys_are_made_visible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    evil = "[red]\x1b]0;owned\x07\x9b2J\u202e"
    harmless = "[red]␛]0;owned␇\ufffd2J\ufffd"
    for terminal in (False, True):
        assert harmless in shown(an_event("message", evil), terminal=terminal)
    rows = views.table("head")
    rows.add_row(views.cell(f"{evil}\n"))
    views.show(rows)
    views.say(evil)
    views.complain(evil)
    out, err = capsys.readouterr()
    assert (out + err).count(harmless) == 3
    views.print_json([{"message": evil}])
    assert capsys.readouterr().out.isascii()


def test_what_a_terminal_shows_fits_it_and_is_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    job_id = f"ftjob-{'a' * 24}"
    sentence = "it waits for a place in the queue, behind three others"
    for columns, num_lines in ((200, 3), (60, 6), (44, 7)):
        monkeypatch.setenv("COLUMNS", str(columns))
        rows = views.table("job", "reason", "steps")
        rows.add_row(*map(views.cell, (job_id, sentence, 3)))
        views.show(rows)
        views.say(f"{job_id}: {sentence}")
        lines = Text.from_ansi(capsys.readouterr().out).plain.splitlines()
        assert max(map(len, lines)) <= columns
        text = " ".join("\n".join(lines).split())
        assert text.count(job_id) == 2
        assert text.endswith(f"{job_id}: {sentence}")
        assert len(lines) == num_lines, lines


def test_the_end_is_left_to_the_caller() -> None:
    end = an_event("message", "failed: no judge")
    assert (
        shown(end, an_event("message", "resumed"), end) == "info: failed: no judge\ninfo: resumed\n"
    )


def a_result(step: int, num_correct: int, **changes: Any) -> dict[str, Any]:
    """10 tasks with 4 responses each, of which ``num_correct`` are correct."""
    share = num_correct / 4
    result = json.loads("""{
        "asked": 10, "failed": 0, "tasks": 10, "samples": 40, "pass@2": 0.9, "pass@4": 1.0,
        "pass@4_low": 0.7, "process": null, "response_length": 12.25, "truncated": 0.025,
        "ungradable": 3
    }""")
    shares = {"accuracy": share, "accuracy_low": share - 0.125, "accuracy_high": share + 0.125}
    per_task = {f"t{number}": [num_correct, 4] for number in range(10)}
    return {"step": step, **result, **shares, "pass@1": share, "per_task": per_task, **changes}


def table_lines(*results: dict[str, Any]) -> list[str]:
    console, out = a_console(width=1000)
    console.print(evaluations_table(results))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_the_table_has_a_row_per_evaluation_and_a_column_per_k() -> None:
    last = a_result(1200, 2, process=0.5, process_wrong=0.75)
    assert table_lines(a_result(0, 1), last) == [
        "step tasks responses avg@k 95 % interval pass@2 pass@4 "
        "process of wrong length truncated ungradable failed",
        "0 10 40 0.250 0.125 to 0.375 0.900 1.000 - - 12.2 2.5% 3 0",
        "1200 10 40 0.500 0.375 to 0.625 0.900 1.000 0.500 0.750 12.2 2.5% 3 0",
    ]


def test_failed_groups_are_shown_with_the_number_of_all() -> None:
    result = a_result(0, 1, tasks=3, failed=7)
    assert table_lines(result)[1].endswith(" 3 7 of 10")
    line = evaluation_line(an_event("metrics", "at 0", evaluation=result))
    assert line.startswith("at 0  accuracy 0.250 (0.125 to 0.375)  pass@4 1.000")
    assert line.endswith("  length 12.2  failed 7 of 10")


def test_the_gain_is_from_the_first_to_the_last_evaluation() -> None:
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
    correct: list[int], samples: int = 1, below: float = 0.1, above: float = 0.1
) -> dict[str, Any]:
    """An evaluation with these numbers of correct responses per task."""
    accuracy = sum(correct) / len(correct) / samples
    return {
        "step": 0,
        "tasks": len(correct),
        "accuracy": accuracy,
        "accuracy_low": accuracy - below,
        "accuracy_high": accuracy + above,
        "per_task": {f"t{n}": [count, samples] for n, count in enumerate(correct)},
    }


def compared(first: dict[str, Any], last: dict[str, Any]) -> Comparison:
    comparison = compare(first, last)
    assert comparison is not None
    return comparison


def test_unpaired_it_is_newcombes_hybrid_score_interval() -> None:
    """Newcombe 1998 (unpaired), Table II, method 10: 56/70 less 48/80 is in 0.0524 to 0.3339."""
    first = {"tasks": 80, "accuracy": 0.6, "accuracy_low": 0.4905, "accuracy_high": 0.7004}
    last = {"tasks": 80, "accuracy": 0.8, "accuracy_low": 0.6918, "accuracy_high": 0.8769}
    gain = compared(first, last)
    assert not gain.paired
    assert (gain.gain, gain.low, gain.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=3e-4)


def test_tasks_that_rise_together_narrow_the_interval() -> None:
    first = an_accuracy([0, 1, 2, 3] * 5, 4)
    last = an_accuracy([1, 2, 3, 4] * 5, 4)
    paired = compared(first, last)
    unpaired = compared(first | {"per_task": None}, last)
    assert paired.paired
    assert paired.gain == unpaired.gain == 0.25
    assert paired.tasks == unpaired.tasks == 20
    # r = 1 x 20/21, so the distance is 0.1 sqrt(2 (1 - 20/21)).
    assert paired.gain - paired.low == pytest.approx(0.1 * (2 / 21) ** 0.5)
    assert unpaired.gain - unpaired.low == pytest.approx(0.1 * 2**0.5)


def test_the_suites_that_ship_are_parts_of_recipes() -> None:
    for path in SUITES.glob("*.toml"):
        suite = load_suite(path.stem)
        model = {**suite["model"], "path": "base-model"}
        tables = {"model": model, "tasks": {"train": "any"}, "training": {"steps": 0}}
        recipe = parse_recipe({**suite, **tables})
        assert recipe.evaluations.keys() == suite["evaluation"]["others"].keys()


def test_a_paired_interval_is_about_that_of_a_bootstrap_over_tasks() -> None:
    random = np.random.default_rng(1)
    difficulty = random.uniform(0.2, 0.8, 200)
    counts = [random.binomial(8, difficulty), random.binomial(8, difficulty + 0.1)]
    ends: list[dict[str, Any]] = []
    for correct in counts:
        interval = estimate((correct / 8).tolist(), 8 * 200)
        assert interval is not None
        below = interval.mean - (interval.low or 0.0)
        above = (interval.high or 1.0) - interval.mean
        ends.append(an_accuracy(correct.tolist(), 8, below, above))
    gains = (counts[1] - counts[0]) / 8
    means = gains[random.integers(0, 200, (4000, 200))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    suite = {"name": "sums"}
    rows = [{"model": name, **end} for name, end in zip(("base", "job"), ends, strict=True)]
    (difference,) = report(suite, rows)["differences"]
    assert (difference["model"], difference["against"]) == ("job", "base")
    assert difference["gain"] == pytest.approx(gains.mean())
    assert difference["low"] == pytest.approx(low, abs=0.01)
    assert difference["high"] == pytest.approx(high, abs=0.01)


def test_fewer_than_two_tasks_or_no_interval_are_no_comparison() -> None:
    first = an_accuracy([1, 0, 0])
    last = an_accuracy([1, 1, 0])
    last["per_task"] = {"t0": last["per_task"]["t0"]}
    assert compare(first, last) is None
    without_interval = {"tasks": 1, "accuracy": 1.0, "accuracy_low": None, "accuracy_high": None}
    assert compare(without_interval, without_interval) is None


def test_a_forecast_is_told_once_when_the_gateway_knows_the_new_evaluation() -> None:
    of_first = {"step": 400, "accuracy": 0.625, "low": 0.5, "high": 0.75, "curve": [[0, 0, 0, 0]]}
    of_second = {**of_first, "accuracy": 0.6, "low": 0.55, "high": 0.65, "curve": [[2, 0, 0, 0]]}
    answers = iter([None, of_first, of_first, of_second])
    job = Progress("ftjob-1", steps=400)
    lines = []
    for event in (
        an_event("metrics", "", step=0, evaluation={"step": 0}),
        a_step(1),
        an_event("metrics", "", step=2, evaluation={"step": 2}),
        a_step(3),
        a_step(4),
    ):
        job.update(event)
        lines.append(job.forecast_line(lambda: next(answers)))
    expected = "at this rate accuracy {} at step 400 (90 % interval)"
    assert lines == [
        None,
        expected.format("0.62 ± 0.12"),
        None,
        expected.format("0.60 ± 0.05"),
        None,
    ]
