"""What is asked of an OpenEnv server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from protocol.messages import Task
from protocol.recipe import Environment

from services.environment import openenv
from services.environment.addresses import Addresses
from services.environment.door import Session
from services.environment.episodes import Broken

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def a_server(*pieces: bytes) -> AsyncIterator[str]:
    """Answers every request with these pieces; the last again and again."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.writelines(pieces)
        try:
            while len(pieces) > 1:
                writer.write(pieces[-1])
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_a_schema_without_an_end_is_refused() -> None:
    async with (
        a_server(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 2**16) as url,
        openenv.open_server(Environment(url=url), Addresses(("*",))) as play,
    ):
        game = play.__self__  # type: ignore[attr-defined]
        with pytest.raises(Broken, match="over 1 MiB"):
            await game._schema()


async def test_a_redirection_is_not_followed() -> None:
    reply = b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:9/ws\r\nContent-Length: 0\r\n\r\n"
    async with (
        a_server(reply) as url,
        openenv.open_server(Environment(url=url), Addresses(("*",))) as play,
    ):
        with pytest.raises(ValueError, match="cannot follow redirect"):
            await play(Task(id="t", prompt="x"), Session("http://gateway", "k"), 1)


def test_a_reply_that_nests_too_deep_is_text() -> None:
    reply = "[" * 100_000
    assert openenv._action(reply, {"required": ["text"]}) == {"text": reply}
