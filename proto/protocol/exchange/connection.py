"""The connection to Redis or Valkey: patient clients, and scripts that run on the server."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from redis import exceptions as errors
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

T = TypeVar("T")
Rows = dict[bytes, list[tuple[bytes, dict[bytes, bytes]]]]  # the reply to a read, by stream key

_MEMORY_FULL_PAUSE_S = 0.2
_MAX_BLOCK_S = 20.0
_LIMIT_S = 60.0  # for a command; after it the server hangs or has vanished
_MIN_LIMIT_S = 5.0
_PULSE_LIMIT_S = 10.0  # for connecting and for small commands such as a heartbeat

MemoryFull = errors.OutOfMemoryError
Disconnected = (errors.ConnectionError, errors.TimeoutError)  # for longer than the patience
Refused = errors.ResponseError


_SCRIPTS = {path.stem: path.read_text() for path in Path(__file__).parents[1].glob("lua/*.lua")}
_HASHES = {name: hashlib.sha1(text.encode()).hexdigest() for name, text in _SCRIPTS.items()}


class Fenced(RuntimeError):
    """A newer attempt of the learner has taken over; this one must stop without more writes."""


class Memory(NamedTuple):
    """The server's used bytes, its ``maxmemory`` or None, and the memory of its machine."""

    used: int
    limit: int | None
    machine: int | None = None  # None: the server does not report it


@dataclass
class Connection:
    """The connection of one process."""

    me: str  # a new name per process start, so that earlier leases are not reused
    writer: PatientRedis
    reader: PatientRedis
    pulse: PatientRedis  # for heartbeats and leases, and reads that precede them
    redact: Callable[[str], str] = str  # removes secrets from events, errors, statuses
    backpressure_seconds: float = 0.0
    waiting_for_memory: int = 0  # writes
    places: dict[str, bytes] = field(default_factory=dict)  # the last entry seen, by key

    def hurry(self, patience_s: float) -> None:
        """Lower the patience with an unavailable server."""
        for client in (self.writer, self.reader, self.pulse):
            client.patience_s = patience_s
            client.limit_s = min(client.limit_s, max(patience_s, _MIN_LIMIT_S))

    async def ping(self) -> None:
        await cast(Awaitable[bool], self.writer.ping())

    async def memory(self) -> Memory:
        facts = await self.writer.info("memory")
        machine = facts.get("total_system_memory")
        return Memory(facts["used_memory"], facts["maxmemory"] or None, machine)

    async def run(
        self,
        name: str,
        keys: Sequence[Any],
        args: Sequence[Any],
        client: PatientRedis | None = None,
    ) -> Any:
        client = client or self.writer
        try:
            try:
                return await client.evalsha(_HASHES[name], len(keys), *keys, *args)
            except errors.NoScriptError:
                # A restart between SCRIPT LOAD and EVALSHA would lose the script.
                return await client.eval(_SCRIPTS[name], len(keys), *keys, *args)
        except errors.ResponseError as error:
            if str(error).startswith("FENCED"):
                raise Fenced(str(error)) from error
            raise

    async def produce(self, name: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script that adds work; wait while the server's memory is full."""
        while True:
            try:
                return await self.run(name, keys, args)
            except errors.OutOfMemoryError:
                self.backpressure_seconds += _MEMORY_FULL_PAUSE_S
                self.waiting_for_memory += 1
                try:
                    await asyncio.sleep(_MEMORY_FULL_PAUSE_S)
                finally:
                    self.waiting_for_memory -= 1


class PatientRedis(Redis):
    """A client that repeats a command while the server is unavailable, up to its patience.

    The retries of redis-py are off: retries of connecting multiply those of commands, and a wrong
    password would take two minutes to fail. Its timeout is off as well: in Python 3.11 a write
    within `asyncio.wait_for` can swallow a cancellation.
    """

    patience_s = 0.0
    limit_s = 0.0  # for one command with its connection and reply

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        waited_s = 0.0
        pause_s = 0.02
        while True:
            began = time.monotonic()
            try:
                return await self._execute(*args, **options)
            except (errors.AuthenticationError, errors.AuthorizationError):
                raise
            except Disconnected:
                # A longer time is a pause of this process, not of the server.
                waited_s += min(time.monotonic() - began, self.limit_s) + pause_s
                if waited_s > self.patience_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    async def _execute(self, *args: Any, **options: Any) -> Any:
        try:
            async with asyncio.timeout(self.limit_s):
                return await super().execute_command(*args, **options)
        except TimeoutError as error:
            raise errors.TimeoutError(f"Redis did not answer in {self.limit_s:g} s") from error


async def if_job_ended(fallback: T, command: Awaitable[T]) -> T:
    """Return a command's reply, or ``fallback`` if the job's streams ended with the job."""
    try:
        return await command
    except errors.ResponseError as error:
        # Readers of a deleted stream get UNBLOCKED from Redis 7.0 and NOGROUP from later versions.
        if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
            raise
        return fallback


def round_wait(wait_s: float) -> float:
    """Shorten a wait of a second or more so that it ends with a second of the clock.

    Waits that end together wake up a process once.
    """
    now = time.monotonic()
    return int(now + wait_s) - now if wait_s >= 1 else wait_s


def block_ms(wait_s: float) -> int:
    """Return BLOCK in milliseconds; Redis would wait without end for 0."""
    return max(1, round(round_wait(min(wait_s, _MAX_BLOCK_S)) * 1000))


def flat(fields: Mapping[bytes, bytes]) -> list[bytes]:
    return [part for pair in fields.items() for part in pair]


def pairs(flat: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@asynccontextmanager
async def open_clients(
    url: str, patience_s: float
) -> AsyncIterator[tuple[PatientRedis, PatientRedis, PatientRedis]]:
    """Open clients for writes, for reads, and for heartbeats, which never wait for others."""
    settings: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,
        "socket_connect_timeout": _PULSE_LIMIT_S,
        "legacy_responses": False,
        "driver_info": None,  # which would be two more commands that a user needs the right to
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    # Reads may block on the server, each on a connection of its own. All else takes turns: hundreds
    # of processes share a server, which has a limit of its own.
    pools = (
        BlockingConnectionPool.from_url(url, max_connections=3, timeout=None, **settings),
        BlockingConnectionPool.from_url(url, max_connections=64, timeout=None, **settings),
        BlockingConnectionPool.from_url(url, max_connections=1, timeout=None, **settings),
    )
    clients = [cast(PatientRedis, PatientRedis.from_pool(pool)) for pool in pools]
    writer, reader, pulse = clients
    for client in clients:
        client.patience_s = patience_s
        client.limit_s = _LIMIT_S
    pulse.limit_s = _PULSE_LIMIT_S
    try:
        yield writer, reader, pulse
    finally:
        for client in clients:
            await client.aclose()
