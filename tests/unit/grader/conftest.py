"""What the tests of this folder share: a warm pool, a judge's server, a Valkey server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.grader.pool import Pool
from services.grader.tools import Tools
from services.grader.verifiers import equation_steps, math_answer
from tests.contract.valkey_server import Server
from tests.unit.grader.judge_server import ScriptedServer


@pytest.fixture(scope="session")
async def tools(anyio_backend: str) -> AsyncIterator[Tools]:
    """Real math-verify in real workers; a hang costs the tests 0.6 s instead of 5."""
    async with Pool(2, warm_ups=[math_answer.WARM_UP, equation_steps.WARM_UP]) as pool:
        yield Tools(pool, compare_deadline_s=0.6)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server
