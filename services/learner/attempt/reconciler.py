"""The reconciler: what the learner knows and Redis has forgotten is written again.

Redis may come back without its last moments: after a power loss, or as a replica that lagged. Then
nobody works on what was asked for in that time, and the learner would wait for it for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from protocol.exchange import Exchange
from protocol.messages import ActiveJob, JobState, RolloutRequest, group_key
from protocol.recipe import Purpose

from services.learner.durable.publish import Publisher
from services.learner.supply.intake import Intake

T = TypeVar("T")
log = logging.getLogger(__name__)
_LOOK_EVERY_S = 3.0


class Asker(Protocol):
    """Who asks for the groups of one purpose, and can ask again."""

    @property
    def purpose(self) -> Purpose: ...

    @property
    def open_numbers(self) -> range: ...

    def request(self, number: int, /) -> RolloutRequest: ...


@dataclass
class Reconciler:
    """Compares Redis with what one attempt has written there."""

    exchange: Exchange
    active: ActiveJob
    askers: Sequence[Asker]
    intake: Intake
    publisher: Publisher

    async def beside(self, wait: Coroutine[Any, Any, T]) -> T:
        """The result of something that waits for Redis, which is looked after meanwhile."""
        waiting = asyncio.ensure_future(wait)
        looking = asyncio.ensure_future(self._reconcile_forever())
        try:
            await asyncio.wait({waiting, looking}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else looking.result()
        finally:
            waiting.cancel()
            looking.cancel()

    async def reconcile(self) -> None:
        """Write again what is missing: every one of these writes may be repeated without effect."""
        job_id, attempt = self.active.job_id, self.active.attempt
        active = await self.exchange.active()
        if active is None or (active.job_id, active.attempt) != (job_id, attempt):
            log.warning("the active job was lost")
            await self.exchange.update_job(job_id, attempt, state=JobState.RUNNING)
            await self.exchange.activate(self.active)
        newest = self.publisher.newest
        if newest is not None and await self.exchange.newest_policy(job_id) != newest:
            log.warning("a policy was lost", extra={"policy": newest.folder})
            await self.exchange.announce(newest)
        await self._ask_again()

    async def _ask_again(self) -> None:
        """Ask for what is neither under way nor here.

        It is under way from the asking until after it has arrived: looked up in this order, nothing
        is missed that is only on the move.
        """
        asked = [(asker, asker.open_numbers) for asker in self.askers]
        under_way = await self.exchange.under_way(self.active.job_id)
        for asker, numbers in asked:
            arrived = self.intake.have(asker.purpose, numbers)
            for number in numbers:
                key = group_key(asker.purpose, number)
                if number not in arrived and key not in under_way:
                    log.warning("a request was lost", extra={"key": key})
                    await self.exchange.ask(asker.request(number))

    async def _reconcile_forever(self) -> NoReturn:
        """Consumes nothing; produces what Redis lacks. Waits for: time. Unblocked by: time."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self.reconcile()
