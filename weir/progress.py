"""What a person sees of a running job: a table that lives, or one plain line per step."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rich import progress
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from weir.evaluations import evaluation_line, evaluations_in
from weir.terminal import cell, duration, visible

_KEPT_STEPS = 51  # of which the median is taken
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 32
_SHOWN = {  # label and format, by the name in an event's data
    "reward": ("reward", "{:.3f}"),
    "accuracy": ("accuracy", "{:.3f}"),
    "process": ("process", "{:.3f}"),
    "process_wrong": ("of wrong", "{:.3f}"),
    "outcome_exhausted": ("exhausted", "{:.2f}"),
    "response_length": ("length", "{:.1f}"),
    "entropy": ("entropy", "{:.3f}"),
    "staleness": ("staleness", "{:.2f}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
}


@dataclass
class Progress:
    """What a job's events have told so far."""

    job_id: str
    steps: int
    step: int = 0
    curves: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    evaluations: list[Mapping[str, Any]] = field(default_factory=list)
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_STEPS))

    def see(self, event: Mapping[str, Any]) -> None:
        """Take in the numbers of a metrics event; whatever is missing is not shown."""
        data = event["data"]
        if event["type"] != "metrics" or "pretrain_step" in data:
            return
        self.evaluations += evaluations_in([event])
        numbers = {name: n for name, n in data.items() if isinstance(n, int | float)}
        self.step = max(self.step, int(numbers.get("step", 0)))
        if "seconds" in numbers:
            self.step_seconds.append(numbers["seconds"])
        for name in _SHOWN:
            if name in numbers:
                self.curves[name].append(float(numbers[name]))

    @property
    def left(self) -> str:
        """How long the rest takes at the median time of the last steps; empty if unknown."""
        if len(self.step_seconds) < 3:  # the first takes long
            return ""
        seconds = (self.steps - self.step) * statistics.median(self.step_seconds)
        return f"{duration(seconds)} left"

    def line(self) -> str:
        """The newest numbers in one plain line."""
        parts = [f"step {self.step}/{self.steps}"]
        for name, (label, form) in _SHOWN.items():
            if self.curves[name]:
                parts.append(f"{label} {form.format(self.curves[name][-1])}")
        return "  ".join(filter(None, [*parts, self.left]))

    def table(self) -> RenderableType:
        """The newest numbers with their curves, under a bar."""
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self.steps, completed=self.step, width=40)
        head.add_row(cell(self.job_id, "bold"), bar, f"{self.step}/{self.steps}  {self.left}")
        rows = Table.grid(padding=(0, 2))
        for name, (label, form) in _SHOWN.items():
            if curve := self.curves[name]:
                rows.add_row(label, Text(form.format(curve[-1]), justify="right"), spark(curve))
        return Group(head, rows)


def show_progress(
    progress: Progress, events: Iterable[Mapping[str, Any]], console: Console
) -> None:
    """Show events as they come: on a terminal a table that changes in place, else plain lines."""
    live = Live(progress.table(), console=console) if console.is_terminal else None
    with live or nullcontext():
        for event in events:
            progress.see(event)
            line = _line_of(event)
            if live is not None and line is None:
                live.update(progress.table(), refresh=True)
                continue
            text = visible(line or progress.line())
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def _line_of(event: Mapping[str, Any]) -> str | None:
    if event["type"] == "message":
        return f"{event['level']}: {event['message']}"
    if "pretrain_step" in event["data"]:
        return event["message"]
    return evaluation_line(event) if "evaluation" in event["data"] else None


@contextmanager
def download_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal: tell it the file at hand, the bytes that are here, the bytes of all."""
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    is_off = not console.is_terminal
    with progress.Progress(*columns, console=console, transient=True, disable=is_off) as bar:
        download = bar.add_task("", total=None)
        yield lambda name, here, total: bar.update(
            download, description=name, completed=here, total=total
        )


def spark(curve: list[float]) -> str:
    tail = curve[-_SPARK_WIDTH:]
    low, high = min(tail), max(tail)
    height = (high - low) or 1.0
    return "".join(_SPARKS[round((value - low) / height * (len(_SPARKS) - 1))] for value in tail)
