"""A TCP proxy that is slow, is cut, swallows what goes over it, or loses a reply."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from tests.contract.valkey_server import Server


class LossyProxy:
    """Forwards bytes; after `lose_next_reply` the next reply is dropped with its connection."""

    def __init__(self, server: Server, bytes_per_s: float) -> None:
        self.server = server
        self.bytes_per_s = bytes_per_s
        self.port = 0
        self.lost = 0
        self._delay_s = 0.0
        self._is_cut = self._swallows = self._losing = False
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"redis://:{self.server.passwords['default']}@127.0.0.1:{self.port}/0"

    def lose_next_reply(self) -> None:
        """It will have been done, and the client never hears of it."""
        self._losing = True

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Connections break and no new one is made: a partition that both sides notice."""
        self._is_cut = True
        self.break_connections()
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
            self.break_connections()

    @contextmanager
    def slow(self, delay_s: float) -> Iterator[None]:
        """Every chunk takes so much longer, each way."""
        self._delay_s = delay_s
        try:
            yield
        finally:
            self._delay_s = 0.0

    def break_connections(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        pair = {writer}
        try:
            if self._is_cut:
                return
            replies, requests = await asyncio.open_connection("127.0.0.1", self.server.port)
            pair.add(requests)
            self._writers |= pair
            sending = asyncio.create_task(self._forward(reader, requests))
            answering = asyncio.create_task(self._forward(replies, writer, are_replies=True))
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            answering.cancel()
        except OSError:  # the server is down
            pass
        finally:
            self._writers -= pair
            for end in pair:
                end.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, are_replies: bool = False
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if are_replies and self._losing and not data.startswith(b"-NOSCRIPT"):
                    self._losing = False
                    self.lost += 1
                    return
                await asyncio.sleep(self._delay_s + len(data) / self.bytes_per_s)
                if not self._swallows:
                    writer.write(data)


@asynccontextmanager
async def lossy_proxy(server: Server, bytes_per_s: float = math.inf) -> AsyncIterator[LossyProxy]:
    """A proxy that is open while the body runs."""
    proxy = LossyProxy(server, bytes_per_s)
    listening = await asyncio.start_server(proxy.serve_client, "127.0.0.1", 0)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
        proxy.break_connections()
