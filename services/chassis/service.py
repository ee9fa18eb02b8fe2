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
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import h11
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest
from protocol.exchange import Disconnected, Exchange, connect, replica_of
from protocol.exchange.connection import Refused
from protocol.exchange.server import server_problems
from protocol.messages import Doing, Failure, JobEvent, Notice, Status
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.chassis import metrics
from services.chassis.activity import Activity, Readiness, Work
from services.chassis.deployment import Deployment, DeploymentError
from services.chassis.faults import RestartRequired, StartupFailed
from services.chassis.logs import set_up_logs
from services.chassis.secret_variables import hide_secrets

Asgi = Callable[[dict[str, Any], Any, Any], Coroutine[Any, Any, None]]
UNSAFE = Gauge("weir_server_unsafe", "1 for what at Redis can cost jobs or work", ["setting"])
log = logging.getLogger(__name__)
_OPEN_FILES = 2**16  # the usual limit is 1,024
_PARTING_S = 2.0
_LEAVING_S = 10.0  # beyond the time to drain, for what ends then
_EXIT_S = 3.0  # after the last word
_MAX_HEAD_BYTES = 2**15
_MAX_STRANGERS = 4096  # connections on which nobody has shown a key
_HEAD_S = 10.0  # within which the headers of a request have to be there
_MOST_KEYS = 64  # told with a status
_MOST_WORDS = 300  # characters of a failure
_PATHS = "/healthz, /startupz, /readyz, and /metrics on WEIR_METRICS_PORT"


@dataclass
class Service:
    name: str
    deployment: Deployment
    exchange: Exchange
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    readiness: Readiness = field(default_factory=Readiness)
    activity: Activity = field(default_factory=Activity)
    position: tuple[int, int] = (0, 1)  # of this worker, among how many that show life
    saves_work: bool = False  # when it is told to stop, for as long as that takes

    def __post_init__(self) -> None:
        self.exchange.shown = self.deployment.hide_paths

    @property
    def replica(self) -> str:
        return replica_of(self.exchange.me)

    @property
    def display_name(self) -> str:
        """How people call this process."""
        return self.deployment.name or self.replica.rpartition("-")[0] or self.replica

    def stop(self) -> None:
        """Leave in good order, without waiting long for an exchange that is away."""
        self.exchange.hurry(self.deployment.drain_s)
        self.stopping.set()

    async def pause(self, seconds: float) -> bool:
        """Sleep, but not past the moment when the service is told to stop; True if it was."""
        return await wait_until_set(self.stopping, seconds)


async def wait_until_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set, but for ``seconds`` at the longest; True if it is set.

    Not `asyncio.wait_for`: in Python 3.11 it swallows a cancellation that comes with the event.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


Main = Callable[[Service], Coroutine[Any, Any, None]]


def run_service(name: str, main: Main, make_app: Callable[[Service], Asgi] | None = None) -> None:
    """Run ``main`` until it returns or the process is told to stop, then exit.

    If ``main`` still runs when the time to drain is over, it is cancelled, unless the service
    ``saves_work``. No thread keeps the process alive.

    Meanwhile the paths of `Observable` are served, in front of the service's own application if
    it has one. The exit status is 1 when ``main`` raised or the environment is wrong, else 0.
    """
    deployment = prepare_process(name)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    set_up_logs(name, deployment.log_level)
    try:
        sys.exit(asyncio.run(_run_and_leave(name, deployment, main, make_app)))
    except DeploymentError as error:
        sys.exit(f"{name}: {error}")


def prepare_process(name: str) -> Deployment:
    """Hide the secrets of this process and read its deployment; exit if that is wrong."""
    hide_secrets()
    try:
        deployment = Deployment.from_environment()
    except DeploymentError as error:
        sys.exit(f"{name}: {error}")
    os.umask(deployment.umask)
    return deployment


async def _run_and_leave(*given: Any) -> int:
    status = 1
    try:
        status = await _run(*given)
        return status
    finally:
        deadline = threading.Timer(_EXIT_S, _exit_now, [status])  # asyncio and Python join threads
        deadline.daemon = True
        deadline.start()


def _exit_now(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _run(
    name: str, deployment: Deployment, main: Main, make_app: Callable[[Service], Asgi] | None
) -> int:
    # A restart keeps the replica, which stands before the point: one process at a time has a port.
    replica = f"{name}-{socket.gethostname()}-{deployment.port}"
    me = f"{replica}.{os.getpid()}-{secrets.token_hex(3)}"
    async with connect(deployment.redis_url, me=me) as exchange:
        service = Service(name, deployment, exchange)
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, service.stop)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _log_what_waits)
        inner = make_app(service) if make_app else None
        async with _serving(service, inner):
            counting = asyncio.create_task(_count_start(service))
            try:
                # Who asks the gateway hears whether it lives.
                work = main(service) if make_app else run_with_status(service, main)
                await _cancel_after_drain(service, work)
            except DeploymentError:
                raise
            except Exception as error:
                if (unfit := find_restart_reason(error)) is None:
                    log.exception("stopped by an error")
                    return 1
                log.info("ends, to be started again: %s", unfit)
            finally:
                await asyncio.wait({counting}, timeout=_PARTING_S)
                counting.cancel()
    return 0


async def _cancel_after_drain(service: Service, work: Coroutine[Any, Any, None]) -> None:
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(service.stopping.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        limit_s = None if service.saves_work else service.deployment.drain_s + _LEAVING_S
        await asyncio.wait({working}, timeout=limit_s)
        if working.done():
            return working.result()
        log.warning("it still works after the time to drain; it ends without that")
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.wait({working}, timeout=_PARTING_S)


def find_restart_reason(error: Exception) -> Exception | None:
    """The reason of an end in good order, if ``error`` is nothing else."""
    if isinstance(error, ExceptionGroup):
        reasons = [find_restart_reason(each) for each in error.exceptions]
        return reasons[0] if all(reasons) else None
    return error if isinstance(error, RestartRequired) else None


async def _count_start(service: Service) -> None:
    with suppress(Refused, *Disconnected):  # it is for a metric alone
        await service.exchange.count_start(service.name)


async def check_server(exchange: Exchange) -> None:
    """Warn of all that can cost jobs or work; a `DeploymentError` if the server deletes them."""
    for problem in await server_problems(exchange):
        if problem.deletes_work:
            raise DeploymentError(problem.text)
        UNSAFE.labels(problem.setting).set(1)
        log.warning("the server is not safe", extra={"why": problem.text})


async def run_with_status(service: Service, main: Main) -> None:
    """Run ``main``, and tell others meanwhile, and after it, what the service is doing."""
    teller = StatusReporter(service)
    await teller.follow_on()
    reporting = asyncio.create_task(teller.tell_until_ended())
    error: BaseException | None = None
    try:
        await main(service)
    except BaseException as raised:
        error = raised
        raise
    finally:
        teller.ended.set()  # not cancelled: what is on its way would come after the last word
        await asyncio.wait({reporting}, timeout=_PARTING_S)
        await teller.leave(error)


@dataclass
class StatusReporter:
    service: Service
    starts: int = 1
    failure: Failure | None = None  # of the last of them
    beats: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow_on(self) -> None:
        """Count on from the last life on this replica, if that was never ready."""
        with suppress(Refused, *Disconnected):
            last = (await self.service.exchange.statuses()).get(self.service.replica)
            if last is not None and last.starts > 0:
                self.starts, self.failure = last.starts + 1, last.failure

    async def tell_until_ended(self) -> None:
        """Show the status with every heartbeat, also where the exchange fails: that is others'."""
        while not self.ended.is_set():
            with suppress(Refused, *Disconnected):
                await self.service.exchange.show_status(self.status())
            await wait_until_set(self.ended, self.service.deployment.heartbeat_s)

    async def leave(self, error: BaseException | None = None) -> None:
        """Leave a status behind that tells of the next life, unless the process was told to stop.

        The active job hears of the error that ended a process that was never ready.
        """
        exchange = self.service.exchange
        with suppress(TimeoutError, Refused, *Disconnected):
            async with asyncio.timeout(_PARTING_S):
                if self.service.stopping.is_set():
                    await exchange.forget_status(self.service.replica)
                    return
                if error is not None and not self.service.readiness.was_ready:
                    self.failure = summarize_error(error)
                    await self._tell_of(self.failure)
                self.service.activity = Activity()
                self.service.readiness.started = self.service.readiness.ready = False
                await exchange.show_status(self.status())

    def status(self) -> Status:
        readiness, activity = self.service.readiness, self.service.activity
        if readiness.was_ready:
            self.starts, self.failure = 0, None
        self.beats += 1
        now, work = time.monotonic(), activity.now
        if work is activity.rest and readiness.started and not readiness.ready:
            fails = readiness.fault == readiness.why != ""
            work = Work(Doing.FAILS if fails else Doing.IS_NOT_READY, since=readiness.since)
        return Status(
            name=self.service.display_name,
            service=self.service.name,
            replica=self.service.replica,
            beats=self.beats,
            ready=readiness.ready,
            doing=work.doing,
            number=work.number,
            why=readiness.why,
            for_s=now - work.since,
            waits_for=tuple(work.waits_for())[:_MOST_KEYS],
            holds={key: now - since for key, since in list(activity.holds.items())[:_MOST_KEYS]},
            moved=activity.moved(),
            at_once=activity.at_once(),
            waits_for_memory=self.service.exchange.waiting_for_memory > 0,
            starts=self.starts,
            failure=self.failure,
            capabilities=activity.capabilities,
            parity=tuple(activity.parity),
        )

    async def _tell_of(self, failure: Failure) -> None:
        """Tell the active job, at the first time, the second, the fourth, and so on."""
        job, starts = await self.service.exchange.active(), self.starts
        if job is None or starts & (starts - 1):
            return
        what = f"{self.service.display_name} does not start: {failure.words}"
        event = JobEvent(
            id=f"start:{self.service.exchange.me}",
            job_id=job.job_id,
            level="warn",
            message=f"{what}; attempt {starts}; see its log",
            data=Notice(details={"service": self.service.name, "attempt": starts}),
        )
        await self.service.exchange.record_event(event)


def summarize_error(error: BaseException) -> Failure:
    """What an error says, on one line; of a group of errors, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split()) or type(error).__name__
    words = text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 1] + "…"
    return Failure(words=words, job_id=error.job_id if isinstance(error, StartupFailed) else None)


def _log_what_waits() -> None:
    """On SIGUSR1: where every coroutine waits, for a stall that has no name yet."""
    for task in asyncio.all_tasks():
        places = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack()]
        log.info("waits", extra={"task": repr(task.get_coro()), "places": places})


@dataclass
class Observable:
    """The ASGI application that answers the chassis's paths, and passes on the rest.

    /healthz: the process answers. /startupz: it has started, though it may wait for something, as
    a rollout does for its first policy. /readyz: it can do its work, or what it waits for.
    """

    service: Service
    inner: Asgi | None
    tells_metrics: bool

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        path = scope["path"] if scope["method"] in {"GET", "HEAD"} else None
        readiness, why_not = self.service.readiness, f"{self.service.readiness.why}\n"
        if path == "/healthz":
            await _answer(send, 200, "ok\n")
        elif path == "/startupz":
            is_so = readiness.started
            await _answer(send, 200 if is_so else 503, "started\n" if is_so else why_not)
        elif path == "/readyz":
            is_so = readiness.ready
            await _answer(send, 200 if is_so else 503, "ready\n" if is_so else why_not)
        elif path == "/metrics" and self.tells_metrics:
            metrics.BACKPRESSURE.set(self.service.exchange.backpressure_seconds)
            await _answer(send, 200, generate_latest(), CONTENT_TYPE_LATEST)
        elif self.inner is not None:
            await self.inner(scope, receive, send)
        else:
            await _answer(send, 404, f"this service serves {_PATHS}\n")


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


class _Timely(H11Protocol):
    """HTTP/1.1 that closes connections without a whole request: uvicorn has no such limit.

    It also closes the oldest of too many connections without a key, so that they cannot use up the
    process's open files. An application that has admitted a request says so by a ``key`` in its
    scope.
    """

    _strangers: ClassVar[dict[_Timely, None]] = {}  # oldest first, perhaps some with a key
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._strangers[self] = None
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        while len(self._strangers) > min(_MAX_STRANGERS, files // 2):
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            if "key" not in (oldest.scope or ()):
                oldest.transport.abort()  # closing would wait for a client that does not read
        self._limit_time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._strangers.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_time()

    def _limit_time(self) -> None:
        waits = self.conn.their_state is h11.IDLE  # for the headers
        if waits and self._deadline is None:
            self._deadline = self.loop.call_later(_HEAD_S, self.transport.close)
        elif not waits and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


@asynccontextmanager
async def _serving(service: Service, inner: Asgi | None) -> AsyncIterator[list[_Server]]:
    """Serve a service on its port, and its metrics there or on theirs, while the body runs."""
    port, metrics_port = service.deployment.port, service.deployment.metrics_port
    servers = [_server(Observable(service, inner, metrics_port == port), service, port)]
    if metrics_port != port:
        servers.append(_server(Observable(service, None, True), service, metrics_port))
    tasks = [asyncio.create_task(server.serve()) for server in servers]
    try:
        yield servers
    finally:
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)


def _server(app: Asgi, service: Service, port: int) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            host=service.deployment.host,
            port=port,
            http=_Timely,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            ws="none",
            headers=[("X-Content-Type-Options", "nosniff")],
            forwarded_allow_ips=list(service.deployment.trusted_proxies),
            log_config=None,
            lifespan="off",
            timeout_graceful_shutdown=3,
            timeout_keep_alive=15,  # longer than clients use one: httpx, for five seconds
        )
    )
