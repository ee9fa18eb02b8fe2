"""What a person sees of a running job."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from services.gateway.cli.progress import LiveView, Progress, spark
from services.gateway.cli.terminal import cell, complain, say, show, table, tell


def a_step(step: int, **data: Any) -> dict[str, Any]:
    return an_event("metrics", f"step {step}", step=step, **data)


def an_event(kind: str, message: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "level": "info", "message": message, "data": data}


def shown(*events: dict[str, Any], terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    with LiveView(Progress("ftjob-1", steps=5), console) as view:
        for event in events:
            view.show(event)
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
