"""Fixtures of this folder: tools without processes, a judge's server, Valkey."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.grader.tools import Tools
from tests.contract.valkey_server import Server
from tests.unit.grader.judge_server import ScriptedServer
from tests.unit.grader.pools import inline_tools


@pytest.fixture
def tools() -> Tools:
    return inline_tools()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server
