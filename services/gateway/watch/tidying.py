"""Tidying: what ended jobs leave takes no more than its share, and files go when they expire."""

from __future__ import annotations

import asyncio
import logging

from services.chassis.service import Service
from services.gateway.errors import Problem, in_time
from services.gateway.jobs.folders import remove_leftovers
from services.gateway.jobs.service import JobService

KEPT_SHARE = 0.25  # of Redis' maxmemory, for records and events of jobs that have ended
_EVERY_S = 60.0
log = logging.getLogger(__name__)


async def tidy_forever(service: Service, jobs: JobService) -> None:
    """Consumes records of ended jobs, folders of deleted ones, and expired files; produces room.

    Waits for: the next look. Unblocked by: time, or the service stopping.
    """
    await asyncio.to_thread(jobs.files.remove_leftovers)
    while not service.stopping.is_set():
        try:
            await asyncio.to_thread(remove_leftovers, service.deployment.jobs_dir)
            await forget_surplus(service)
            await jobs.expire_files()
        except Problem:  # Redis is away, as /readyz says
            pass
        except Exception:  # whoever only tidies must not end the gateway
            log.exception("cannot tidy")
        await service.pause(_EVERY_S)


async def forget_surplus(service: Service) -> None:
    """Forget the oldest of the jobs that have ended, if all of them take more than their share."""
    limit = (await in_time(service.exchange.memory())).limit
    if limit is not None:
        gone = await service.exchange.forget_oldest(int(KEPT_SHARE * limit))
        if gone:
            log.warning("forgot the oldest jobs; their folders stay", extra={"jobs": gone})
