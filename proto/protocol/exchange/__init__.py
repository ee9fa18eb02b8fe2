"""The exchange: typed work streams over Redis or Valkey, where nothing is lost or done twice.

Work moves by an exclusive *hand-off*: one script acknowledges and deletes the input and appends the
result, so a result appears exactly once, whoever else was working on the same input. Whoever works
shows life by a *heartbeat*; entries without one go to another worker. What the learner writes
carries its *attempt*, and an older attempt is refused. Every write may be repeated without effect,
so a lost reply is simply sent again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from protocol.exchange.connection import Fenced, open_clients
from protocol.exchange.jobs import Jobs
from protocol.exchange.news import News
from protocol.exchange.verdicts import Verdicts
from protocol.exchange.work import MAX_DEATHS, MAX_FAILURES, Backlog, Delivery, Work

__all__ = ["MAX_DEATHS", "MAX_FAILURES", "Backlog", "Delivery", "Exchange", "Fenced", "connect"]


class Exchange(Work, Jobs, News, Verdicts):
    """Everything that crosses a process boundary, for one life of one process."""


@asynccontextmanager
async def connect(url: str, *, me: str, patience_s: float = 120.0) -> AsyncIterator[Exchange]:
    """Open an exchange. Commands are repeated for ``patience_s`` while the server is away."""
    async with open_clients(url, patience_s) as (writer, reader):
        yield Exchange(me, writer, reader)
