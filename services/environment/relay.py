"""The way out of a jail: to the gateway's sessions, and by CONNECT to what is allowed."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from services.environment.addresses import Addresses, AddressRefused

_HEAD_S = 30.0
_PARTING_S = 60.0  # for an answer to one who has said all
_MAX_CONNECTIONS = 1024
_PIECE_BYTES = 1 << 16


class Relay:
    """Accepts what a jail's processes connect to, and passes bytes on."""

    def __init__(self, listener: socket.socket, gateway_url: str, addresses: Addresses) -> None:
        self.address = "http://{}:{}".format(*listener.getsockname())
        self._listener = listener
        self._gateway = urlsplit(gateway_url)
        self._addresses = addresses
        self._server: asyncio.Server | None = None
        self._tasks = set[asyncio.Task[None]]()

    def url_inside(self, url: str) -> str:
        """What a URL of the gateway is for the jail's processes."""
        return f"{self.address}{urlsplit(url).path}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._listener)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) <= _MAX_CONNECTIONS:
                await self._pass_on(reader, writer)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass  # either side has gone, or this is no HTTP
        except asyncio.CancelledError:
            pass  # the relay closes; asyncio would log it
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        try:
            source, target = await self._connect(head)
        except OSError as error:
            status = b"403 Forbidden" if isinstance(error, AddressRefused) else b"502 Bad Gateway"
            text = f"{error}\n".encode()
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(text)))
            writer.write(text)
            return
        if head.startswith(b"CONNECT "):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        ways = {
            asyncio.create_task(_pump(reader, target)),
            asyncio.create_task(_pump(source, writer)),
        }
        try:
            _, remaining = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(remaining or ways, timeout=_PARTING_S)
        finally:
            for way in ways:
                way.cancel()
            target.transport.abort()

    async def _connect(self, head: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the address that a request names; or to the gateway, which hears it."""
        method, target, *_ = head.split(b" ")
        if method == b"CONNECT":
            place = urlsplit(f"//{target.decode()}")
            peer = await self._addresses.connect(place.hostname or "", place.port or 443)
            return await asyncio.open_connection(sock=peer)
        gateway, is_safe = self._gateway, self._gateway.scheme == "https"
        path = f"{gateway.path}/rollout/".encode()
        if method != b"POST" or not target.startswith(path):
            raise AddressRefused("a jail may only POST to its sessions, and CONNECT")
        port = gateway.port or (443 if is_safe else 80)
        way = await asyncio.open_connection(gateway.hostname, port, ssl=is_safe or None)
        line, _, headers = re.sub(rb"(?mi)^host:.*\n", b"", head).partition(b"\n")
        # The gateway closes it behind this request, so none passes that is not looked at.
        own = f"\nHost: {gateway.netloc}\r\nConnection: close\r\n".encode()
        way[1].write(line + own + headers)
        return way


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
