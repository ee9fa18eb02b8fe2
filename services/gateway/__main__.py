"""``python -m services.gateway``: serve the REST surface until told to stop."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import FastAPI

from services.chassis.deployment import DeploymentError
from services.chassis.service import Service, run_service
from services.gateway.app import create_app
from services.gateway.watch.fleet import watch_forever
from services.gateway.watch.tidying import tidy_forever
from services.gateway.watch.watchdog import Watchdog


async def watch(watchdog: Watchdog, service: Service) -> None:
    """Watch the stack until told to stop."""
    await asyncio.gather(
        watch_forever(service), watchdog.watch_forever(service), tidy_forever(service)
    )


def make_app(watchdog: Watchdog, service: Service) -> FastAPI:
    """The application; it is never served without a key.

    Raises:
        DeploymentError: if there is no key.
    """
    if not service.deployment.api_keys:
        raise DeploymentError("WEIR_API_KEYS is empty; set it to one or more keys, by commas")
    return create_app(service, watchdog=watchdog)


def main() -> None:
    """Run the gateway, whose watchdog both watches and answers."""
    watchdog = Watchdog()
    run_service("gateway", partial(watch, watchdog), partial(make_app, watchdog))


if __name__ == "__main__":
    main()
