"""A TCP proxy that is slow, or swallows a reply: it is done, and the client never hears of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.contract.valkey_server import Server


class LossyProxy:
    """Forwards bytes; after `lose_next_reply` the next reply is dropped with its connection."""

    def __init__(self, server: Server, bytes_per_s: float) -> None:
        self.server = server
        self.bytes_per_s = bytes_per_s
        self.port = 0
        self.lost = 0
        self._losing = False

    @property
    def url(self) -> str:
        return f"redis://:{self.server.password}@127.0.0.1:{self.port}/0"

    def lose_next_reply(self) -> None:
        self._losing = True

    async def serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        upstream, requests = await asyncio.open_connection("127.0.0.1", self.server.port)
        sending = asyncio.create_task(self._forward(reader, requests))
        with suppress(ConnectionError):
            while reply := await upstream.read(65536):
                if self._losing and not reply.startswith(b"-NOSCRIPT"):
                    self._losing = False
                    self.lost += 1
                    break
                await self._pass_on(reply, writer)
        sending.cancel()
        writer.close()
        requests.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.read(65536):
            await self._pass_on(request, writer)

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(len(data) / self.bytes_per_s)
        writer.write(data)


@asynccontextmanager
async def lossy_proxy(server: Server, bytes_per_s: float = math.inf) -> AsyncIterator[LossyProxy]:
    proxy = LossyProxy(server, bytes_per_s)
    listening = await asyncio.start_server(proxy.serve_client, "127.0.0.1", 0)
    proxy.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield proxy
