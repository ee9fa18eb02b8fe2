"""The exchange: typed work streams over Redis or Valkey, where nothing is lost or done twice.

Work moves by an exclusive *hand-off*: one script acknowledges and deletes the input and appends the
result, so a result appears exactly once, whoever else was working on the same input. Whoever works
shows life by a *heartbeat*, a number that grows. The others notice where it does not, each by its
own clock (`Roster`), and *bury* that worker: what it held is free again. What the learner writes
carries its *attempt*, and an older attempt is refused. Every write may be repeated without effect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from protocol.exchange.calls import Calls
from protocol.exchange.connection import Disconnected, Fenced, open_clients
from protocol.exchange.jobs import Jobs, Lease, Sought, UnreadableRecord
from protocol.exchange.news import News
from protocol.exchange.queue import (
    Backlog,
    Delivery,
    Place,
    Pulse,
    Roster,
    Verdict,
    Work,
    replica_of,
)

__all__ = [
    "Backlog",
    "Delivery",
    "Disconnected",
    "Exchange",
    "Fenced",
    "Lease",
    "Place",
    "Pulse",
    "Roster",
    "Sought",
    "UnreadableRecord",
    "Verdict",
    "connect",
    "replica_of",
]


class Exchange(Work, Jobs, News, Calls):
    """All that crosses a process boundary, for one life of one process."""


@asynccontextmanager
async def connect(url: str, *, me: str, patience_s: float = 120.0) -> AsyncIterator[Exchange]:
    """Open an exchange. Commands are repeated for ``patience_s`` while the server is away."""
    async with open_clients(url, patience_s) as clients:
        yield Exchange(me, *clients)
