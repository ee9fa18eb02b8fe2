"""The network of a jail: POST to the gateway's sessions, and CONNECT to allowed addresses."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from services.environment.addresses import Addresses, AddressRefused

_HEAD_TIMEOUT_S = 30.0
# After one side has ended, the other side gets this long to end.
_CLOSE_TIMEOUT_S = 60.0
_MAX_CONNECTIONS = 1024
_CHUNK_BYTES = 1 << 16


class Relay:
    """Accept connections of a jail's processes, and forward their bytes."""

    def __init__(self, listener: socket.socket, gateway_url: str, addresses: Addresses) -> None:
        self.address = "http://{}:{}".format(*listener.getsockname())
        self._listener = listener
        self._gateway = urlsplit(gateway_url)
        self._addresses = addresses
        self._server: asyncio.Server | None = None
        self._tasks = set[asyncio.Task[None]]()

    def url_inside(self, url: str) -> str:
        """Translate a URL of the gateway for the jail's processes."""
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
        # Suppressed: either side has gone, this is no HTTP, or `close` cancels (asyncio logs it).
        ignored = OSError, EOFError, ValueError, asyncio.LimitOverrunError, asyncio.CancelledError
        try:
            with suppress(*ignored):
                if len(self._tasks) <= _MAX_CONNECTIONS:
                    await self._forward(reader, writer)
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_TIMEOUT_S):
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
        outgoing = asyncio.create_task(_copy(reader, target))
        incoming = asyncio.create_task(_copy(source, writer))
        copies = {outgoing, incoming}
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(copies, timeout=_CLOSE_TIMEOUT_S)
        finally:
            outgoing.cancel()
            incoming.cancel()
            target.transport.abort()

    async def _connect(self, head: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the address of a CONNECT request, or send a POST's head to the gateway."""
        method, target, *_ = head.split(b" ")
        if method == b"CONNECT":
            address = urlsplit(f"//{target.decode()}")
            peer = await self._addresses.connect(address.hostname or "", address.port or 443)
            return await asyncio.open_connection(sock=peer)
        gateway = self._gateway
        path = f"{gateway.path}/rollout/".encode()
        if method != b"POST" or not target.startswith(path):
            raise AddressRefused("a jail may only POST to its sessions, and CONNECT")
        is_https = gateway.scheme == "https"
        port = gateway.port or (443 if is_https else 80)
        reader, writer = await asyncio.open_connection(gateway.hostname, port, ssl=is_https or None)
        line, _, headers = re.sub(rb"(?mi)^host:.*\n", b"", head).partition(b"\n")
        # The gateway closes the connection after this request, so no unchecked request follows.
        own_headers = f"\nHost: {gateway.netloc}\r\nConnection: close\r\n".encode()
        writer.write(line + own_headers + headers)
        return reader, writer


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
