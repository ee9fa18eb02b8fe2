"""A worker's line to the server, which can be cut, swallow what goes over it, or be slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.contract.valkey_server import Server


@dataclass
class Line:
    """Forwards the bytes of one worker's connections."""

    server: Server
    port: int = 0
    delay_s: float = 0.0
    _is_cut: bool = False
    _swallows: bool = False
    _loses_reply: bool = False
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"redis://:{self.server.password}@127.0.0.1:{self.port}/0"

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Connections break and no new one is made: a partition that both sides notice."""
        self._is_cut = True
        self._break_connections()
        try:
            yield
        finally:
            self._is_cut = False

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """What is sent arrives nowhere and nobody is told; the connections are lost in the end."""
        self._swallows = True
        try:
            yield
        finally:
            self._swallows = False
            self._break_connections()

    @contextmanager
    def slow(self, delay_s: float) -> Iterator[None]:
        """Every chunk takes so much longer, each way."""
        self.delay_s = delay_s
        try:
            yield
        finally:
            self.delay_s = 0.0

    def lose_next_reply(self) -> None:
        """The server will have done it, and the worker never hears of it."""
        self._loses_reply = True

    async def serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            replies, requests = await asyncio.open_connection("127.0.0.1", self.server.port)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, requests}
        self._writers |= pair
        try:
            await _first_to_end(
                self._forward(reader, requests), self._forward(replies, writer, are_replies=True)
            )
        finally:
            self._writers -= pair
            for end in pair:
                end.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, are_replies: bool = False
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if are_replies and self._loses_reply:
                    self._loses_reply = False
                    return
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if not self._swallows:
                    writer.write(data)

    def _break_connections(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def _first_to_end(*coroutines: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def line_to(server: Server) -> AsyncIterator[Line]:
    """A line that is open while the body runs."""
    line = Line(server)
    listening = await asyncio.start_server(line.serve_client, "127.0.0.1", 0)
    line.port = listening.sockets[0].getsockname()[1]
    try:
        yield line
    finally:
        listening.close()
        line._break_connections()
