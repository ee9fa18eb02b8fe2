"""``python -m services.gateway``: serve the REST surface until told to stop."""

from __future__ import annotations

from fastapi import FastAPI

from services.chassis.deployment import DeploymentError
from services.chassis.service import Service, run_service
from services.gateway.app import create_app
from services.gateway.watch.fleet import watch_forever


def make_app(service: Service) -> FastAPI:
    """The application; it is never served without a key.

    Raises:
        DeploymentError: if there is no key.
    """
    if not service.deployment.api_keys:
        raise DeploymentError("WEIR_API_KEYS is empty; set it to one or more keys, by commas")
    return create_app(service)


if __name__ == "__main__":
    run_service("gateway", watch_forever, make_app)
