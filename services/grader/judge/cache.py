"""The cache of a judge's verdicts, shared by all graders and bounded by bytes."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter
from protocol.exchange import Exchange
from protocol.exchange.connection import MemoryFull
from protocol.streams import VERDICT_BYTES, VERDICT_USES, VERDICTS

log = logging.getLogger(__name__)

CACHE_TROUBLE = Counter(
    "weir_judge_cache_trouble_total", "Verdicts that could not be recalled or remembered"
)
_TIMEOUT_S = 5.0


@dataclass
class VerdictCache:
    """Saves calls and is no part of a grade: if the exchange is in trouble, the judge is asked."""

    exchange: Exchange
    max_bytes: int

    async def recall(self, digest: str) -> str | None:
        """What was remembered under the digest of a question to a judge, if it still is."""
        stored = await self._run("recall_verdict", [VERDICTS, VERDICT_USES], digest, time.time())
        return None if stored is None else stored.decode()

    async def remember(self, digest: str, verdict: str) -> None:
        """Remember a verdict, in the place of those used longest ago if all exceed ``max_bytes``.

        Each counts with its bytes and 256 for its bookkeeping. When the server's memory is full
        nothing is remembered.
        """
        keys = [VERDICTS, VERDICT_USES, VERDICT_BYTES]
        await self._run("remember_verdict", keys, digest, verdict, time.time(), self.max_bytes)

    async def _run(self, script: str, keys: list[str], *args: str | float) -> Any:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self.exchange.run(script, keys, args)
        except MemoryFull:
            return None
        except Exception as error:
            CACHE_TROUBLE.inc()
            log.warning("the cache of verdicts is in trouble", extra={"error": repr(error)})
            return None
