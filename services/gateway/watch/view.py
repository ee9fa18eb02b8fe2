"""Why a job does not go on, for a person: a sentence and two tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from services.gateway.watch.stalls import duration

Json = Mapping[str, Any]


def in_a_sentence(job: Json, why: Json) -> str:
    """Where a job is, and what it waits for."""
    own, because = job["weir"], why["because"]
    words = f"{job['id']} is {job['status']} at step {own['step']}/{own['steps']}"
    if job["status"] in {"running", "queued"} and why["edge"] is not None:
        return f"{words}, and nothing has moved for {duration(why['still_s'])}: {because}"
    return f"{words}: {because}" if because else words


def tables(why: Json) -> Iterator[Table]:
    """What every process does, and how full the job's streams are."""
    services = Table("process", "ready", "does", "for", box=None, pad_edge=False)
    for each in why["services"]:
        ready = "yes" if each["ready"] else "no"
        services.add_row(each["name"], ready, Text(each["doing"]), duration(each["for_s"]))
    streams = Table("stream", "waiting", "claimed", "oldest", box=None, pad_edge=False)
    for each in why["streams"]:
        counts = (str(each["waiting"]), str(each["claimed"]))
        streams.add_row(each["stream"], *counts, duration(each["oldest_s"]))
    return (table for table in (services, streams) if table.row_count)
