"""What a terminal shows of samples, and of what a job waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from weir.terminal import cell, duration, number, table, visible

Json = Mapping[str, Any]
_STYLES = {"right": "green", "wrong": "red", "unknown": "yellow"}
_NUMBERS = {
    "accuracy": "{:.2f}",
    "process": "{:.2f}",
    "reward": "{:.3f}",
    "advantage": "{:+.3f}",
    "surprise": "{:.3f}",
    "length": "{:,}",
}


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
    yield _text(f"task {task['id']}, answer {task['answer']}")
    messages = task["messages"] or ()
    conversation = "\n".join(f"{each['role']}: {each['content']}" for each in messages)
    yield _text(group["prompt"] or conversation)
    for response in group["responses"]:
        yield from _response(response)


def _response(response: Json) -> Iterator[RenderableType]:
    scores = {name: score for name, score in response["grade"].items() if score is not None}
    parts = [f"{name} {number(score.get('value'), '{:.2f}')}" for name, score in scores.items()]
    parts += [
        f"{name} {number(response[name], _NUMBERS[name])}" for name in ("reward", "advantage")
    ]
    parts += [f"{len(response['tokens']):,} tokens", response["finish_reason"]]
    yield _text(f"\nresponse {response['index']}: {', '.join(parts)}", "bold")
    text = _text(response["text"])
    for score in scores.values():
        for mark in score.get("marks", ()):
            text.stylize(_STYLES[mark["verdict"]], mark["start"], mark["end"])
    yield text
    for name, score in scores.items():
        yield from _remarks(name, score, response["text"])


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


def in_a_sentence(job: Json, why: Json) -> str:
    """Where a job is, and what it waits for."""
    own, because = job["weir"], why["because"]
    words = f"{job['id']} is {job['status']} at step {own['step']}/{own['steps']}"
    if job["status"] in {"running", "queued"} and why["edge"] is not None:
        return f"{words}, and nothing has moved for {duration(why['still_s'])}: {because}"
    return f"{words}: {because}" if because else words


def tables(why: Json) -> Iterator[Table]:
    """What every process does, and how full the job's streams are."""
    services = table("process", "ready", "does", "for")
    for each in why["services"]:
        ready = "yes" if each["ready"] else "no"
        doing = (each["name"], ready, each["doing"], duration(each["for_s"]))
        services.add_row(*map(cell, doing))
    streams = table("stream", "waiting", "claimed", "oldest")
    for each in why["streams"]:
        counts = (each["stream"], each["waiting"], each["claimed"], duration(each["oldest_s"]))
        streams.add_row(*map(cell, counts))
    return (rows for rows in (services, streams) if rows.row_count)
