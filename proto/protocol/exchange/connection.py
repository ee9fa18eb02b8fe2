"""The connection to Redis or Valkey: patient clients, and scripts that run on the server.

This is the only file that imports redis.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from redis import exceptions as errors
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

T = TypeVar("T")
Rows = dict[bytes, list[tuple[bytes, dict[bytes, bytes]]]]  # of a read, by stream key

_MEMORY_FULL_PAUSE_S = 0.2
_LONGEST_BLOCK_S = 20.0
_READER_ANSWER_S = 30.0  # beyond the longest block: then the server has vanished without a word
_WRITER_ANSWER_S = 10.0

MemoryFull = errors.OutOfMemoryError


class _Script:
    def __init__(self, path: Path) -> None:
        self.text = path.read_text()
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()


_SCRIPTS = {path.stem: _Script(path) for path in Path(__file__).parents[1].glob("lua/*.lua")}


class Fenced(RuntimeError):
    """A newer attempt of the learner has taken over; this one must stop without another word."""


@dataclass
class Connection:
    """A connection for one life of one process.

    ``me`` names that life, and no later one: what an earlier life had claimed is not ours.
    """

    me: str
    writer: Redis
    reader: Redis
    backpressure_seconds: float = 0.0

    async def ping(self) -> None:
        """Raise unless the server answers."""
        await cast(Awaitable[bool], self.writer.ping())

    async def memory_limit(self) -> int | None:
        """The server's ``maxmemory`` in bytes, None if it has no limit."""
        return int((await self.writer.info("memory"))["maxmemory"]) or None

    async def run(self, name: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script of ``lua/``."""
        script = _SCRIPTS[name]
        try:
            try:
                return await self.writer.evalsha(script.sha, len(keys), *keys, *args)
            except errors.NoScriptError:
                # Loading it and calling it by its hash would fail if the server went in between.
                return await self.writer.eval(script.text, len(keys), *keys, *args)
        except errors.ResponseError as error:
            if str(error).startswith("FENCED"):
                raise Fenced(str(error)) from error
            raise

    async def produce(self, name: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script that adds work; it waits while the server's memory is full."""
        return await self._until_memory(lambda: self.run(name, keys, args))

    async def _until_memory(self, write: Callable[[], Awaitable[Any]]) -> Any:
        """Memory full is back-pressure: whoever adds work waits while others drain it."""
        while True:
            try:
                return await write()
            except errors.OutOfMemoryError:
                self.backpressure_seconds += _MEMORY_FULL_PAUSE_S
                await asyncio.sleep(_MEMORY_FULL_PAUSE_S)


class _PatientRedis(Redis):
    """A client that repeats a command while the server is away, but not for ever.

    redis-py's own retries are switched off: they multiply (those of connecting within those of the
    command) and would wait two minutes for a wrong password to become right. So is its socket
    timeout: it writes within `asyncio.wait_for`, which in Python 3.11 can swallow a cancellation.
    """

    patience_s = 0.0
    answer_s = 0.0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command; connection errors surface after ``patience_s`` of them."""
        deadline, pause_s = None, 0.02
        while True:
            try:
                return await self._execute_once(*args, **options)
            except (errors.AuthenticationError, errors.AuthorizationError):
                raise
            except (errors.ConnectionError, errors.TimeoutError):
                deadline = deadline or time.monotonic() + self.patience_s
                if time.monotonic() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    async def _execute_once(self, *args: Any, **options: Any) -> Any:
        try:
            async with asyncio.timeout(self.answer_s):
                return await super().execute_command(*args, **options)
        except TimeoutError as error:
            text = f"Redis did not answer {args[0]} within {self.answer_s:g} s"
            raise errors.TimeoutError(text) from error


async def if_job_ended(fallback: T, command: Awaitable[T]) -> T:
    """What a command on a job's streams returns, or ``fallback`` if the job took them with it."""
    try:
        return await command
    except errors.ResponseError as error:
        # Redis 7.0 says UNBLOCKED to who waits on a stream that goes, later ones say NOGROUP.
        if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
            raise
        return fallback


def block_ms(wait_s: float) -> int:
    """BLOCK in milliseconds; 0 would mean for ever."""
    return max(1, round(min(wait_s, _LONGEST_BLOCK_S) * 1000))


def flat(fields: Mapping[bytes, bytes]) -> list[bytes]:
    """Names and values in turn, as commands take them."""
    return [part for pair in fields.items() for part in pair]


@asynccontextmanager
async def open_clients(url: str, patience_s: float) -> AsyncIterator[tuple[Redis, Redis]]:
    """A client that writes and one that reads; both are patient for so long."""
    settings: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,
        "legacy_responses": False,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    # Reads block on the server, each on a connection of its own. Writes take turns on a few.
    reading = ConnectionPool.from_url(url, max_connections=10_000, **settings)
    writing = BlockingConnectionPool.from_url(url, max_connections=16, timeout=None, **settings)
    reader = cast(_PatientRedis, _PatientRedis.from_pool(reading))
    writer = cast(_PatientRedis, _PatientRedis.from_pool(writing))
    reader.patience_s = writer.patience_s = patience_s
    reader.answer_s, writer.answer_s = _READER_ANSWER_S, _WRITER_ANSWER_S
    try:
        yield writer, reader
    finally:
        await writer.aclose()
        await reader.aclose()
