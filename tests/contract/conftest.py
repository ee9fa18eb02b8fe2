"""A real Valkey server: one for the session, emptied before each test, and one of a test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from protocol.exchange import Exchange, connect
from redis import Redis

from tests.builders import a_job_record
from tests.contract.exchange_steps import an_active_job
from tests.contract.valkey_server import Server

if TYPE_CHECKING:  # which imports torch
    from tests.contract.attempts import Learner
    from tests.contract.rollout_line import Line

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
def client(server: Server) -> Iterator[Redis]:
    """One who may do everything on the session's server."""
    with server.client() as client:
        yield client


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


@dataclass
class Services:
    """An exchange of each service, as its own user of the server."""

    gateway: Exchange
    learner: Exchange
    rollout: Exchange
    grader: Exchange
    environment: Exchange


@pytest.fixture
async def services(server: Server) -> AsyncIterator[Services]:
    """Those of a job that the learner works on."""
    async with AsyncExitStack() as stack:
        services = Services(
            *[
                await stack.enter_async_context(
                    connect(server.url_of(field.name), me=f"{field.name}-1.1", patience_s=5)
                )
                for field in fields(Services)
            ]
        )
        await services.gateway.submit(a_job_record())
        await services.learner.renew_lease()
        await services.learner.begin_attempt("job")
        await services.learner.activate(an_active_job())
        yield services


@pytest.fixture
async def worker(server: Server) -> AsyncIterator[Exchange]:
    """An exchange under the name "worker"."""
    async with connect(server.url, me="worker", patience_s=5) as exchange:
        yield exchange


@pytest.fixture
def open_exchange(server: Server) -> OpenExchange:
    """Opens further exchanges on the same server, each under its own name."""
    return lambda me: connect(server.url, me=me, patience_s=5)


@pytest.fixture
def learner(exchange: Exchange, server: Server, tmp_path: Path) -> Learner:
    """A learner with a folder of this test's own, whose requests are answered."""
    from tests.contract.attempts import Learner

    return Learner(exchange, tmp_path, url=server.url)


@pytest.fixture
async def line(server: Server, tmp_path: Path) -> AsyncIterator[Line]:
    """A rollout, and a gateway that sends calls to it."""
    from tests.contract.rollout_line import open_line

    async with open_line(server, tmp_path) as line:
        yield line
