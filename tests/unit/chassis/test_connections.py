"""What a stranger's connection may cost: a real server in this process, with short limits."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from services.chassis import connections
from services.chassis.connections import MAX_HEAD_BYTES
from services.chassis.deployment import Deployment
from services.chassis.service import _serving

pytestmark = [pytest.mark.anyio]
PATIENCE_S = 0.3
HERE = "127.0.0.1"
LARGE = 2**25  # bytes, more than the sockets of both sides hold
WS = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"


@pytest.fixture
def held() -> asyncio.Event:
    """Until it is set, /held is not answered."""
    return asyncio.Event()


@pytest.fixture
async def serving(
    monkeypatch: pytest.MonkeyPatch, held: asyncio.Event
) -> AsyncIterator[uvicorn.Server]:
    async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
        """/large is large; /early reads no body; the rest does."""
        if scope["path"] == "/large":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(LARGE)})
            return
        if scope["path"] == "/held":
            await held.wait()
        digest, more = hashlib.sha256(), scope["path"] != "/early"
        while more:
            message = await receive()
            digest.update(message["body"])
            more = message["more_body"]
        body = digest.hexdigest().encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    monkeypatch.setattr(connections, "_REQUEST_S", PATIENCE_S)
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        number = probe.getsockname()[1]
    environment = {"WEIR_REDIS_URL": "redis://x", "WEIR_DATA_DIR": "/x", "WEIR_PORT": str(number)}
    async with _serving(answer, Deployment.from_environment(environment), number) as server:
        while not server.started:
            await asyncio.sleep(0.01)
        yield server


@pytest.fixture
def port(serving: uvicorn.Server) -> int:
    return serving.config.port


async def opened(
    port: int, text: str, address: str = HERE
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(HERE, port, local_addr=(address, 0))
    writer.write(text.encode())
    return reader, writer


async def told(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server closes the connection."""
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("begun", ["", "GET / HTTP/1.1\r\nHost: x\r\nX-A: "])
async def test_headers_that_do_not_come_whole_are_given_up(port: int, begun: str) -> None:
    reader, _ = await opened(port, begun)
    assert await told(reader) == b""


@pytest.mark.parametrize(
    "begun",
    ["GET / HTTP/1.1\r\n", "POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"],
)
async def test_headers_and_what_nobody_reads_may_not_trickle_either(port: int, begun: str) -> None:
    reader, writer = await opened(port, begun)

    async def trickle() -> None:
        while True:
            writer.write(b"X-A: b\r\n")
            await asyncio.sleep(0.05)

    trickling = asyncio.create_task(trickle())
    await told(reader)
    trickling.cancel()


async def test_an_answer_may_take_longer_than_headers_and_the_next_request_has_time(
    port: int, held: asyncio.Event
) -> None:
    reader, writer = await opened(port, "GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
    for _ in range(2):
        await asyncio.sleep(2 * PATIENCE_S)
        held.set()
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await reader.readexactly(64)
        held.clear()
        writer.write(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
    held.set()


async def test_a_body_comes_whole_however_large_the_pieces_are(port: int) -> None:
    body = bytes(range(256)) * 8192
    reader, writer = await opened(
        port,
        f"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n",
    )
    writer.write(body)
    assert (await told(reader)).endswith(hashlib.sha256(body).hexdigest().encode())


async def test_an_answer_that_nobody_takes_is_given_up_and_a_slow_reader_gets_all_of_it(
    port: int, serving: uvicorn.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_TAKING_S", 1.0)
    head = "HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    idle, idle_writer = await opened(port, f"GET /large {head}")
    slow, slow_writer = await opened(port, f"GET /large {head}")
    taken = 0
    while piece := await slow.read(LARGE // 64):
        taken += len(piece)
        await asyncio.sleep(0.02)  # longer in all than one may take nothing
    assert taken > LARGE
    async with asyncio.timeout(60):
        while serving.server_state.connections:
            await asyncio.sleep(0.01)
    assert len(await told(idle)) < LARGE
    idle_writer.close()
    slow_writer.close()


async def test_headers_that_are_too_large_are_refused_with_the_limit(port: int) -> None:
    head = "GET / HTTP/1.1\r\nHost: x\r\n" + f"X-A: {'a' * 1000}\r\n" * (2 * MAX_HEAD_BYTES // 1000)
    reader, _ = await opened(port, head)
    answer = await told(reader)
    assert answer.startswith(b"HTTP/1.1 400")
    assert f"larger than {MAX_HEAD_BYTES} bytes".encode() in answer


async def test_a_websocket_is_answered_as_plain_http(port: int) -> None:
    reader, _ = await opened(port, f"GET / HTTP/1.1\r\nHost: x\r\n{WS}\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


HEAD = "HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def accepted(serving: uvicorn.Server, count: int) -> None:
    async with asyncio.timeout(60):
        while len(serving.server_state.connections) < count:
            await asyncio.sleep(0.01)


async def test_one_connection_too_many_is_told_so_and_the_others_are_served(
    port: int, serving: uvicorn.Server, held: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    reader, _ = await opened(port, f"GET /held {HEAD}")
    await accepted(serving, 1)
    refused, sending = await opened(port, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    answer = await told(refused)
    sending.write(b"123456789")
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"Retry-After" in answer
    held.set()
    assert (await told(reader)).startswith(b"HTTP/1.1 200")
    reader, _ = await opened(port, f"GET / {HEAD}")
    assert (await told(reader)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("lingering", [0, 50])
async def test_refused_connections_of_one_address_take_no_room_of_others(
    port: int,
    serving: uvicorn.Server,
    held: asyncio.Event,
    monkeypatch: pytest.MonkeyPatch,
    lingering: int,
) -> None:
    monkeypatch.setattr(connections, "MAX_OF_ADDRESS", 1)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "_MOST_LINGERING", lingering)
    first, kept = await opened(port, f"GET /held {HEAD}", "127.0.0.2")
    await accepted(serving, 1)
    refused = [await opened(port, "", "127.0.0.2") for _ in range(5)]
    for reader, _ in refused:
        assert (await told(reader)).startswith(b"HTTP/1.1 503")
    other, _ = await opened(port, f"GET / {HEAD}", "127.0.0.3")
    assert (await told(other)).startswith(b"HTTP/1.1 200")
    held.set()
    assert (await told(first)).startswith(b"HTTP/1.1 200")
    kept.close()


async def test_this_machine_may_have_more_connections_than_another_address(
    port: int, serving: uvicorn.Server, held: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_OF_ADDRESS", 1)
    both = [await opened(port, f"GET /held {HEAD}") for _ in range(2)]
    await accepted(serving, 2)
    held.set()
    for reader, _ in both:
        assert (await told(reader)).startswith(b"HTTP/1.1 200")
