"""Whether the server keeps what it has acknowledged: its settings and its clock."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import cast

from protocol.exchange.connection import Connection, Refused

_MAX_CLOCK_ERROR_S = 5.0
_DELETES = (
    "maxmemory-policy is {!r}: when its memory is full the server deletes jobs and work without a "
    "word; set maxmemory-policy noeviction"
)
_NO_LOG = (
    "appendonly is off: jobs and work since the server's last snapshot are lost when it ends; set "
    "appendonly yes and appendfsync always"
)
_LATE_LOG = (
    "appendfsync is {!r}: jobs that were submitted and work that was done in the last second are "
    "lost when the server's machine fails; set appendfsync always"
)
_UNKNOWN_LOG = (
    "appendfsync cannot be checked, since the server refuses CONFIG GET ({}); make sure that it is "
    "always, or the last second of jobs and work can be lost"
)
_OTHER_CLOCK = (
    "the server's clock is {:+.0f} s off this machine's, so times of jobs and events are wrong; "
    "synchronize both by NTP"
)


@dataclass(frozen=True)
class ServerProblem:
    """A setting of the server by its own name, or its clock; ``text`` has the remedy."""

    setting: str
    text: str
    deletes_work: bool = False


async def server_problems(exchange: Connection) -> list[ServerProblem]:
    """What is wrong with the server, or cannot be checked; nothing if all is well."""
    server, problems = exchange.writer, list[ServerProblem]()
    policy = (await server.info("memory"))["maxmemory_policy"]
    if policy.startswith("allkeys"):  # no key of Weir's expires, so others delete none
        problems.append(ServerProblem("maxmemory-policy", _DELETES.format(policy), True))
    if not (await server.info("persistence"))["aof_enabled"]:
        problems.append(ServerProblem("appendonly", _NO_LOG))
    elif text := await _about_fsync(exchange):
        problems.append(ServerProblem("appendfsync", text))
    before = time.time()
    seconds, microseconds = await cast(Awaitable[tuple[int, int]], server.time())
    there, after = seconds + microseconds / 1e6, time.time()
    if not before - _MAX_CLOCK_ERROR_S < there < after + _MAX_CLOCK_ERROR_S:
        problems.append(ServerProblem("clock", _OTHER_CLOCK.format(there - after)))
    return problems


async def _about_fsync(exchange: Connection) -> str | None:
    try:
        when = (await exchange.writer.config_get("appendfsync"))["appendfsync"]
    except Refused as error:
        return _UNKNOWN_LOG.format(error)
    return None if when == "always" else _LATE_LOG.format(when)
