"""A look at the server's settings when a service starts."""

from __future__ import annotations

import logging

from prometheus_client import Gauge
from protocol.exchange import Exchange
from protocol.exchange.server import server_problems

from services.chassis.deployment import DeploymentError

UNSAFE = Gauge("weir_server_unsafe", "1 for what at Redis can cost jobs or work", ["setting"])
log = logging.getLogger(__name__)


async def check_server(exchange: Exchange) -> None:
    """Warn of everything that can cost jobs or work.

    Raises:
        DeploymentError: if the server deletes them even while all goes well.
    """
    for problem in await server_problems(exchange):
        if problem.deletes_work:
            raise DeploymentError(problem.text)
        UNSAFE.labels(problem.setting).set(1)
        log.warning("the server is not safe", extra={"why": problem.text})
