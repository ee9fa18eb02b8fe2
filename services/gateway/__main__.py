"""``python -m services.gateway``: serve the REST surface until told to stop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fastapi import FastAPI

from services.chassis.deployment import DeploymentError
from services.chassis.service import Service, run_service
from services.gateway.app import create_app
from services.gateway.watch.fleet import watch_forever
from services.gateway.watch.tidying import expire_forever, tidy_forever
from services.gateway.watch.watchdog import Watchdog


@dataclass
class Gateway:
    """The application, and what goes on beside its requests."""

    watchdog: Watchdog = field(default_factory=Watchdog)
    app: FastAPI = field(default_factory=FastAPI)

    def make_app(self, service: Service) -> FastAPI:
        """The application; it is never served without a key.

        Raises:
            DeploymentError: if there is no key.
        """
        if not service.deployment.api_keys:
            raise DeploymentError("WEIR_API_KEYS is empty; set it to one or more keys, by commas")
        self.app = create_app(service, watchdog=self.watchdog)
        return self.app

    async def watch(self, service: Service) -> None:
        """Watch the stack and the files until told to stop."""
        await asyncio.gather(
            watch_forever(service),
            self.watchdog.watch_forever(service),
            expire_forever(service, self.app.state.jobs),
            tidy_forever(service),
        )


def main() -> None:
    """Run the gateway, whose watchdog both watches and answers."""
    gateway = Gateway()
    run_service("gateway", gateway.watch, gateway.make_app)


if __name__ == "__main__":
    main()
