"""The lease on the learner's role: of all learners that were started, one takes up jobs.

Its holder counts its heartbeats. Another takes it over when it has itself watched the count stand
still for long enough, so no two clocks are ever compared.
"""

from __future__ import annotations

import asyncio
import time

from protocol.exchange import Fenced, Lease, seat_of
from protocol.exchange.roster import Roster

from services.chassis.service import Service


class Role:
    """This process's hold on the learner's role."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._roster = Roster(service.deployment.claim_idle_s, service.deployment.heartbeat_s)

    async def acquire(self) -> bool:
        """Wait until this learner holds the lease; False if it is told to stop before.

        Unblocked by: the end of the learner that holds it, or time without a heartbeat of it.
        """
        me, instead_of = self.service.exchange.me, None
        while not self.service.stopping.is_set():
            lease = await self.service.exchange.hold_lease(instead_of)
            if lease.holder == me:
                return True
            instead_of = lease if self._is_gone(lease) else None
            if instead_of is None:
                why = f"waits for {lease.holder}, the learner that takes up jobs here, to end"
                self.service.readiness.set(False, why)
                await self.service.pause(self.service.deployment.heartbeat_s)
        return False

    async def hold_forever(self) -> None:
        """Consumes nothing; produces heartbeats. Waits for: time. Unblocked by: time.

        Raises:
            Fenced: if another learner has taken the lease.
        """
        while True:
            await asyncio.sleep(self.service.deployment.heartbeat_s)
            lease = await self.service.exchange.hold_lease()
            if lease.holder != self.service.exchange.me:
                raise Fenced(f"the learner {lease.holder} has taken over")

    async def release(self) -> None:
        """Let another learner have it at once."""
        await self.service.exchange.release_lease()

    def _is_gone(self, lease: Lease) -> bool:
        """Whether its holder is an earlier life of this very process, or silent for too long."""
        me = self.service.exchange.me
        self._roster.look({lease.holder: lease.beats}, time.monotonic())
        return seat_of(lease.holder) == seat_of(me) or any(self._roster.dead(me))
