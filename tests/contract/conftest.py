"""A real Valkey server: one for the session, emptied before each test, and one of a test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from protocol.exchange import Exchange, connect

from tests.contract.valkey_server import Server

if TYPE_CHECKING:  # which imports torch
    from tests.contract.attempts import Learner

OpenExchange = Callable[[str], AbstractAsyncContextManager[Exchange]]


@pytest.fixture(scope="session")
def session_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def server(session_server: Server) -> Server:
    """The session's server, empty."""
    session_server.flush()
    return session_server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own, which it may kill and restart."""
    with Server(tmp_path) as server:
        yield server


@pytest.fixture
async def exchange(server: Server) -> AsyncIterator[Exchange]:
    """An exchange on the empty server, under the name "learner-1"."""
    async with connect(server.url, me="learner-1", patience_s=5) as exchange:
        yield exchange


@pytest.fixture
async def exchanges(server: Server) -> AsyncIterator[dict[str, Exchange]]:
    """An exchange of each service, as its own user of the server."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(
                connect(server.url_of(name), me=f"{name}-1.1", patience_s=5)
            )
            for name in ("gateway", "learner", "rollout", "grader", "environment")
        }


@pytest.fixture
def open_exchange(server: Server) -> OpenExchange:
    """Opens further exchanges on the same server, each under its own name."""
    return lambda me: connect(server.url, me=me, patience_s=5)


@pytest.fixture
def learner(exchange: Exchange, tmp_path: Path) -> Learner:
    """A learner with a folder of this test's own."""
    from tests.contract.attempts import Learner

    return Learner(exchange, tmp_path)


@pytest.fixture
async def answers(server: Server) -> AsyncIterator[None]:
    """Every request of the active job is answered."""
    from tests.contract.attempts import answering

    async with answering(server.url):
        yield
