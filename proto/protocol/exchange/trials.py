"""Trials of graders: a question, and an answer that is kept for as long as somebody may wait.

A grader takes a trial at most once, and nobody tries again: whoever asked is there, and may ask
again. So nothing here is a hand-off, and all of it expires.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import cast

from protocol import streams
from protocol.exchange.connection import Connection, block_ms
from protocol.messages import Trial, TrialResult

_KEPT_S = 300


class Trials(Connection):
    """Few at a time, from a gateway to whichever grader is free."""

    async def ask_trial(self, trial: Trial, most: int) -> bool:
        """Ask for a trial, unless ``most`` wait already; False if so."""
        args = [trial.model_dump_json(), most, _KEPT_S]
        return bool(await self.produce("ask_trial", [streams.TRIALS], args))

    async def withdraw_trial(self, trial: Trial) -> bool:
        """Take back what no grader has taken; False if one has."""
        removed = self.writer.lrem(streams.TRIALS, 1, trial.model_dump_json())
        return bool(await cast(Awaitable[int], removed))

    async def trial_result(self, trial_id: str, wait_s: float) -> TrialResult | None:
        """What became of a trial, if that is known within ``wait_s``."""
        text = await self._popped(streams.trial_key(trial_id), wait_s)
        return None if text is None else TrialResult.model_validate_json(text)

    async def take_trial(self, wait_s: float) -> Trial | None:
        """The oldest trial that was asked for, if there is one within ``wait_s``."""
        text = await self._popped(streams.TRIALS, wait_s)
        return None if text is None else Trial.model_validate_json(text)

    async def answer_trial(self, trial: Trial, result: TrialResult) -> None:
        """Tell whoever asked."""
        args = [result.model_dump_json(), _KEPT_S]
        await self.run("tell_trial", [streams.trial_key(trial.id)], args)

    async def _popped(self, key: str, wait_s: float) -> bytes | None:
        until = time.monotonic() + wait_s
        while (left_s := until - time.monotonic()) > 0:
            popped = self.reader.blpop([key], timeout=block_ms(left_s) / 1000)
            found = await cast(Awaitable[tuple[bytes, bytes] | None], popped)
            if found is not None:
                return found[1]
        return None
