"""The reconciler: what the learner knows and Redis has forgotten is written again.

Redis may come back without its last moments: after a power loss, or as a replica that lagged. Then
no worker has what was asked for in that time, and the learner would wait for it for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from protocol.messages import JobState, group_key
from protocol.recipe import Purpose

from services.learner.attempt import Attempt
from services.learner.durable.publish import Publisher
from services.learner.job.control import first_to_end
from services.learner.supply.evaluator import Evaluator
from services.learner.supply.feeder import Feeder
from services.learner.supply.intake import Intake

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass
class Reconciler:
    attempt: Attempt
    askers: Mapping[Purpose, Feeder | Evaluator]
    intake: Intake
    publisher: Publisher
    look_every_s: float = 3.0

    async def reconciling_until(self, wait: Coroutine[Any, Any, T]) -> T:
        """The result of something that waits for Redis, with a look at Redis now and then."""
        return await first_to_end(wait, self._reconcile_forever())

    async def reconcile(self) -> None:
        """Write again what is missing: every one of these writes may be repeated without effect."""
        self.publisher.check()
        self.publisher.mend()
        exchange, ours = self.attempt.exchange, self.attempt.active
        active = await exchange.active()
        if active is None or (active.job_id, active.attempt) != (ours.job_id, ours.attempt):
            log.warning("the active job was lost")
            await self.attempt.update(state=JobState.RUNNING)
            await exchange.activate(ours)
        known = await exchange.newest_policy(ours.job_id)
        newest = self.publisher.newest
        if newest is not None and known != newest:
            log.warning("a policy was lost", extra={"policy": newest.folder})
            await exchange.announce(newest)
        await self._ask_again()

    async def _ask_again(self) -> None:
        """Ask for what is neither under way nor here.

        It is under way from the asking until after it has arrived: looked up in this order, nothing
        is missed that is only on the move.
        """
        asked = {purpose: asker.open_numbers for purpose, asker in self.askers.items()}
        under_way = await self.attempt.exchange.under_way(self.attempt.job_id)
        for purpose, numbers in asked.items():
            arrived = self.intake.have(purpose, numbers)
            for number in numbers:
                key = group_key(purpose, number)
                if number not in arrived and key not in under_way:
                    log.warning("a request was lost", extra={"key": key})
                    await self.attempt.exchange.ask(self.askers[purpose].request(number))

    async def _reconcile_forever(self) -> NoReturn:
        """Consumes nothing; produces what Redis lacks. Waits for: time. Unblocked by: time."""
        while True:
            await asyncio.sleep(self.look_every_s)
            await self.reconcile()
