"""The routes of a job's samples, which read files in threads."""

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
MAX_OPEN_STORES = 4  # of jobs, each with tables in memory
NUM_SEARCHED = 100  # responses between two looks at the clock
SEARCH_TIMEOUT_S = 1.0  # a longer search returns the matches so far
NUM_DECODERS = 2
_INTERNAL_FIELDS = ("number", "place", "file")

samples = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}/samples", tags=["samples"])


class SampleQuery(SampleFilter):
    text: str | None = Field(default=None, min_length=1)
    order: Order = Order.NEWEST
    after: str | None = None
    limit: int = Field(default=20, ge=1, le=1000)


@lru_cache(maxsize=MAX_OPEN_STORES)
def open_store(job_dir: Path) -> Store:
    return Store(job_dir / FOLDER)


async def _find_store(job_id: str, request: Request) -> Store:
    jobs: JobService = request.app.state.jobs
    job = await jobs.find(job_id)
    return open_store(jobs.service.deployment.job_dir(job.id))


JobStore = Annotated[Store, Depends(_find_store)]


@samples.get("")
def list_samples(query: Annotated[SampleQuery, Query()], store: JobStore) -> Response:
    """List a job's responses and their fates; ``after=last_id`` continues the list."""
    return Response(page_json(store, query), media_type="application/json")


@samples.get("/{key}")
async def get_sample_group(key: str, store: JobStore, request: Request) -> Response:
    """Return a group, with the text and the numbers of every token."""
    state = request.app.state
    if not hasattr(state, "decoders"):
        state.decoders = Pool(NUM_DECODERS)
    content = await group_json(store, key, state.decoders)
    return Response(content, media_type="application/json")


def page_json(store: Store, query: SampleQuery, timeout_s: float = SEARCH_TIMEOUT_S) -> bytes:
    """Return a page of samples as JSON.

    Raises:
        Problem: 400 if the cursor is from another list.
    """
    summary = store.refresh()
    after = None if query.after is None else _parse_cursor(query.after, query.order)
    rows, last, has_more = _select_page(store, query, after, timeout_s)
    data = [_sample_object(row) for row in store.add_texts(rows)]
    page = {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": last and ",".join([query.order, *(f"{rank:.17g}" for rank in last)]),
        "has_more": has_more,
        "summary": summary,
    }
    return to_json(page, inf_nan_mode="null")


def _select_page(
    store: Store, query: SampleQuery, after: Sequence[float] | None, timeout_s: float
) -> tuple[list[Row], Sequence[float] | None, bool]:
    """Return up to ``limit`` rows, the place of the last row read, and whether rows remain."""
    if query.text is not None:
        return _search_page(store, query, query.text, after, timeout_s)
    rows = store.select(query, query.order, after, query.limit + 1)
    page = rows[: query.limit]
    return page, page[-1]["place"] if page else None, len(rows) > query.limit


def _search_page(
    store: Store, query: SampleQuery, text: str, after: Sequence[float] | None, timeout_s: float
) -> tuple[list[Row], Sequence[float] | None, bool]:
    page: list[Row] = []
    last: Sequence[float] | None = None
    deadline = time.monotonic() + timeout_s
    while rows := store.select(query, query.order, last or after, NUM_SEARCHED):
        room = query.limit - len(page)
        matches = store.search(rows, text)[:room]
        page += matches
        is_full = len(matches) == room
        last = (matches if is_full else rows)[-1]["place"]
        has_more = len(rows) == NUM_SEARCHED or last != rows[-1]["place"]
        if is_full or not has_more or time.monotonic() > deadline:
            return page, last, has_more
    return page, last, False


def _parse_cursor(cursor: str, order: Order) -> list[float]:
    name, *numbers = cursor.split(",")
    try:
        place = [float(number) for number in numbers]
    except ValueError:
        place = []
    if name != order or len(place) != len(RANKS[order]):
        message = f"after: {cursor!r} is not the last_id of a list of samples in the order {order}"
        raise Problem(400, message, param="after")
    return place


def _sample_object(row: Row) -> Row:
    sample_id = row["key"] if row["index"] is None else f"{row['key']}/{row['index']}"
    fields = {name: value for name, value in row.items() if name not in _INTERNAL_FIELDS}
    return {"id": sample_id, "object": "fine_tuning.job.sample", **fields}
