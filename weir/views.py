"""What the command shows: text, a job's progress, evaluations, samples, and what a job waits for.

Text of others is shown as it is, but for what a terminal would obey.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Event, Thread
from typing import Any

from rich import progress
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from weir.evaluations import Json, compare

_WHOLE = 10_000  # columns: a narrow terminal wraps lines, and nothing is cut
# What moves the cursor, turns the line around or starts an escape sequence; one character for one,
# so that marks stay in their places.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_VISIBLE |= {127: 0x2421} | {code: 0xFFFD for code in range(128, 160)}
_VISIBLE |= {
    code: 0xFFFD for code in (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
_IN_A_LINE = {ord("\n"): 0x240A, ord("\t"): 0x2409}
_TIMES = re.compile(r"[\d.]+ (s|min|h)\b")  # which change while nothing else does
_ASKS_EVERY_S = 2.0
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
_BEFORE = ("step", "tasks", "responses", "avg@k", "95 % interval")
_AFTER = ("process", "of wrong", "length", "truncated", "ungradable", "failed")
_STYLES = {"right": "green", "wrong": "red", "unknown": "yellow"}
_NUMBERS = {
    "accuracy": "{:.2f}",
    "process": "{:.2f}",
    "reward": "{:.3f}",
    "advantage": "{:+.3f}",
    "surprise": "{:.3f}",
    "length": "{:,}",
}


def visible(raw: object) -> str:
    """Text in which nothing is obeyed; lines and tabs stay."""
    return str(raw).translate(_VISIBLE)


def cell(raw: object, style: str = "") -> Text:
    """One line of such text, in which rich finds no markup, either."""
    return Text(visible(raw).translate(_IN_A_LINE), style)


def table(*heads: str) -> Table:
    return Table(*heads, box=None, pad_edge=False)


def say(text: object) -> None:
    print(visible(text), flush=True)


def complain(text: object) -> None:
    print(f"weir: {visible(text)}", file=sys.stderr)


def show(what: RenderableType) -> None:
    Console(width=_WHOLE).print(what)


def tell(objects: Iterable[Any]) -> None:
    """Write one JSON object a line; JSON escapes what a terminal would obey."""
    for each in objects:
        print(json.dumps(each), flush=True)


def number(value: float | None, form: str = "{:.3f}") -> str:
    return "-" if value is None else form.format(value)


def duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def of_steps(step: int, steps: int | None) -> str:
    """Where a job is; nobody knows how many steps the client of a session makes."""
    return str(step) if steps is None else f"{step}/{steps}"


@dataclass
class Progress:
    """What a job's events have told so far."""

    job_id: str
    steps: int | None  # None: its client says when it ends
    step: int = 0  # that the job has reached
    told: int = 0  # that the events have reached: older ones are replayed
    waits_for: str | None = None
    curves: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    evaluations: list[Json] = field(default_factory=list)
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_STEPS))

    def see(self, event: Json) -> None:
        """Take in the numbers of a metrics event; whatever is missing is not shown."""
        data = event["data"]
        if event["type"] != "metrics" or "pretrain_step" in data:
            return
        self.evaluations += evaluations_in([event])
        numbers = {name: n for name, n in data.items() if isinstance(n, int | float)}
        self.told = int(numbers.get("step", self.told))
        self.step = max(self.step, self.told)
        if "seconds" in numbers:
            self.step_seconds.append(numbers["seconds"])
        for name in _SHOWN:
            if name in numbers:
                self.curves[name].append(float(numbers[name]))

    @property
    def left(self) -> str:
        """How long the rest takes at the median time of the last steps; empty if unknown."""
        if self.steps is None or self.step == self.steps:
            return ""
        if len(self.step_seconds) < 3 or self.told < self.step:
            return ""  # the first steps take long; of a replayed step nothing is left
        seconds = (self.steps - self.step) * statistics.median(self.step_seconds)
        return f"{duration(seconds)} left"

    def line(self) -> str:
        """The newest numbers in one plain line."""
        parts = [f"step {of_steps(self.told, self.steps)}"]
        for name, (label, form) in _SHOWN.items():
            if self.curves[name]:
                parts.append(f"{label} {form.format(self.curves[name][-1])}")
        return "  ".join(filter(None, [*parts, self.left]))

    def table(self) -> RenderableType:
        """The newest numbers with their curves, under a bar."""
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self.steps, completed=self.step, width=40)
        head.add_row(
            cell(self.job_id, "bold"), bar, f"{of_steps(self.step, self.steps)}  {self.left}"
        )
        rows = Table.grid(padding=(0, 2))
        for name, (label, form) in _SHOWN.items():
            if curve := self.curves[name]:
                rows.add_row(label, Text(form.format(curve[-1]), justify="right"), spark(curve))
        waits_for = [] if self.step or self.waits_for is None else [cell(self.waits_for)]
        return Group(head, *waits_for, rows)


def show_progress(
    progress: Progress,
    events: Iterable[Json],
    console: Console,
    why: Callable[[], str | None] = lambda: None,
) -> None:
    """Show events as they come: on a terminal a table that changes in place, else plain lines.

    Until the job's first step also what it waits for, as ``why`` answers every two seconds.
    """
    live = Live(progress.table(), console=console) if console.is_terminal else None

    def tell(words: str) -> None:
        told, progress.waits_for = progress.waits_for or "", words
        if live is not None:
            live.update(progress.table(), refresh=True)
        elif _TIMES.sub("", words) != _TIMES.sub("", told):
            console.print(visible(words), markup=False, highlight=False, soft_wrap=True)

    with live or nullcontext(), _asking(progress, why, tell):
        for event in events:
            progress.see(event)
            line = _line_of(event)
            if live is not None and line is None:
                live.update(progress.table(), refresh=True)
                continue
            text = visible(line or progress.line())
            console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _asking(
    progress: Progress, why: Callable[[], str | None], tell: Callable[[str], None]
) -> Iterator[None]:
    over = Event()

    def ask() -> None:
        while not progress.step:
            words = why()
            if over.is_set():
                return
            if words:
                tell(words)
            over.wait(_ASKS_EVERY_S)

    Thread(target=ask, daemon=True).start()  # not joined: an answer may take long after Ctrl-C
    try:
        yield
    finally:
        over.set()


def _line_of(event: Json) -> str | None:
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
    """The whole curve, each bar the mean of its share of the steps."""
    bars = min(_SPARK_WIDTH, len(curve))
    ends = [len(curve) * bar // bars for bar in range(bars + 1)]
    means = [statistics.fmean(curve[start:end]) for start, end in pairwise(ends)]
    low, high = min(means), max(means)
    height = (high - low) or 1.0
    return "".join(_SPARKS[round((value - low) / height * (len(_SPARKS) - 1))] for value in means)


def evaluations_in(events: Iterable[Json]) -> list[Json]:
    """The results that a job's events tell of, in order; those on further files have names."""
    told = (event["data"] for event in events)
    results = (data.get("evaluation", data.get("other_evaluation")) for data in told)
    return [result for result in results if result is not None]


def evaluations_table(results: Sequence[Json]) -> Table:
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


def gain_line(results: Sequence[Json]) -> str | None:
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


def evaluation_line(event: Json) -> str:
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


def _failed(result: Json) -> str:
    """How many of the groups that were asked for failed, which an earlier release did not tell."""
    failed = result.get("failed")
    return f"{failed:,} of {result['asked']:,}" if failed else number(failed, "{}")


def _passes(result: Json) -> list[int]:
    """Every k above 1 that a result has a pass@k for; pass@1 is the accuracy."""
    names = (name.removeprefix("pass@") for name in result if name.startswith("pass@"))
    return sorted(int(name) for name in names if name.isdigit() and int(name) > 1)


def _interval(low: float | None, high: float | None, form: str = "{:.3f}") -> str:
    return "-" if low is None or high is None else f"{form.format(low)} to {form.format(high)}"


def samples_table(samples: Iterable[Json]) -> Table:
    rows = table("sample", "step", "task", "fate")
    for name in (*_NUMBERS, ""):
        rows.add_column(name, justify="right")
    for sample in samples:
        rows.add_row(
            *map(cell, (sample["id"], sample["step"], sample["task_id"])),
            cell(sample["failure"] or sample["fate"]),
            *(number(sample[name], form) for name, form in _NUMBERS.items()),
            "truncated" if sample["truncated"] else "",
        )
    return rows


def group_view(group: Json) -> Iterator[RenderableType]:
    """A group's task, and its responses one below the other."""
    yield _text(f"{group['id']}, step {group['step']}: {group['failure'] or group['fate']}")
    if (task := group["task"]) is None:
        return
    answer = task["answer"]
    yield _text(f"task {task['id']}" + f", answer {answer}" * (answer is not None))
    messages = task["messages"] or ()
    conversation = "\n".join(f"{each['role']}: {each['content']}" for each in messages)
    yield _text(group["prompt"] or conversation)
    for response in group["responses"]:
        yield from _response(response)


def _response(response: Json) -> Iterator[RenderableType]:
    scores = {name: score for name, score in (response["grade"] or {}).items() if score}
    parts = [f"{name} {number(score.get('value'), '{:.2f}')}" for name, score in scores.items()]
    parts += [
        f"{name} {number(response[name], _NUMBERS[name])}" for name in ("reward", "advantage")
    ]
    of_tokens = response["behavior_logprobs"] or response["logprobs"] or ()
    own = sum(logprob is not None for logprob in of_tokens)
    parts += [f"{own:,} tokens", *filter(None, [response["finish_reason"]])]
    yield _text(f"\nresponse {response['index']}: {', '.join(parts)}", "bold")
    if episode := response.get("episode"):
        yield from _episode(episode)
    else:
        text = _text(response["text"])
        for score in scores.values():
            for mark in score.get("marks", ()):
                text.stylize(_STYLES[mark["verdict"]], mark["start"], mark["end"])
        yield text
    for name, score in scores.items():
        yield from _remarks(name, score, response["text"])


def _episode(episode: Json) -> Iterator[Text]:
    """What an environment says, and the conversation; a bar marks what is not the policy's."""
    parts = [f"reward {number(episode['reward'])}"]
    if episode["problem"]:
        parts = [f"{episode['problem']}: {episode['words']}"]
    parts += [f"{episode['turns']} turns"]
    parts += [f"{part} {duration(seconds)}" for part, seconds in episode["seconds"].items()]
    yield _text(f"environment: {', '.join(parts)}", "italic")
    for turn in episode["conversation"]:
        if turn["role"] == "assistant":
            yield _text(turn["content"])
        else:
            told = f"{turn['role']}: {turn['content']}".replace("\n", "\n│ ")
            yield _text(f"│ {told}", "dim")


def _remarks(name: str, score: Json, text: str) -> Iterator[Text]:
    """Why a score is what it is, in the words of whoever gave it."""
    if score["reason"]:
        yield _text(f"{name}: {score['reason']}", "italic")
    for mark in score.get("marks", ()):
        note = f" ({mark['note']})" if mark["note"] else ""
        place = text[mark["start"] : mark["end"]]
        yield _text(f"{name}: {mark['verdict']}: {place}{note}", _STYLES[mark["verdict"]])
    for criterion, comment in score.get("comments", {}).items():
        yield _text(f"{name}: {criterion}: {comment}", "italic")


def _text(raw: str, style: str = "") -> Text:
    """Text as it is, but for what a terminal would obey."""
    return Text(visible(raw), style)


def parity_in(events: Iterable[Json]) -> list[Json]:
    """What was compared of rollouts' log-probs with the learner's, oldest first, each once."""
    rows = (row for event in events for row in event["data"].get("parity", ()))
    return list({(row["rollout"], row["version"]): row for row in rows}.values())


def newest_parity(rows: Sequence[Json]) -> list[Json]:
    """What tells of rollouts as they are: some may be gone that reported older versions."""
    reported = [row for row in rows if row["rollout"] is not None]
    newest = max((row["version"] for row in reported), default=None)
    tokens = [row for row in rows if row["rollout"] is None]
    return [*(row for row in reported if row["version"] == newest), *tokens[-1:]]


def plain_table(rows: Sequence[Sequence[str]]) -> Table:
    """A table of texts, the first row of which has the heads."""
    rendered = table(*rows[0])
    for row in rows[1:]:
        rendered.add_row(*map(cell, row))
    return rendered


def parity_table(rows: Iterable[Json]) -> Table:
    found = table("rollout", "version", "mean gap", "largest", "limit", "verdict")
    for row in rows:
        gaps = (number(row[name], "{:.1e}") for name in ("mean", "max", "most"))
        verdict = "agrees" if row["agrees"] else "other weights, or otherwise computed"
        who = row["rollout"] or "(sampled tokens)"
        found.add_row(*map(cell, (who, row["version"], *gaps)), cell(verdict))
    return found


def in_a_sentence(job: Json, why: Json) -> str:
    """Where a job is, and what it waits for."""
    own, because = job["weir"], why["because"]
    words = f"{job['id']} is {job['status']} at step {of_steps(own['step'], own['steps'])}"
    if job["status"] in {"running", "queued"} and why["edge"] is not None:
        return f"{words}, and nothing has moved for {duration(why['still_s'])}: {because}"
    return f"{words}: {because}" if because else words


def tables(why: Json) -> Iterator[Table]:
    """What every process does, and how full the job's streams are."""
    services = table("process", "ready", "does", "for", "parity")
    for each in why["services"]:
        ready = "yes" if each["ready"] else "no"
        gap = each.get("parity") or {}
        parity = f"{number(gap.get('mean'), '{:.0e}')} at {gap['version']:.0f}" if gap else ""
        doing = (each["name"], ready, each["doing"], duration(each["for_s"]), parity)
        services.add_row(*map(cell, doing))
    streams = table("stream", "waiting", "claimed", "oldest")
    for each in why["streams"]:
        counts = (each["stream"], each["waiting"], each["claimed"], duration(each["oldest_s"]))
        streams.add_row(*map(cell, counts))
    return (rows for rows in (services, streams) if rows.row_count)
