"""Verdicts of a judge, remembered for all graders."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import cast

from protocol import streams
from protocol.exchange.connection import Connection, MemoryFull


class Verdicts(Connection):
    """A cache, bounded by bytes."""

    async def recall_verdict(self, digest: str) -> str | None:
        """What was remembered under the digest of a question to a judge, if it still is."""
        args = [digest, time.time()]
        stored = await self.run("recall_verdict", [streams.VERDICTS, streams.VERDICT_USES], args)
        return None if stored is None else cast(bytes, stored).decode()

    async def remember_verdict(self, digest: str, verdict: str, max_bytes: int) -> None:
        """Remember a verdict, in the place of those used longest ago if all exceed ``max_bytes``.

        Each counts with its bytes and 256 for its bookkeeping. When the server's memory is full
        nothing is remembered: that is no reason to wait.
        """
        keys = [streams.VERDICTS, streams.VERDICT_USES, streams.VERDICT_BYTES]
        with suppress(MemoryFull):
            await self.run("remember_verdict", keys, [digest, verdict, time.time(), max_bytes])
