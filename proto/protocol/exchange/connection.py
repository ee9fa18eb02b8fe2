"""The connection to Redis or Valkey: patient clients, and scripts that run on the server.

This is the only file that imports redis.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from redis import exceptions as errors
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.connection import Connection as RedisConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

T = TypeVar("T")
Rows = dict[bytes, list[tuple[bytes, dict[bytes, bytes]]]]  # of a read, by stream key

_MEMORY_FULL_PAUSE_S = 0.2
_LONGEST_BLOCK_S = 20.0
_READER_SILENCE_S = 30.0  # beyond the longest block: then the server has vanished without a word
_WRITER_SILENCE_S = 10.0
_PIECE = 2**18

MemoryFull = errors.OutOfMemoryError
Disconnected = (errors.ConnectionError, errors.TimeoutError)  # for longer than the patience
Refused = errors.ResponseError


class _Script:
    def __init__(self, path: Path) -> None:
        self.text = path.read_text()
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()


_SCRIPTS = {path.stem: _Script(path) for path in Path(__file__).parents[1].glob("lua/*.lua")}


class Fenced(RuntimeError):
    """A newer attempt of the learner has taken over; this one must stop without another word."""


class Memory(NamedTuple):
    """Bytes that the server uses, its ``maxmemory``, None if it has no limit, and its machine's."""

    used: int
    limit: int | None
    machine: int | None = None  # not every server tells


@dataclass
class Connection:
    """A connection for one life of one process.

    ``me`` names that life, and no later one: what an earlier life had claimed is not ours.
    """

    me: str
    writer: PatientRedis
    reader: PatientRedis
    pulse: PatientRedis  # for heartbeats alone
    backpressure_seconds: float = 0.0
    waiting_for_memory: int = 0  # writes

    def hurry(self, patience_s: float) -> None:
        """From now on wait only so long for a server that is away."""
        for client in (self.writer, self.reader, self.pulse):
            client.patience_s = patience_s

    async def ping(self) -> None:
        """Raise unless the server answers."""
        await cast(Awaitable[bool], self.writer.ping())

    async def memory(self) -> Memory:
        """How much memory the server uses."""
        told = await self.writer.info("memory")
        machine = told.get("total_system_memory")
        limit = int(told["maxmemory"]) or None
        return Memory(int(told["used_memory"]), limit, machine and int(machine))

    async def run(
        self,
        name: str,
        keys: Sequence[Any],
        args: Sequence[Any],
        client: PatientRedis | None = None,
    ) -> Any:
        """Run a script of ``lua/``."""
        script, client = _SCRIPTS[name], client or self.writer
        try:
            try:
                return await client.evalsha(script.sha, len(keys), *keys, *args)
            except errors.NoScriptError:
                # Loading it and calling it by its hash would fail if the server went in between.
                return await client.eval(script.text, len(keys), *keys, *args)
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
                self.waiting_for_memory += 1
                try:
                    await asyncio.sleep(_MEMORY_FULL_PAUSE_S)
                finally:
                    self.waiting_for_memory -= 1


class PatientRedis(Redis):
    """A client that repeats a command while the server is away, but not for ever.

    redis-py's own retries are switched off: they multiply (those of connecting within those of the
    command) and would wait two minutes for a wrong password to become right.
    """

    patience_s = 0.0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command; connection errors surface after ``patience_s`` of them."""
        began, pause_s = None, 0.02
        while True:
            try:
                return await super().execute_command(*args, **options)
            except (errors.AuthenticationError, errors.AuthorizationError):
                raise
            except Disconnected:
                began = began or time.monotonic()
                if time.monotonic() + pause_s > began + self.patience_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)


class _WatchedConnection(RedisConnection):
    """A connection whose time limit is for the next bytes, not for the whole of an answer.

    So a server that vanished without a word is noticed, and a large group may take its time.
    redis-py's own limit is for the whole, and writes within `asyncio.wait_for`, which in Python
    3.11 can swallow a cancellation.
    """

    _limit: asyncio.Timeout | None = None

    def __init__(self, *, silence_s: float, **settings: Any) -> None:
        super().__init__(socket_connect_timeout=silence_s, **settings)
        self.silence_s = silence_s

    async def _connect(self) -> None:
        await super()._connect()
        assert self._reader is not None
        assert self._writer is not None
        feed = self._reader.feed_data

        def feed_data(data: Any) -> None:
            if self._limit is not None:
                self._limit.reschedule(asyncio.get_running_loop().time() + self.silence_s)
            feed(data)

        self._reader.feed_data = feed_data
        self._writer = cast(asyncio.StreamWriter, _PieceByPiece(self._writer, self.silence_s))

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Read one answer.

        Raises:
            TimeoutError: redis-py's, if nothing of it came for ``silence_s``.
        """
        try:
            async with asyncio.timeout(self.silence_s) as self._limit:
                return await super().read_response(*args, **options)
        except TimeoutError as error:
            raise errors.TimeoutError(f"Redis was silent for {self.silence_s:g} s") from error
        finally:
            self._limit = None


class _PieceByPiece:
    """A writer that waits for each piece to be taken, with a time limit of its own."""

    def __init__(self, writer: asyncio.StreamWriter, silence_s: float) -> None:
        self._writer = writer
        self._silence_s = silence_s
        self._pieces: list[memoryview] = []

    def writelines(self, data: Iterable[bytes]) -> None:
        for part in map(memoryview, data):
            self._pieces += [part[at : at + _PIECE] for at in range(0, len(part), _PIECE)]

    async def drain(self) -> None:
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            self._writer.write(piece)
            async with asyncio.timeout(self._silence_s):
                await self._writer.drain()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


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
async def open_clients(
    url: str, patience_s: float
) -> AsyncIterator[tuple[PatientRedis, PatientRedis, PatientRedis]]:
    """A client that writes, one that reads, and one for heartbeats, which wait for no other."""
    settings: dict[str, Any] = {
        "connection_class": _WatchedConnection,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,
        "legacy_responses": False,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    # Reads block on the server, each on a connection of its own. Writes take turns on a few.
    pools = (
        BlockingConnectionPool.from_url(
            url, max_connections=16, timeout=None, silence_s=_WRITER_SILENCE_S, **settings
        ),
        ConnectionPool.from_url(
            url, max_connections=10_000, silence_s=_READER_SILENCE_S, **settings
        ),
        BlockingConnectionPool.from_url(
            url, max_connections=1, timeout=None, silence_s=_WRITER_SILENCE_S, **settings
        ),
    )
    clients = [cast(PatientRedis, PatientRedis.from_pool(pool)) for pool in pools]
    for client in clients:
        client.patience_s = patience_s
    writer, reader, pulse = clients
    try:
        yield writer, reader, pulse
    finally:
        for client in clients:
            await client.aclose()
