"""A process on a seat: connected, logged, and told to stop by SIGTERM, as every service is."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable

from protocol.exchange import connect

from services.chassis.logs import set_up_logs
from services.chassis.parent import die_with_parent
from services.chassis.service import Service
from tests.chaos.seats import Place

log = logging.getLogger(__name__)


def run(place: Place, main: Callable[[Service, Place], Awaitable[None]]) -> None:
    """One life on a seat, until its service ends."""
    die_with_parent()
    with place.log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    set_up_logs(place.seat.name, "INFO")
    log.info("a life begins", extra={"pid": os.getpid()})
    asyncio.run(_serve(place, main))


async def _serve(place: Place, main: Callable[[Service, Place], Awaitable[None]]) -> None:
    async with connect(place.url, me=place.me) as exchange:
        service = Service(place.seat.role, place.deployment(), exchange)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.stopping.set)
        await main(service, place)
