"""The limit of an engine's start, in which vLLM may hang without an error."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.rollout import engine_errors
from services.rollout.samples import EngineError


@asynccontextmanager
async def limit_start(limit_s: float) -> AsyncIterator[None]:
    """Kill the processes that the body has started if it takes longer than the limit.

    Raises:
        EngineError: with the last line of vLLM's log.
    """
    bystanders = multiprocessing.active_children()
    deadline = asyncio.timeout(limit_s)
    try:
        async with deadline:
            yield
    except TimeoutError as error:
        if not deadline.expired():
            raise
        line = engine_errors.read_line() or "none"
        for process in {*multiprocessing.active_children()}.difference(bystanders):
            process.kill()
        raise EngineError(
            f"the engine did not start within {limit_s:g} s (WEIR_ROLLOUT_START_TIMEOUT_S); the "
            f"last line of vLLM's log: {line}"
        ) from error
