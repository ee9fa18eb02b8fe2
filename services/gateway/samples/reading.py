"""Lists and groups of samples, made off the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from protocol.frames import FrameError
from pydantic import Field
from pydantic_core import to_json

from services.gateway.samples.catalog import Catalog, Order, SampleFilter
from services.gateway.samples.group import group_json
from services.gateway.samples.index import Index
from services.gateway.samples.pieces import tokenizer_of

FOLDER = "samples"  # below the job's
_OPEN_INDEXES = 4  # of jobs; one of 100,000 responses takes 31 MiB
_PATIENCE_S = 1.0


class SampleQuery(SampleFilter):
    """The query of a list of samples."""

    text: str | None = Field(default=None, min_length=1)
    order: Order = Order.NEWEST
    after: str | None = None
    limit: int = Field(default=20, ge=1, le=1000)


@dataclass
class Samples:
    """The sample stores of jobs; the indexes of those last asked for stay in memory."""

    patience_s: float = _PATIENCE_S  # a search that takes longer answers what it has
    _indexes: OrderedDict[Path, Index] = field(default_factory=OrderedDict)

    async def page(self, job_dir: Path, query: SampleQuery) -> bytes:
        """A list of samples as JSON.

        Raises:
            Problem: 400 if the cursor is not one of this list.
        """
        return await asyncio.to_thread(_page, self._index(job_dir), query, self.patience_s)

    async def group(self, job_dir: Path, key: str) -> bytes:
        """A group as JSON.

        Raises:
            Problem: 404 if there is none of this key.
        """
        return await asyncio.to_thread(_group, self._index(job_dir), key)

    def _index(self, job_dir: Path) -> Index:
        index = self._indexes.setdefault(job_dir, Index(job_dir / FOLDER))
        self._indexes.move_to_end(job_dir)
        if len(self._indexes) > _OPEN_INDEXES:
            self._indexes.popitem(last=False)
        return index


def _group(index: Index, key: str) -> bytes:
    return group_json(*index.find(key), tokenizer_of(index.folder))


def _page(index: Index, query: SampleQuery, patience_s: float) -> bytes:
    catalog = index.catalog()
    rows = catalog.select(query, query.order, query.after)
    holds = _always if query.text is None else _Search(index, catalog, query.text).holds
    found, last, has_more = _take(rows.tolist(), query.limit, holds, patience_s)
    data = [catalog.response(row) for row in found]
    page = {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": None if last is None else catalog.cursor(last, query.order),
        "has_more": has_more,
        "summary": catalog.summary,
    }
    return to_json(page, inf_nan_mode="null")


def _take(
    rows: Iterable[int], limit: int, holds: Callable[[int], bool], patience_s: float
) -> tuple[list[int], int | None, bool]:
    """Up to ``limit`` rows that hold, the last one looked at, and whether others are left.

    Stops early where looking takes long.
    """
    found: list[int] = []
    last, deadline = None, time.monotonic() + patience_s
    for row in rows:
        if len(found) == limit or (last is not None and time.monotonic() > deadline):
            return found, last, True
        if holds(row):
            found.append(row)
        last = row
    return found, last, False


def _always(_: int) -> bool:
    return True


@dataclass
class _Search:
    index: Index
    catalog: Catalog
    text: str
    _looked: dict[int, set[float]] = field(default_factory=dict)

    def holds(self, row: int) -> bool:
        """Whether the text of a row's response holds the text that is looked for."""
        place = int(self.catalog.group_of[row])
        if place not in self._looked:
            self._looked[place] = self._responses_with_it(place)
        return self.catalog.rows["index"][row] in self._looked[place]

    def _responses_with_it(self, place: int) -> set[float]:
        try:
            rollout = self.index.read(self.catalog.groups[place]).graded.group
        except (FileNotFoundError, FrameError):
            return set()  # gone, or damaged, which who opens it is told
        responses = rollout.responses if rollout is not None else ()
        wanted = self.text.casefold()
        return {i for i, response in enumerate(responses) if wanted in response.text.casefold()}
