"""The exchange: typed work streams over Redis or Valkey, where nothing is lost or done twice.

Work moves by an exclusive *hand-off*: one script acknowledges and deletes the input and appends the
result. So a result appears exactly once, even if several workers process the same input. A worker
sends *heartbeats*, a number that grows. The other workers watch it, each by its own clock
(`WorkerRegistry`). They *expire* a silent worker, which releases its entries. The learner's writes
carry its *attempt*, and those of an older attempt are refused. Every write may be repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from protocol.exchange.calls import Calls
from protocol.exchange.connection import Disconnected, Fenced, open_clients
from protocol.exchange.jobs import JobQuery, Jobs, Lease, UnreadableRecord
from protocol.exchange.news import News
from protocol.exchange.queue import (
    Backlog,
    Delivery,
    Heartbeat,
    Place,
    Verdict,
    Work,
    WorkerRegistry,
    replica_name,
)

__all__ = [
    "Backlog",
    "Delivery",
    "Disconnected",
    "Exchange",
    "Fenced",
    "Heartbeat",
    "JobQuery",
    "Lease",
    "Place",
    "UnreadableRecord",
    "Verdict",
    "WorkerRegistry",
    "connect",
    "replica_name",
]


class Exchange(Work, Jobs, News, Calls):
    """All messages between processes, for one run of one process."""


@asynccontextmanager
async def connect(url: str, *, me: str, patience_s: float = 120.0) -> AsyncIterator[Exchange]:
    """Open an exchange. Commands are repeated for ``patience_s`` while the server is away."""
    async with open_clients(url, patience_s) as clients:
        yield Exchange(me, *clients)
