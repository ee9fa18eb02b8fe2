"""Why a job does not go on, for a person: a sentence and two tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from services.gateway.cli.terminal import cell, table
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
