"""Files whose time is over, which go by themselves."""

from __future__ import annotations

import asyncio
import logging

from services.chassis.service import Service
from services.gateway.errors import Problem
from services.gateway.jobs.desk import JobDesk

log = logging.getLogger(__name__)
_PERIOD_S = 60.0


async def expire_forever(service: Service, desk: JobDesk) -> None:
    """Look every minute, until told to stop."""
    await asyncio.to_thread(desk.files.remove_leftovers)
    while not service.stopping.is_set():
        try:
            await desk.expire_files()
        except (OSError, Problem) as error:
            log.warning("expired files stay for now", extra={"error": str(error)})
        await service.pause(_PERIOD_S)
