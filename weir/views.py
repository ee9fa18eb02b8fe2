"""Views of the command: text, a job's progress, evaluations, samples, and reasons for waiting.

Text of clients and models is shown unchanged, except for characters that a terminal would obey.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Event, Thread
from typing import Any

from rich import progress
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from weir.evaluations import Json, compare

# Of a file or a pipe, where each row of a table is one line.
_LONGEST_LINE = 10_000
_SENTENCE_WIDTH = 20  # of a column that a terminal wraps, at least
# Characters that move the cursor, reverse the line or start an escape sequence. Each is replaced
# by one character, so that the positions of marks stay valid.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_VISIBLE[127] = 0x2421
for _codes in (range(128, 160), (0x200E, 0x200F), range(0x2028, 0x202F), range(0x2066, 0x206A)):
    _VISIBLE |= dict.fromkeys(_codes, 0xFFFD)
_LINE_BREAKS = {ord("\n"): 0x240A, ord("\t"): 0x2409}
# These change while the reason for waiting stays the same.
_PROGRESS = re.compile(r"[\d.]+ (s|min|h)\b|\bstep \d+(/\d+)?")
_END = re.compile(r"(succeeded|cancelled)$|failed: ")  # a job's last event
_POLL_S = 2.0
# The remaining time is estimated from the median of this many steps.
_MAX_STEP_TIMES = 51
_MIN_STEP_TIMES = 3
_BARS = "▁▂▃▄▅▆▇█"
_MAX_BARS = 32
_EXCERPT_CHARS = 60
# Label and format of the numbers in a job's metrics events.
_CURVES = {
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
_MARK_STYLES = {"right": "green", "wrong": "red", "unknown": "yellow"}
_SAMPLE_FORMATS = {
    "accuracy": "{:.2f}",
    "process": "{:.2f}",
    "reward": "{:.3f}",
    "advantage": "{:+.3f}",
    "surprise": "{:.3f}",
    "length": "{:,}",
}


def visible(raw: object) -> str:
    """Return text without characters that a terminal obeys, except line breaks and tabs."""
    return str(raw).translate(_VISIBLE)


def cell(raw: object, style: str = "") -> Text:
    """Return one line of visible text, in which rich finds no markup."""
    return Text(visible(raw).translate(_LINE_BREAKS), style)


def _text(raw: str, style: str = "") -> Text:
    return Text(visible(raw), style)


def table(*heads: str) -> Table:
    return Table(*heads, box=None, pad_edge=False)


def say(text: object) -> None:
    _write(str(text), Console())


def complain(text: object) -> None:
    _write(f"weir: {text}", Console(stderr=True))


def _write(text: str, console: Console) -> None:
    if console.is_terminal:
        console.print(_text(text))
    else:
        print(visible(text), file=console.file, flush=True)


def show(view: RenderableType) -> None:
    """Print a view. On a terminal, lines end between words, and none is cut."""
    console = Console()
    if not console.is_terminal:
        console.width = _LONGEST_LINE
    elif isinstance(view, Table):
        view = _fit(view, console.width)
    console.print(view)


def _fit(view: Table, width: int) -> RenderableType:
    """Wrap the columns of sentences; if the table is too wide even so, list each row by lines."""
    needed = 0
    for column in view.columns:
        texts = [str(content) for content in (column.header, *column.cells)]
        longest = max(map(cell_len, texts))
        column.no_wrap = longest <= _SENTENCE_WIDTH or not any(" " in text for text in texts)
        needed += 2 + (longest if column.no_wrap else _SENTENCE_WIDTH)
    if needed - 2 <= width:
        return view
    rows: list[RenderableType] = []
    for contents in zip(*(column.cells for column in view.columns), strict=True):
        row = Table.grid("", Column(overflow="fold"), padding=(0, 2))
        for column, content in zip(view.columns, contents, strict=True):
            row.add_row(column.header, content)
        rows += [row, ""]
    return Group(*rows)


def print_json(objects: Iterable[Any]) -> None:
    """Print one JSON object a line; JSON escapes the characters that a terminal obeys."""
    for value in objects:
        print(json.dumps(value), flush=True)


def number(value: float | None, form: str = "{:.3f}") -> str:
    return "-" if value is None else form.format(value)


def duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def step_text(step: int, steps: int | None) -> str:
    """Return a job's position; a session has no number of steps, an evaluation has 0."""
    if steps == 0:
        return "evaluation"
    return str(step) if steps is None else f"{step}/{steps}"


@dataclass
class Progress:
    """The numbers of a job's events.

    Args:
        steps: None for a session, which ends when its client says so.
        step: the job's step; events up to it are replayed.
    """

    job_id: str
    steps: int | None
    step: int = 0
    event_step: int = 0
    waiting_for: str = ""
    curves: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    evaluations: list[Json] = field(default_factory=list)
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_STEP_TIMES))
    forecast_at: int = -1  # the step of the evaluation of the last forecast

    def update(self, event: Json) -> None:
        """Add the numbers of a metrics event."""
        data = event["data"]
        if event["type"] != "metrics" or "pretrain_step" in data:
            return
        self.evaluations += find_evaluations([event])
        self.event_step = data.get("step", self.event_step)
        self.step = max(self.step, self.event_step)
        seconds = data.get("seconds")
        if seconds is not None:
            self.step_seconds.append(seconds)
        for name in _CURVES:
            value = data.get(name)
            if value is not None:
                self.curves[name].append(value)

    def forecast_line(self, find_forecast: Callable[[], Json | None]) -> str | None:
        """Return the forecast after a new evaluation, of which the gateway may know later."""
        steps = [result["step"] for result in self.evaluations if "name" not in result]
        if self.event_step < self.step or steps[-1:] in ([], [self.forecast_at]):
            return None
        forecast = find_forecast()
        if not forecast or forecast["curve"][0][0] != steps[-1]:
            return None
        self.forecast_at = steps[-1]
        accuracy = forecast["accuracy"]
        half_width = (forecast["high"] - forecast["low"]) / 2
        return (
            f"at this rate accuracy {accuracy:.2f} ± {half_width:.2f} "
            f"at step {forecast['step']} (90 % interval)"
        )

    @property
    def remaining(self) -> str:
        """The remaining time at the median time of the last steps; empty if unknown."""
        if self.steps is None or self.step == self.steps:
            return ""
        is_replayed = self.event_step < self.step
        if is_replayed or len(self.step_seconds) < _MIN_STEP_TIMES:
            return ""
        seconds = (self.steps - self.step) * statistics.median(self.step_seconds)
        return f"{duration(seconds)} left"

    def line(self) -> str:
        """Return the newest numbers in a line."""
        parts = [f"step {step_text(self.event_step, self.steps)}"]
        for name, (label, form) in _CURVES.items():
            if self.curves[name]:
                parts.append(f"{label} {form.format(self.curves[name][-1])}")
        return "  ".join(filter(None, [*parts, self.remaining]))

    def table(self) -> RenderableType:
        """Return a progress bar, and the newest numbers with their curves."""
        head = Table.grid(Column(no_wrap=True), padding=(0, 1))
        bar = ProgressBar(total=self.steps, completed=self.step, width=40)
        position = f"{step_text(self.step, self.steps)}  {self.remaining}"
        head.add_row(cell(self.job_id, "bold"), bar, position)
        rows = Table.grid(padding=(0, 2))
        for name, (label, form) in _CURVES.items():
            curve = self.curves[name]
            if curve:
                rows.add_row(label, Text(form.format(curve[-1]), justify="right"), spark(curve))
        if self.waiting_for and not self.step:
            return Group(head, cell(self.waiting_for), rows)
        return Group(head, rows)


def show_progress(
    job: Progress,
    events: Iterable[Json],
    console: Console,
    why: Callable[[], str | None] = lambda: None,
    find_forecast: Callable[[], Json | None] = lambda: None,
) -> None:
    """Show events as they come: on a terminal as a table that changes in place, else as lines.

    Until the job's first step, also show the reason that ``why`` returns, every two seconds.
    """
    live = Live(job.table(), console=console) if console.is_terminal else None

    def print_line(text: str) -> None:
        console.print(_text(text), soft_wrap=not console.is_terminal)

    def show_reason(reason: str) -> None:
        is_new = _PROGRESS.sub("", reason) != _PROGRESS.sub("", job.waiting_for)
        job.waiting_for = reason
        if live is not None:
            live.update(job.table(), refresh=True)
        elif is_new:
            print_line(reason)

    with live or nullcontext(), _polling(job, why, show_reason):
        for event in _drop_end(events):
            job.update(event)
            if live is not None:
                live.update(job.table(), refresh=True)
            line = _event_line(event) or (None if live else job.line())
            for text in filter(None, (line, job.forecast_line(find_forecast))):
                print_line(text)


def _drop_end(events: Iterable[Json]) -> Iterator[Json]:
    """Leave out the event of the job's end: the caller reports it with the job's result."""
    ends: list[Json] = []
    for event in events:
        yield from ends
        ends = [event] if _END.match(event["message"]) else []
        if not ends:
            yield event


@contextmanager
def _polling(
    job: Progress, why: Callable[[], str | None], show_reason: Callable[[str], None]
) -> Iterator[None]:
    is_over = Event()

    def poll() -> None:
        while not job.step:
            reason = why()
            if is_over.is_set():
                return
            if reason:
                show_reason(reason)
            is_over.wait(_POLL_S)

    # The thread is not joined: a request may take long after Ctrl-C.
    Thread(target=poll, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _event_line(event: Json) -> str | None:
    """Return the line of an event that is not a training step."""
    if event["type"] == "message":
        return f"{event['level']}: {event['message']}"
    if "pretrain_step" in event["data"]:
        return event["message"]
    return evaluation_line(event) if "evaluation" in event["data"] else None


@contextmanager
def download_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on a terminal; yields a function of a file's name, the bytes here, and all."""
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
        yield lambda name, completed, total: bar.update(
            download, description=name, completed=completed, total=total
        )


def spark(curve: list[float]) -> str:
    """Draw the whole curve; each bar is the mean of an equal part of its steps."""
    num_bars = min(_MAX_BARS, len(curve))
    ends = [len(curve) * bar // num_bars for bar in range(num_bars + 1)]
    means = [statistics.fmean(curve[start:end]) for start, end in pairwise(ends)]
    low = min(means)
    height = max(means) - low
    bars = ""
    for mean in means:
        share = (mean - low) / (height or 1.0)
        bars += _BARS[round(share * (len(_BARS) - 1))]
    return bars


def find_evaluations(events: Iterable[Json]) -> list[Json]:
    """Return the results in a job's events; those on further files have a ``name``."""
    results: list[Json] = []
    for event in events:
        data = event["data"]
        result = data.get("evaluation", data.get("other_evaluation"))
        if result is not None:
            results.append(result)
    return results


def evaluations_table(results: Sequence[Json]) -> Table:
    """Return a row per evaluation; a column of pass@k for every k above 1."""
    passes = sorted({k for result in results for k in _pass_ks(result)})
    has_names = any("name" in result for result in results)
    has_models = any("model" in result for result in results)
    rows = table(*["model"] * has_models, *["on"] * has_names)
    heads = ["tasks", "responses", "avg@k", "95 % interval"]
    if not has_models:
        heads.insert(0, "step")
    heads += [f"pass@{k}" for k in passes]
    heads += ["process", "of wrong", "length", "truncated", "ungradable", "failed"]
    for head in heads:
        rows.add_column(head, justify="right")
    for result in results:
        row = [
            *([result["model"]] if has_models else []),
            *([result.get("name", "held_out")] if has_names else []),
            *([] if has_models else [str(result["step"])]),
            f"{result['tasks']:,}",
            f"{result['samples']:,}",
            number(result["accuracy"]),
            _interval(result["accuracy_low"], result["accuracy_high"]),
            *(number(result.get(f"pass@{k}")) for k in passes),
            number(result["process"]),
            number(result.get("process_wrong")),
            number(result["response_length"], "{:.1f}"),
            number(result["truncated"], "{:.1%}"),
            str(result["ungradable"]),
            _failed(result) if result["failed"] else "0",
        ]
        rows.add_row(*map(cell, row))
    return rows


def differences_table(differences: Sequence[Json]) -> Table:
    """Return how far each model's avg@k is from the first model's, on each file of tasks."""
    rows = table("model", "on", "difference", "95 % interval", "tasks", "against")
    for row in differences:
        gain = number(row["gain"], "{:+.3f}")
        interval = _interval(row["low"], row["high"], "{:+.3f}")
        tasks = f"{row['tasks']:,}"
        if not row["paired"]:
            tasks += ", unpaired"
        values = [
            row["model"],
            row["name"] or "held_out",
            gain,
            interval,
            tasks,
            row["against"],
        ]
        rows.add_row(*map(cell, values))
    return rows


def gain_line(results: Sequence[Json]) -> str | None:
    """Return how far the last evaluation is from the first; None if unknown."""
    if len(results) < 2:
        return None
    first = results[0]
    last = results[-1]
    comparison = compare(first, last)
    if comparison is None:
        return None
    method = "unpaired: too many tasks to keep the results of each"
    if comparison.paired:
        method = f"the same {comparison.tasks:,} tasks, paired"
    interval = _interval(comparison.low, comparison.high, "{:+.3f}")
    return (
        f"accuracy {comparison.gain:+.3f} from step {first['step']} to step {last['step']}, "
        f"95 % interval {interval} ({method})"
    )


def evaluation_line(event: Json) -> str:
    result = event["data"]["evaluation"]
    accuracy = f"accuracy {number(result['accuracy'])}"
    if result["accuracy_low"] is not None:
        accuracy += f" ({_interval(result['accuracy_low'], result['accuracy_high'])})"
    parts = [event["message"], accuracy]
    names = [f"pass@{k}" for k in _pass_ks(result)[-1:]]
    for name in (*names, "process", "process_wrong"):
        if result.get(name) is not None:
            parts.append(f"{name.replace('_', ' ')} {number(result[name])}")
    if result["response_length"] is not None:
        parts.append(f"length {result['response_length']:.1f}")
    if result["failed"]:
        parts.append(f"failed {_failed(result)}")
    return "  ".join(parts)


def _failed(result: Json) -> str:
    """Return how many of an evaluation's groups failed."""
    return f"{result['failed']:,} of {result['asked']:,}"


def _pass_ks(result: Json) -> list[int]:
    """Return every k above 1 with a pass@k; pass@1 is the accuracy."""
    matches = [re.fullmatch(r"pass@(\d+)", name) for name in result]
    ks = sorted(int(match[1]) for match in matches if match)
    return [k for k in ks if k > 1]


def _interval(low: float | None, high: float | None, form: str = "{:.3f}") -> str:
    if low is None or high is None:
        return "-"
    return f"{form.format(low)} to {form.format(high)}"


def samples_table(samples: Iterable[Json]) -> Table:
    rows = table("sample", "step", "task", "fate")
    for name in (*_SAMPLE_FORMATS, ""):
        rows.add_column(name, justify="right")
    rows.add_column("prompt")
    rows.add_column("response")
    for sample in samples:
        rows.add_row(
            *map(cell, (sample["id"], sample["step"], sample["task_id"])),
            cell(sample["failure"] or sample["fate"]),
            *(number(sample[name], form) for name, form in _SAMPLE_FORMATS.items()),
            "truncated" if sample["truncated"] else "",
            cell(_cut(sample["prompt"])),
            cell(_cut(sample["text"])),
        )
    return rows


def _cut(text: str | None) -> str:
    """Return the beginning of a text that a table shows."""
    if text is None:
        return ""
    if len(text) <= _EXCERPT_CHARS:
        return text
    return f"{text[: _EXCERPT_CHARS - 1]}…"


def group_view(group: Json) -> Iterator[RenderableType]:
    """Yield a group's task and its responses."""
    yield _text(f"{group['id']}, step {group['step']}: {group['failure'] or group['fate']}")
    task = group["task"]
    if task is None:
        return
    heading = f"task {task['id']}"
    if task["answer"] is not None:
        heading += f", answer {task['answer']}"
    yield _text(heading)
    messages = [f"{message['role']}: {message['content']}" for message in task["messages"] or ()]
    yield _text(group["prompt"] or "\n".join(messages))
    for response in group["responses"]:
        yield from _response_view(response)


def _response_view(response: Json) -> Iterator[RenderableType]:
    grade = response["grade"] or {}
    scores = {name: score for name, score in grade.items() if score}
    parts = [f"{name} {number(score.get('value'), '{:.2f}')}" for name, score in scores.items()]
    for name in ("reward", "advantage"):
        parts.append(f"{name} {number(response[name], _SAMPLE_FORMATS[name])}")
    logprobs = response["behavior_logprobs"] or response["logprobs"] or ()
    num_tokens = sum(logprob is not None for logprob in logprobs)
    parts.append(f"{num_tokens:,} tokens")
    if response["finish_reason"]:
        parts.append(response["finish_reason"])
    yield _text(f"\nresponse {response['index']}: {', '.join(parts)}", "bold")
    episode = response.get("episode")
    if episode:
        yield from _episode_view(episode)
    else:
        text = _text(response["text"])
        for score in scores.values():
            for mark in score.get("marks", ()):
                text.stylize(_MARK_STYLES[mark["verdict"]], mark["start"], mark["end"])
        yield text
    for name, score in scores.items():
        yield from _score_remarks(name, score, response["text"])


def _episode_view(episode: Json) -> Iterator[Text]:
    """Yield an environment's outcome and the conversation; a bar marks foreign turns."""
    parts = [f"reward {number(episode['reward'])}"]
    if episode["problem"]:
        parts = [f"{episode['problem']}: {episode['words']}"]
    parts.append(f"{episode['turns']} turns")
    for part, seconds in episode["seconds"].items():
        parts.append(f"{part} {duration(seconds)}")
    yield _text(f"environment: {', '.join(parts)}", "italic")
    for turn in episode["conversation"]:
        if turn["role"] == "assistant":
            yield _text(turn["content"])
        else:
            content = f"{turn['role']}: {turn['content']}".replace("\n", "\n│ ")
            yield _text(f"│ {content}", "dim")


def _score_remarks(name: str, score: Json, text: str) -> Iterator[Text]:
    """Yield the verifier's reasons for a score."""
    marks = score.get("marks", ())
    reason = score["reason"]
    verdicts = [mark["verdict"] for mark in marks]
    if reason and reason not in verdicts:
        yield _text(f"{name}: {reason}", "italic")
    for mark in marks:
        note = f" ({mark['note']})" if mark["note"] not in ("", mark["verdict"]) else ""
        excerpt = text[mark["start"] : mark["end"]]
        style = _MARK_STYLES[mark["verdict"]]
        yield _text(f"{name}: {mark['verdict']}: {excerpt}{note}", style)
    for criterion, comment in score.get("comments", {}).items():
        yield _text(f"{name}: {criterion}: {comment}", "italic")


def find_parity(events: Iterable[Json]) -> list[Json]:
    """Return the comparisons of rollouts' log-probs with the learner's, oldest first, once each."""
    rows: dict[tuple[str | None, int], Json] = {}
    for event in events:
        for row in event["data"].get("parity", ()):
            rows[row["rollout"], row["version"]] = row
    return list(rows.values())


def newest_parity(rows: Sequence[Json]) -> list[Json]:
    """Return the newest rows; rollouts at older versions may be gone."""
    rollouts = [row for row in rows if row["rollout"] is not None]
    tokens = [row for row in rows if row["rollout"] is None]
    newest = max((row["version"] for row in rollouts), default=None)
    newest_rows = [row for row in rollouts if row["version"] == newest]
    return newest_rows + tokens[-1:]


def plain_table(rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of texts, whose first row has the heads."""
    view = table(*rows[0])
    for row in rows[1:]:
        view.add_row(*map(cell, row))
    return view


def parity_table(rows: Iterable[Json]) -> Table:
    view = table("rollout", "version", "mean gap", "its limit", "largest gap", "verdict")
    for row in rows:
        rollout = row["rollout"] or "(sampled tokens)"
        gaps = [number(row[name], "{:.1e}") for name in ("mean", "most", "max")]
        verdict = "agrees" if row["agrees"] else "other weights, or otherwise computed"
        view.add_row(*map(cell, (rollout, row["version"], *gaps, verdict)))
    return view


def job_summary(job: Json, why: Json) -> str:
    """Return a sentence with a job's status, its step, and the reason why it waits."""
    steps = job["weir"]["steps"]
    step = "" if steps == 0 else f" at step {step_text(job['weir']['step'], steps)}"
    summary = f"{job['id']} is {job['status']}{step}"
    reason = why["because"]
    if job["status"] in {"running", "queued"} and why["edge"] is not None:
        summary += f", and nothing has moved for {duration(why['still_s'])}"
    says_more = job["status"] not in {"succeeded", "cancelled"}
    return f"{summary}: {reason}" if reason and says_more else summary


def process_tables(why: Json) -> Iterator[Table]:
    """Yield the activity of every process, and the numbers of entries in the job's streams."""
    services = table("process", "ready", "does", "for", "parity")
    for service in why["services"]:
        gap = service.get("parity")
        parity = ""
        if gap:
            mean = number(gap.get("mean"), "{:.0e}")
            parity = f"{mean} at {gap['version']:.0f}"
        ready = "yes" if service["ready"] else "no"
        activity = (service["name"], ready, service["doing"])
        services.add_row(*map(cell, activity), duration(service["for_s"]), parity)
    streams = table("stream", "waiting", "claimed", "oldest")
    for stream in why["streams"]:
        counts = (stream["stream"], stream["waiting"], stream["claimed"])
        streams.add_row(*map(cell, counts), duration(stream["oldest_s"]))
    for view in (services, streams):
        if view.row_count:
            yield view
