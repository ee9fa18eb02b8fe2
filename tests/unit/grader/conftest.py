"""A warm pool for the tests of this folder, and what they ask of processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from services.grader.pool import Pool
from services.grader.tools import Tools
from services.grader.verifiers import equation_steps, math_answer
from tests.unit.grader.judge_server import ScriptedServer


@pytest.fixture(scope="session")
async def tools(anyio_backend: str) -> AsyncIterator[Tools]:
    """Real algebra in real workers; a hang costs the tests 0.6 s instead of 5."""
    async with Pool(2, warm_ups=[math_answer.WARM_UP, equation_steps.WARM_UP]) as pool:
        yield Tools(pool, compare_deadline_s=0.6)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server
