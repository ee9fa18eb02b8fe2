"""The reconciler: it writes again what Redis has lost and the learner knows.

Redis may lose its last moments: after a power loss, or if a replica that lagged takes over. No
worker then has the requests of that time, and the learner would wait for them forever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from protocol.messages import JobState, group_key
from protocol.recipe import Purpose

from services.chassis.service import run_until_first_ends
from services.learner.attempt import Attempt
from services.learner.durable.publish import Publisher
from services.learner.supply.evaluator import Evaluator
from services.learner.supply.feeder import Feeder
from services.learner.supply.intake import Intake

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass
class Reconciler:
    attempt: Attempt
    requesters: Mapping[Purpose, Feeder | Evaluator]
    intake: Intake
    publisher: Publisher
    interval_s: float = 3.0

    async def reconcile_until(self, wait: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine that waits for Redis; reconcile meanwhile."""
        return await run_until_first_ends(wait, self._reconcile_forever())

    async def reconcile(self) -> None:
        """Write missing entries again: each of these writes may be repeated without effect."""
        self.publisher.check()
        self.publisher.repair()
        exchange = self.attempt.exchange
        local = self.attempt.active
        this_attempt = (local.job_id, local.attempt)
        active = await exchange.active()
        is_active = active is not None and (active.job_id, active.attempt) == this_attempt
        if not is_active or await exchange.billed_job() != local.job_id:
            log.warning("the active job was lost")
            await self.attempt.update(state=JobState.RUNNING)
            await exchange.activate(local)
        announced = await exchange.newest_policy(local.job_id)
        newest = self.publisher.newest
        if newest is not None and announced != newest:
            log.warning("a policy was lost", extra={"policy": newest.folder})
            await exchange.announce(newest)
        await self._request_lost_groups()

    async def _request_lost_groups(self) -> None:
        """Request the groups that are neither under way nor received.

        A group is under way from its request until after it is received. Looked up in this order,
        a group that moves meanwhile is not missed.
        """
        open_numbers = {
            purpose: requester.open_numbers for purpose, requester in self.requesters.items()
        }
        under_way = await self.attempt.exchange.pending_keys(self.attempt.job_id)
        for purpose, numbers in open_numbers.items():
            received = self.intake.have(purpose, numbers)
            for number in numbers:
                key = group_key(purpose, number)
                if number not in received and key not in under_way:
                    log.warning("a request was lost", extra={"key": key})
                    await self.attempt.exchange.ask(self.requesters[purpose].request(number))

    async def _reconcile_forever(self) -> NoReturn:
        """Consumes nothing; produces what Redis lacks. Waits for: time. Unblocked by: time."""
        while True:
            await asyncio.sleep(self.interval_s)
            await self.reconcile()
