"""The application: its routes, and what every request passes before them."""

from __future__ import annotations

from fastapi import FastAPI

from services.chassis.service import Service
from services.gateway import errors, openapi
from services.gateway.files.store import MAX_FILE_BYTES, FileStore
from services.gateway.jobs.service import JobService
from services.gateway.middleware import Bounded, Guarded, Measured, parse_keys
from services.gateway.openai.defaults import tables_of_the_deployment
from services.gateway.page import routes as page
from services.gateway.routes import files, graders, jobs, models
from services.gateway.samples.reading import Samples
from services.gateway.samples.routes import samples
from services.gateway.watch.watchdog import Watchdog


def create_app(service: Service, *, watchdog: Watchdog | None = None) -> FastAPI:
    """The gateway's application; the chassis adds /healthz, /readyz and the like in front of it.

    Raises:
        DeploymentError: if a key of the deployment cannot be read.
    """
    app = FastAPI(
        title="Weir",
        description="Reinforcement learning for language models",
        docs_url=None,  # FastAPI's pages load scripts from another host
        redoc_url=None,
        redirect_slashes=False,  # it believes the Host header
    )
    store = FileStore(service.deployment.files_dir)
    app.state.jobs = JobService(service, store, tables_of_the_deployment())
    app.state.uploads = files.Uploads(store)
    app.state.samples = Samples()
    app.state.watchdog = watchdog or Watchdog()
    for routes in (files, jobs, models, graders):
        app.include_router(routes.router)
    app.include_router(samples)
    page.install(app)
    errors.install(app)
    openapi.install(app)
    # The last one added is the first one passed.
    app.add_middleware(Bounded, max_file_bytes=MAX_FILE_BYTES)
    app.add_middleware(Guarded, keys=parse_keys(service.deployment.api_keys))
    app.add_middleware(Measured)
    return app
