"""A service: a process that is connected, observable, and leaves in good order."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from protocol.exchange import Disconnected, Exchange, connect
from protocol.exchange.connection import Refused

from services.chassis import metrics
from services.chassis.activity import PARTING_S, Activity, StatusTeller
from services.chassis.deployment import Deployment, DeploymentError
from services.chassis.logs import set_up_logs

Asgi = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
log = logging.getLogger(__name__)
_MAX_HEAD_BYTES = 2**15
_MAX_CONNECTIONS = 800  # with a file for each, 1,600 of those that a process may have open
_PATHS = "/healthz, /startupz, /readyz, and /metrics on WEIR_METRICS_PORT"


@dataclass
class Readiness:
    """Whether the service can do its work now, and if not, what it waits for."""

    ready: bool = False
    why: str = "starting"
    started: bool = False  # it has said for itself whether it is ready
    was_ready: bool = False
    since: float = field(default_factory=time.monotonic)

    def set(self, ready: bool, why: str = "") -> None:
        """Say whether the service can work; ``why`` names what it waits for."""
        if (ready, why) != (self.ready, self.why):
            log.info("ready" if ready else "not ready", extra={"why": why})
            self.since = time.monotonic()
        self.ready, self.why, self.started = ready, why, True
        self.was_ready = self.was_ready or ready
        metrics.READY.set(ready)


@dataclass
class Service:
    """What the parts of a service share."""

    name: str
    deployment: Deployment
    exchange: Exchange
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    readiness: Readiness = field(default_factory=Readiness)
    activity: Activity = field(default_factory=Activity)

    def stop(self) -> None:
        """Leave in good order, without waiting long for an exchange that is away."""
        self.exchange.hurry(self.deployment.drain_s)
        self.stopping.set()

    async def pause(self, seconds: float) -> bool:
        """Sleep, but not past the moment when the service is told to stop; True if it was."""
        return await set_within(self.stopping, seconds)


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set, but for ``seconds`` at the longest; True if it is set.

    Not `asyncio.wait_for`: in Python 3.11 it swallows a cancellation that comes with the event.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


Main = Callable[[Service], Awaitable[None]]


def run_service(name: str, main: Main, make_app: Callable[[Service], Asgi] | None = None) -> None:
    """Run ``main`` until it returns or the process is told to stop, then exit.

    Beside it /healthz, /startupz, /readyz and /metrics are served on the deployment's port, in
    front of the service's own application if it has one; /metrics on a port of its own if the
    deployment says so. What the service writes is for its own user. The exit status is 0 when
    ``main`` returned, 1 when it raised or the environment is wrong.
    """
    os.umask(0o077)
    _allow_open_files(2**16)
    try:
        deployment = Deployment.from_environment()
    except DeploymentError as error:
        sys.exit(f"{name}: {error}")
    set_up_logs(name, deployment.log_level)
    try:
        sys.exit(asyncio.run(_run(name, deployment, main, make_app)))
    except DeploymentError as error:
        sys.exit(f"{name}: {error}")


def _allow_open_files(wanted: int) -> None:
    """Raise the usual limit of 1,024, as far as this user may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


async def _run(
    name: str, deployment: Deployment, main: Main, make_app: Callable[[Service], Asgi] | None
) -> int:
    # Before the point the seat, which a restart keeps: the port is that of one process at a time.
    seat = f"{name}-{socket.gethostname()}-{deployment.port}"
    me = f"{seat}.{os.getpid()}-{secrets.token_hex(3)}"
    async with connect(deployment.redis_url, me=me) as exchange:
        service = Service(name, deployment, exchange)
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, service.stop)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _log_what_waits)
        inner = make_app(service) if make_app else None
        async with _serving_all(service, inner):
            counting = asyncio.create_task(_count_start(service))
            try:
                # Who asks the gateway hears whether it lives.
                await (main(service) if make_app else telling(service, main))
            except DeploymentError:
                raise
            except Exception:
                log.exception("stopped by an error")
                return 1
            finally:
                await asyncio.wait({counting}, timeout=PARTING_S)
                counting.cancel()
    return 0


async def _count_start(service: Service) -> None:
    with suppress(Refused, *Disconnected):  # it is for a metric alone
        await service.exchange.count_start(service.name)


async def telling(service: Service, main: Main) -> None:
    """Run ``main``, and tell others meanwhile, and after it, what the service is doing."""
    teller = StatusTeller(service)
    await teller.follow_on()
    telling = asyncio.create_task(teller.tell_until_ended())
    error: BaseException | None = None
    try:
        await main(service)
    except BaseException as raised:
        error = raised
        raise
    finally:
        teller.ended.set()  # not cancelled: what is on its way would come after the last word
        await asyncio.wait({telling}, timeout=PARTING_S)
        await teller.leave(error)


def _log_what_waits() -> None:
    """On SIGUSR1: where every coroutine waits, for a stall that has no name yet."""
    for task in asyncio.all_tasks():
        places = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack()]
        log.info("waits", extra={"task": repr(task.get_coro()), "places": places})


class Observable:
    """The ASGI application that answers the chassis's paths, and passes on the rest.

    /healthz: the process answers. /startupz: it has started, though it may wait for something, as
    a rollout does for its first policy. /readyz: it can do its work, or what it waits for.
    """

    def __init__(self, service: Service, inner: Asgi | None, *, tells_metrics: bool) -> None:
        self.service = service
        self.inner = inner
        self.tells_metrics = tells_metrics

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        path = scope["path"] if scope["method"] in {"GET", "HEAD"} else None
        readiness = self.service.readiness
        if path == "/healthz":
            await _answer(send, 200, "ok\n")
        elif path == "/startupz":
            await _answer_whether(send, readiness.started, "started", readiness.why)
        elif path == "/readyz":
            await _answer_whether(send, readiness.ready, "ready", readiness.why)
        elif path == "/metrics" and self.tells_metrics:
            metrics.BACKPRESSURE.set(self.service.exchange.backpressure_seconds)
            await _answer(send, 200, generate_latest(), CONTENT_TYPE_LATEST)
        elif self.inner is not None:
            await self.inner(scope, receive, send)
        else:
            await _answer(send, 404, f"this service serves {_PATHS}\n")


async def _answer_whether(send: Any, condition: bool, yes: str, why_not: str) -> None:
    await _answer(send, 200 if condition else 503, f"{yes if condition else why_not}\n")


async def _answer(
    send: Any, status: int, body: str | bytes, content_type: str = "text/plain; charset=utf-8"
) -> None:
    raw = body.encode() if isinstance(body, str) else body
    headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(raw))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})


class _Server(uvicorn.Server):
    def capture_signals(self) -> Any:
        """The service handles signals itself."""
        return nullcontext()


@asynccontextmanager
async def _serving_all(service: Service, inner: Asgi | None) -> AsyncIterator[None]:
    """Serve a service on its port, and its metrics there or on theirs."""
    port, metrics_port = service.deployment.port, service.deployment.metrics_port
    async with AsyncExitStack() as stack:
        if metrics_port != port:
            app = Observable(service, None, tells_metrics=True)
            await stack.enter_async_context(_serving(app, service.deployment, metrics_port))
        app = Observable(service, inner, tells_metrics=metrics_port == port)
        await stack.enter_async_context(_serving(app, service.deployment, port))
        yield


class _serving:
    """Serve an application while the body of ``async with`` runs."""

    def __init__(self, app: Asgi, deployment: Deployment, port: int) -> None:
        self.server = _Server(
            uvicorn.Config(
                app,
                host=deployment.host,
                port=port,
                http="h11",
                h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
                limit_concurrency=_MAX_CONNECTIONS,
                ws="none",
                headers=[("X-Content-Type-Options", "nosniff")],
                forwarded_allow_ips=list(deployment.trusted_proxies),
                log_config=None,
                lifespan="off",
                timeout_graceful_shutdown=3,
            )
        )

    async def __aenter__(self) -> _serving:
        self.task = asyncio.create_task(self.server.serve())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.server.should_exit = True
        await self.task
