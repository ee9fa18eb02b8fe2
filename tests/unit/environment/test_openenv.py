"""Answers of an OpenEnv server that are refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from protocol.messages import Task
from protocol.recipe import Environment

from services.environment import openenv
from services.environment.addresses import Addresses
from services.environment.episodes import EpisodeBroken, Play
from services.environment.gateway_client import Session

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def open_game(*chunks: bytes) -> AsyncIterator[Play]:
    """A game whose server answers every request with these chunks, and repeats the last of many."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.writelines(chunks)
        with suppress(ConnectionError):
            while len(chunks) > 1:
                writer.write(chunks[-1])
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = Environment(url=f"http://127.0.0.1:{port}")
    async with openenv.open_server(settings, Addresses(("*",))) as play:
        yield play
    server.close()


async def test_a_schema_without_an_end_is_refused() -> None:
    async with open_game(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 2**16) as play:
        server = play.__self__  # type: ignore[attr-defined]
        with pytest.raises(EpisodeBroken, match="over 1 MiB"):
            await server._read_schema()


async def test_a_redirection_is_not_followed() -> None:
    reply = b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:9/ws\r\nContent-Length: 0\r\n\r\n"
    async with open_game(reply) as play:
        with pytest.raises(ValueError, match="cannot follow redirect"):
            await play(Task(id="t", prompt="x"), Session("http://gateway", "k"), 1)


def test_a_reply_that_nests_too_deep_is_text() -> None:
    reply = "[" * 100_000
    assert openenv._parse_action(reply, {"required": ["text"]}) == {"text": reply}
