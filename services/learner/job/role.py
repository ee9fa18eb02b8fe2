"""A learner process: it makes one attempt at one job of the queue.

It ends when the job ends or pauses, when it is stopped, or when something breaks. Its supervisor
then starts the next process, which continues the same job from the last checkpoint, or takes the
next job of the queue that can run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from protocol.exchange import (
    Delivery,
    Exchange,
    Fenced,
    Lease,
    UnreadableRecord,
    WorkerRegistry,
    replica_name,
)
from protocol.exchange.connection import Refused
from protocol.messages import Doing, JobRef, JobState

from services.chassis.metrics import DEVICES, PHASES
from services.chassis.renderer import PromptRenderer
from services.chassis.service import Service, run_until_first_ends
from services.learner.durable.publish import sweep
from services.learner.job.run import run
from services.learner.training.ranks import Team

log = logging.getLogger(__name__)
_QUEUE_WAIT_S = 1.0  # a stop is seen this much later at most
_PHASES = (
    "wait_for_gpu",
    "idle",
    "wait_for_groups",
    "train",
    "pretrain",
    "publish",
    "checkpoint",
    "evaluate",
    "keep_samples",
    "wait_for_client",
)


async def work_on_one_job(service: Service, team: Team, prompts: PromptRenderer) -> None:
    """Consumes JOBS; produces one attempt at a job.

    Waits for: the learner's role, then a job. Unblocked by: the end of another learner, the
    gateway, or the service stopping.
    """
    PHASES.name(*_PHASES, idle="other")
    DEVICES.set(team.num_ranks)
    if service.held_gpus and not service.deployment.turns:
        service.held_gpus = team.num_ranks  # of all nodes
    await run_until_first_ends(_work_in_role(service, team, prompts), team.keep_alive_forever())


async def _work_in_role(service: Service, team: Team, prompts: PromptRenderer) -> None:
    role = Role(service)
    if await role.acquire():
        service.readiness.set(True)
        service.activity.set_idle(Doing.WAITS_FOR_JOB)
        await run_until_first_ends(_take_one_job(service, team, prompts), role.hold_forever())
        await role.release()


async def _take_one_job(service: Service, team: Team, prompts: PromptRenderer) -> None:
    await sweep(service.exchange, service.deployment)
    while not service.stopping.is_set():
        with PHASES.during("idle"):
            delivery = await service.exchange.next_job(_QUEUE_WAIT_S)
        if delivery is None:
            continue
        try:
            record = await service.exchange.job(delivery.job_id)
        except UnreadableRecord as unreadable:
            await _fail_unreadable(service.exchange, delivery, str(unreadable))
            continue
        # It may have ended since it was delivered.
        if record is None or record.state.is_final:
            continue
        await run(service, team, prompts, delivery, record)
        return


async def _fail_unreadable(exchange: Exchange, delivery: Delivery[JobRef], error: str) -> None:
    """Fail a job whose record this release cannot read."""
    log.error("unreadable job", extra={"job": delivery.job_id, "why": error})
    end: dict[str, Any] = {"state": JobState.FAILED, "error": error, "finished_at": time.time()}
    try:
        attempt = await exchange.begin_attempt(delivery.job_id)
        await exchange.close_job(delivery, attempt, **end)
    except (Fenced, Refused):  # it has ended already, or its record is too damaged
        await exchange.forget_queued(delivery)


class Role:
    """The lease of the learner's role: of several learners, only its holder takes jobs.

    The holder counts its heartbeats. Another learner takes over once it has seen the same count for
    long enough by its own clock, so clocks of two machines are never compared.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._roster = WorkerRegistry(
            service.deployment.claim_idle_s, service.deployment.heartbeat_s
        )

    async def acquire(self) -> bool:
        """Wait until this learner holds the lease; False if it is stopped before.

        Unblocked by: the end of the learner that holds it, or its silence.
        """
        expired: Lease | None = None
        while not self.service.stopping.is_set():
            lease = await self.service.exchange.renew_lease(expired)
            if lease.holder == self.service.exchange.me:
                return True
            expired = lease if self._is_expired(lease) else None
            if expired is None:
                reason = f"waits for {lease.holder}, the learner that takes jobs here, to end"
                self.service.readiness.set(False, reason)
                await self.service.pause(self.service.deployment.heartbeat_s)
        return False

    async def hold_forever(self) -> None:
        """Consumes nothing; produces heartbeats. Waits for: time. Unblocked by: time.

        Raises:
            Fenced: if another learner has taken the lease.
        """
        while True:
            await asyncio.sleep(self.service.deployment.heartbeat_s)
            lease = await self.service.exchange.renew_lease()
            if lease.holder != self.service.exchange.me:
                raise Fenced(f"the learner {lease.holder} has taken over")

    async def release(self) -> None:
        await self.service.exchange.release_lease()

    def _is_expired(self, lease: Lease) -> bool:
        """Whether its holder was an earlier process of this replica, or is silent for too long."""
        me = self.service.exchange.me
        self._roster.look({lease.holder: lease.beats}, time.monotonic())
        return replica_name(lease.holder) == replica_name(me) or any(self._roster.dead(me))
