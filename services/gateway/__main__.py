"""``python -m services.gateway``: serve the REST API until a signal."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer

from services.chassis.deployment import DeploymentError, read_variable
from services.chassis.service import Service, run_service
from services.gateway import errors
from services.gateway.api import files, graders, jobs, models
from services.gateway.api.calls import routes as calls
from services.gateway.api.middleware import (
    Authentication,
    BodyLimit,
    RequestLog,
    add_environment_key,
    parse_keys,
)
from services.gateway.api.page import routes as page
from services.gateway.api.samples import samples
from services.gateway.api.tinker import routes as tinker
from services.gateway.core.calls.pending import PendingCalls
from services.gateway.core.calls.session_store import SessionStore
from services.gateway.core.files.store import MAX_FILE_BYTES, FileStore
from services.gateway.core.jobs.service import JobService
from services.gateway.core.jobs.submission import load_defaults
from services.gateway.core.watch.descriptions import describe_activity
from services.gateway.core.watch.fleet import Fleet, tidy_forever, watch_forever
from services.gateway.core.watch.watchdog import Watchdog

NUM_THREADS = 32  # a few large requests would occupy the six threads that two cores have by default
ROUTERS = (
    files.router,
    jobs.router,
    graders.router,
    models.router,
    models.session_router,
    samples,
)


class Gateway:
    app: FastAPI

    def make_app(self, service: Service) -> FastAPI:
        """Raises DeploymentError if there is no key, or an invalid one."""
        keys = parse_keys(service.deployment.api_keys)
        if not keys:
            raise DeploymentError("WEIR_API_KEYS is empty; set it to keys with commas between them")
        keys = add_environment_key(keys, read_variable(os.environ, "WEIR_ENVIRONMENT_KEY") or "")
        app = FastAPI(
            title="Weir",
            description="Reinforcement learning for language models",
            docs_url=None,  # FastAPI's pages load scripts from another host
            redoc_url=None,
            redirect_slashes=False,  # a redirect would trust the Host header
            responses=errors.RESPONSES,
            # HTTPBearer only documents the key in /openapi.json: `Authentication` checks it.
            dependencies=[
                Depends(HTTPBearer(auto_error=False, scheme_name="key")),
                Depends(errors.refuse_unknown_query),
            ],
        )
        store = FileStore(service.deployment.files_dir)
        app.state.jobs = JobService(service, store, load_defaults())
        watchdog = Watchdog(service.exchange, service.deployment.claim_idle_s)
        app.state.watchdog = watchdog
        app.state.fleet = Fleet(service.exchange, service.deployment)

        def rollouts() -> list[str]:
            living = (process.status for process in watchdog.snapshot.living("rollout"))
            return [f"{status.name} {describe_activity(status)}" for status in living]

        pending_calls = PendingCalls(service.exchange, service.deployment.claim_idle_s, rollouts)
        for router in ROUTERS:
            app.include_router(router)
        sessions = SessionStore(service.deployment.sessions_dir)
        calls.install(app, pending_calls, sessions)
        tinker.install(app, app.state.jobs, pending_calls)
        page.install(app)
        errors.install(app)
        errors.describe(app)
        # A request passes the last one first.
        app.add_middleware(BodyLimit, max_file_bytes=MAX_FILE_BYTES)
        app.add_middleware(Authentication, keys=keys, has_session_key=sessions.has_key)
        app.add_middleware(RequestLog)
        self.app = app
        return app

    async def watch(self, service: Service) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(NUM_THREADS))
        state = self.app.state
        await asyncio.gather(
            watch_forever(service, state.fleet),
            state.watchdog.watch_forever(service),
            state.pending_calls.read_forever(service),
            state.pending_calls.renew_forever(service),
            tidy_forever(service, state.jobs),
        )


def main() -> None:
    gateway = Gateway()
    run_service("gateway", gateway.watch, gateway.make_app)


if __name__ == "__main__":
    main()
