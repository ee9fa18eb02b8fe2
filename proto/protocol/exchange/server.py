"""Checks of the server's durability settings and clock."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import NamedTuple, cast

from protocol.exchange.connection import Connection, Refused

_MAX_CLOCK_ERROR_S = 5.0


class ServerProblem(NamedTuple):
    """A setting of the server by its own name, or its clock; ``text`` has the remedy."""

    setting: str
    text: str
    deletes_work: bool = False


async def server_problems(exchange: Connection) -> list[ServerProblem]:
    """Return the server's problems, and settings that cannot be checked."""
    problems: list[ServerProblem] = []
    for setting, check in _CHECKS.items():
        try:
            if text := await check(exchange):
                problems.append(ServerProblem(setting, text, setting == "maxmemory-policy"))
        except Refused as error:  # by an ACL or a managed server
            text = (
                f"{setting} cannot be checked, since the server refuses to tell ({error}); make "
                "sure that it is as deploy/README.md says, or jobs and work can be lost"
            )
            problems.append(ServerProblem(setting, text))
    return problems


async def _about_policy(exchange: Connection) -> str | None:
    policy = (await exchange.writer.info("memory"))["maxmemory_policy"]
    if not policy.startswith("allkeys"):  # other policies delete only keys that expire
        return None
    return (
        f"maxmemory-policy is {policy!r}: when its memory is full the server deletes jobs and work "
        "without a word; set maxmemory-policy noeviction"
    )


async def _about_log(exchange: Connection) -> str | None:
    if (await exchange.writer.info("persistence"))["aof_enabled"]:
        return None
    return (
        "appendonly is off: jobs and work since the server's last snapshot are lost when it ends; "
        "set appendonly yes"
    )


async def _about_fsync(exchange: Connection) -> str | None:
    when = (await exchange.writer.config_get("appendfsync")).get("appendfsync", "hidden")
    if when == "always":
        return None
    return (
        f"appendfsync is {when!r}: jobs that were submitted and work that was done in the last "
        "second are lost when the server's machine fails; set appendfsync always"
    )


async def _about_clock(exchange: Connection) -> str | None:
    before = time.time()
    seconds, microseconds = await cast(Awaitable[tuple[int, int]], exchange.writer.time())
    server_time = seconds + microseconds / 1e6
    after = time.time()
    if before - _MAX_CLOCK_ERROR_S < server_time < after + _MAX_CLOCK_ERROR_S:
        return None
    return (
        f"the server's clock is {server_time - after:+.0f} s off this machine's, so are times of "
        "jobs and events; synchronize both by NTP"
    )


_CHECKS = {
    "maxmemory-policy": _about_policy,
    "appendonly": _about_log,
    "appendfsync": _about_fsync,
    "clock": _about_clock,
}
