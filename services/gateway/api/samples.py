"""The routes of a job's samples. They read files, in threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field
from pydantic_core import to_json

from services.chassis.pool import Pool
from services.gateway.core.jobs.service import JobService
from services.gateway.core.samples.group import group_json
from services.gateway.core.samples.store import RANKS, Order, Row, SampleFilter, Store
from services.gateway.errors import Problem

FOLDER = "samples"  # below the job's
_OPEN_STORES = 4  # of jobs, each with tables in memory
_LOOKED_AT = 100  # responses at once whose text is searched
_PATIENCE_S = 1.0  # a search that takes longer answers what it has
_UNSHOWN = ("number", "place", "file")

samples = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}/samples", tags=["samples"])


class SampleQuery(SampleFilter):
    text: str | None = Field(default=None, min_length=1)
    order: Order = Order.NEWEST
    after: str | None = None
    limit: int = Field(default=20, ge=1, le=1000)


@lru_cache(maxsize=_OPEN_STORES)
def open_store(job_dir: Path) -> Store:
    """The samples of a job; the tables of those last asked for stay in memory."""
    return Store(job_dir / FOLDER)


async def _store(job_id: str, request: Request) -> Store:
    jobs: JobService = request.app.state.jobs
    return open_store(jobs.service.deployment.job_dir((await jobs.find(job_id)).id))


JobStore = Annotated[Store, Depends(_store)]


@samples.get("")
def list_samples(query: Annotated[SampleQuery, Query()], store: JobStore) -> Response:
    """A job's responses and what became of them; ``after=last_id`` goes on."""
    return Response(page_json(store, query), media_type="application/json")


@samples.get("/{key}")
async def get_sample_group(key: str, store: JobStore, request: Request) -> Response:
    """One group, with the text and the numbers of every token."""
    state = request.app.state
    if not hasattr(state, "decoders"):
        state.decoders = Pool(2)
    content = await group_json(store, key, state.decoders)
    return Response(content, media_type="application/json")


def page_json(store: Store, query: SampleQuery, patience_s: float = _PATIENCE_S) -> bytes:
    """A list of samples as JSON.

    Raises:
        Problem: 400 if the cursor is not one of this list.
    """
    summary = store.look()
    after = None if query.after is None else _place(query.after, query.order)
    found, last, has_more = _take(store, query, after, patience_s)
    data = [_shown(row) for row in store.with_texts(found)]
    page = {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": last and ",".join([query.order, *(f"{rank:.17g}" for rank in last)]),
        "has_more": has_more,
        "summary": summary,
    }
    return to_json(page, inf_nan_mode="null")


def _take(
    store: Store, query: SampleQuery, after: Sequence[float] | None, patience_s: float
) -> tuple[list[Row], Sequence[float] | None, bool]:
    """Up to ``limit`` rows, the place of the last one looked at, and whether others are left.

    Stops early where looking for a text takes long.
    """
    if query.text is None:
        rows = store.select(query, query.order, after, query.limit + 1)
        found, has_more = rows[: query.limit], len(rows) > query.limit
        return found, found[-1]["place"] if found else None, has_more
    found: list[Row] = []
    last, deadline = None, time.monotonic() + patience_s
    while rows := store.select(query, query.order, last or after, _LOOKED_AT):
        are_all, room = len(rows) < _LOOKED_AT, query.limit - len(found)
        holding = store.holding(rows, query.text)[:room]
        found += holding
        last = (holding if len(holding) == room else rows)[-1]["place"]
        if are_all or len(found) == query.limit or time.monotonic() > deadline:
            return found, last, not are_all or last != rows[-1]["place"]
    return found, last, False


def _place(cursor: str, order: Order) -> list[float]:
    name, *numbers = cursor.split(",")
    try:
        place = [float(number) for number in numbers]
    except ValueError:
        place = []
    if name != order or len(place) != len(RANKS[order]):
        message = f"after: {cursor!r} is not the last_id of a list of samples in the order {order}"
        raise Problem(400, message, param="after")
    return place


def _shown(row: Row) -> Row:
    sample_id = row["key"] if row["index"] is None else f"{row['key']}/{row['index']}"
    shown = {name: value for name, value in row.items() if name not in _UNSHOWN}
    return {"id": sample_id, "object": "fine_tuning.job.sample", **shown}
