"""Lists and groups of samples, made off the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field
from pydantic_core import to_json

from services.gateway.errors import Problem
from services.gateway.samples.group import group_json
from services.gateway.samples.pieces import tokenizer_of
from services.gateway.samples.store import RANKS, Order, Row, SampleFilter, Store

FOLDER = "samples"  # below the job's
_OPEN_STORES = 4  # of jobs, each with tables in memory
_LOOKED_AT = 100  # responses at once whose text is searched
_PATIENCE_S = 1.0
_UNSHOWN = ("number", "place", "file")


class SampleQuery(SampleFilter):
    """The query of a list of samples."""

    text: str | None = Field(default=None, min_length=1)
    order: Order = Order.NEWEST
    after: str | None = None
    limit: int = Field(default=20, ge=1, le=1000)


@dataclass
class Samples:
    """The sample stores of jobs; the tables of those last asked for stay in memory."""

    patience_s: float = _PATIENCE_S  # a search that takes longer answers what it has
    _stores: OrderedDict[Path, Store] = field(default_factory=OrderedDict)

    async def page(self, job_dir: Path, query: SampleQuery) -> bytes:
        """A list of samples as JSON.

        Raises:
            Problem: 400 if the cursor is not one of this list.
        """
        return await asyncio.to_thread(_page, self._store(job_dir), query, self.patience_s)

    async def group(self, job_dir: Path, key: str) -> bytes:
        """A group as JSON.

        Raises:
            Problem: 404 if there is none of this key.
        """
        return await asyncio.to_thread(_group, self._store(job_dir), key)

    def _store(self, job_dir: Path) -> Store:
        store = self._stores.setdefault(job_dir, Store(job_dir / FOLDER))
        self._stores.move_to_end(job_dir)
        if len(self._stores) > _OPEN_STORES:
            self._stores.popitem(last=False)
        return store


def _group(store: Store, key: str) -> bytes:
    return group_json(store.group(key), tokenizer_of(store.folder))


def _page(store: Store, query: SampleQuery, patience_s: float) -> bytes:
    summary = store.look()
    after = None if query.after is None else _place(query.after, query.order)
    found, last, has_more = _take(store, query, after, patience_s)
    data = [_shown(row) for row in found]
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
    """A row as the list of samples shows it."""
    key, index = row["key"], row["index"]
    sample_id = key if index is None else f"{key}/{index}"
    shown = {name: value for name, value in row.items() if name not in _UNSHOWN}
    return {"id": sample_id, "object": "fine_tuning.job.sample", **shown}
