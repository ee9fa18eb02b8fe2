"""A service: a process that is connected and observable, and ends in good order."""

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
from typing import Any, ClassVar, TypeVar

import h11
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest
from protocol.exchange import Disconnected, Exchange, connect, replica_name
from protocol.exchange.connection import Refused, round_wait
from protocol.exchange.server import server_problems
from protocol.messages import Doing, Failure, JobEvent, Notice, Status
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.chassis import metrics
from services.chassis.activity import Activity, Readiness, Work
from services.chassis.cost import CostReporter
from services.chassis.deployment import Deployment, DeploymentError
from services.chassis.faults import RestartRequired, StartupFailed
from services.chassis.logs import set_up_logs
from services.chassis.secret_variables import hide_secrets
from services.chassis.timeouts import (
    CLEANUP_TIMEOUT_S,
    EXIT_TIMEOUT_S,
    FAREWELL_TIMEOUT_S,
    HEADERS_TIMEOUT_S,
    KEEP_ALIVE_S,
    SHUTDOWN_TIMEOUT_S,
)

Asgi = Callable[[dict[str, Any], Any, Any], Coroutine[Any, Any, None]]
UNSAFE = Gauge("weir_server_unsafe", "1 for settings of Redis that can lose jobs", ["setting"])
log = logging.getLogger(__name__)
_MAX_OPEN_FILES = 2**16  # the usual limit is 1,024
_MAX_HEADER_BYTES = 2**15
_MAX_ANONYMOUS_CONNECTIONS = 4096
_MAX_STATUS_KEYS = 64
_MAX_FAILURE_CHARS = 300
# A library may take one cancellation for a timeout of its own.
_CANCEL_RETRY_S = 1.0
T = TypeVar("T")
_PATHS = "/healthz, /startupz, /readyz, and /metrics on WEIR_METRICS_PORT"


@dataclass
class Service:
    name: str
    deployment: Deployment
    exchange: Exchange
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    readiness: Readiness = field(default_factory=Readiness)
    activity: Activity = field(default_factory=Activity)
    # Of this worker among the replicas with a heartbeat, and how many there are.
    position: tuple[int, int] = (0, 1)
    # A service that saves work when it stops is not cancelled.
    saves_work: bool = False
    held_gpus: int = 0  # now; those of turns only in its turn

    def __post_init__(self) -> None:
        self.held_gpus = max(0, self.deployment.num_gpus - len(set(self.deployment.turns)))
        self.exchange.redact = self.deployment.hide_paths

    @property
    def replica(self) -> str:
        return replica_name(self.exchange.me)

    @property
    def display_name(self) -> str:
        return self.deployment.name or self.replica.rpartition("-")[0] or self.replica

    def stop(self) -> None:
        """Begin to end, without waiting long for an exchange that is away."""
        self.exchange.hurry(self.deployment.drain_s)
        self.stopping.set()

    async def pause(self, seconds: float) -> bool:
        """Sleep, but not beyond the order to stop; return whether that has come."""
        return await wait_until_set(self.stopping, seconds)

    async def await_event(self, event: Coroutine[Any, Any, object]) -> bool:
        """Wait for an event, but not beyond the order to stop; return whether that has come."""
        await run_until_first_ends(event, self.stopping.wait())
        return self.stopping.is_set()


async def wait_until_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most for ``seconds``, as `round_wait` rounds; return whether it is set.

    `asyncio.wait_for` of Python 3.11 swallows a cancellation that comes with the event.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(round_wait(seconds)):
            await event.wait()
    return event.is_set()


async def run_until_first_ends(*coroutines: Coroutine[Any, Any, T]) -> T:
    """Run coroutines until one ends or raises; cancel the others and return its result."""
    tasks = {asyncio.create_task(coroutine) for coroutine in coroutines}
    # Several may fail at once, or while this coroutine is cancelled.
    for task in tasks:
        task.add_done_callback(retrieve_error)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # Any error of theirs is raised here.
        results = [task.result() for task in done]
        return results[0]
    finally:
        while running := {task for task in tasks if not task.done()}:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=_CANCEL_RETRY_S)


def retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's error, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()


Main = Callable[[Service], Coroutine[Any, Any, None]]


def run_service(name: str, main: Main, make_app: Callable[[Service], Asgi] | None = None) -> None:
    """Run ``main`` until it returns or the process is told to stop, then exit.

    If ``main`` still runs after the time to drain, it is cancelled, unless the service
    ``saves_work``. No thread keeps the process alive. Meanwhile the paths of `ObservableApp` are
    served, in front of the service's own application if it has one. The exit status is 1 if
    ``main`` raised or the environment is wrong, else 0.
    """
    deployment = prepare_process(name)
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MAX_OPEN_FILES if limit == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, limit)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, limit))
    set_up_logs(name, deployment.log_level)
    try:
        sys.exit(asyncio.run(_run_and_exit(name, deployment, main, make_app)))
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


async def _run_and_exit(
    name: str, deployment: Deployment, main: Main, make_app: Callable[[Service], Asgi] | None
) -> int:
    status = 1
    try:
        status = await _run(name, deployment, main, make_app)
        return status
    finally:
        timer = threading.Timer(EXIT_TIMEOUT_S, _exit_now, [status])
        timer.daemon = True
        timer.start()


def _exit_now(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _run(
    name: str, deployment: Deployment, main: Main, make_app: Callable[[Service], Asgi] | None
) -> int:
    # The part before the point is the replica, which a restart keeps: a port has one process.
    replica = f"{name}-{socket.gethostname()}-{deployment.port}"
    me = f"{replica}.{os.getpid()}-{secrets.token_hex(3)}"
    async with connect(deployment.redis_url, me=me) as exchange:
        service = Service(name, deployment, exchange)
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, service.stop)
        loop.add_signal_handler(signal.SIGUSR1, _log_tasks)
        app = make_app(service) if make_app else None
        async with _serving(service, app):
            counting = asyncio.create_task(_count_start(service))
            try:
                # The gateway answers requests, so it needs no status.
                work = main(service) if make_app else run_with_status(service, main)
                await _cancel_after_drain(service, work)
            except DeploymentError:
                raise
            except Exception as error:
                reason = find_restart_reason(error)
                if reason is None:
                    log.exception("stopped by an error")
                    return 1
                log.info("ends, to be restarted: %s", reason)
            finally:
                await asyncio.wait({counting}, timeout=FAREWELL_TIMEOUT_S)
                counting.cancel()
    return 0


async def _cancel_after_drain(service: Service, work: Coroutine[Any, Any, None]) -> None:
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(service.stopping.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        limit_s = service.deployment.drain_s + CLEANUP_TIMEOUT_S
        await asyncio.wait({working}, timeout=None if service.saves_work else limit_s)
        if working.done():
            return working.result()
        log.warning("cancelled, since it still runs after the time to drain")
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.wait({working}, timeout=FAREWELL_TIMEOUT_S)


def find_restart_reason(error: Exception) -> Exception | None:
    """Return the `RestartRequired` that ``error`` consists of, if it has no other part."""
    if isinstance(error, ExceptionGroup):
        reasons = [find_restart_reason(part) for part in error.exceptions]
        return reasons[0] if all(reasons) else None
    return error if isinstance(error, RestartRequired) else None


async def _count_start(service: Service) -> None:
    with suppress(Refused, *Disconnected):  # only a metric depends on it
        await service.exchange.count_start(service.name)


async def check_server(exchange: Exchange) -> None:
    """Warn of settings that can lose jobs; raise `DeploymentError` if the server deletes work."""
    for problem in await server_problems(exchange):
        if problem.deletes_work:
            raise DeploymentError(problem.text)
        UNSAFE.labels(problem.setting).set(1)
        log.warning("the server is not safe", extra={"why": problem.text})


async def run_with_status(service: Service, main: Main) -> None:
    """Run ``main``, and report the service's status meanwhile and at the end."""
    reporter = StatusReporter(service)
    await reporter.load_last_failure()
    reporting = asyncio.create_task(reporter.report_until_ended())
    error: BaseException | None = None
    try:
        await main(service)
    except BaseException as raised:
        error = raised
        raise
    finally:
        # Cancelling could let a status on its way arrive after the last one.
        reporter.ended.set()
        await asyncio.wait({reporting}, timeout=FAREWELL_TIMEOUT_S)
        await reporter.leave(error)


@dataclass
class StatusReporter:
    service: Service
    starts: int = 1
    failure: Failure | None = None  # of the last start
    beats: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def load_last_failure(self) -> None:
        """Count this start after those of the replica's last process, if it was never ready."""
        with suppress(Refused, *Disconnected):
            last = (await self.service.exchange.statuses()).get(self.service.replica)
            if last is not None and last.starts > 0:
                self.starts = last.starts + 1
                self.failure = last.failure

    async def report_until_ended(self) -> None:
        """Report the status with every heartbeat. Errors of the exchange are others' to report."""
        cost = CostReporter(self.service.exchange, self.service.name)
        while not self.ended.is_set():
            with suppress(Refused, *Disconnected):
                await self.service.exchange.show_status(self.status())
                await cost.report(self.service.held_gpus)
            await wait_until_set(self.ended, self.service.deployment.heartbeat_s)
        with suppress(Refused, *Disconnected):
            await cost.report(self.service.held_gpus)

    async def leave(self, error: BaseException | None = None) -> None:
        """Leave a status for the replica's next process, unless this one was told to stop.

        The active job gets an event with the error of a process that was never ready.
        """
        exchange = self.service.exchange
        with suppress(TimeoutError, Refused, *Disconnected):
            async with asyncio.timeout(FAREWELL_TIMEOUT_S):
                if self.service.stopping.is_set():
                    await exchange.forget_status(self.service.replica)
                    return
                if error is not None and not self.service.readiness.was_ready:
                    self.failure = summarize_error(error)
                    await self._record_failure(self.failure)
                self.service.activity = Activity()
                self.service.readiness.started = False
                self.service.readiness.ready = False
                await exchange.show_status(self.status())

    def status(self) -> Status:
        readiness = self.service.readiness
        activity = self.service.activity
        if readiness.was_ready:
            self.starts = 0
            self.failure = None
        self.beats += 1
        now = time.monotonic()
        work = activity.now
        if work is activity.idle and readiness.started and not readiness.ready:
            fails = readiness.fault == readiness.why != ""
            work = Work(Doing.FAILS if fails else Doing.IS_NOT_READY, since=readiness.since)
        holds = list(activity.holds.items())[:_MAX_STATUS_KEYS]
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
            waits_for=tuple(work.waits_for())[:_MAX_STATUS_KEYS],
            holds={key: now - since for key, since in holds},
            moved=activity.moved(),
            at_once=activity.at_once(),
            waits_for_memory=self.service.exchange.waiting_for_memory > 0,
            starts=self.starts,
            failure=self.failure,
            capabilities=activity.capabilities,
            parity=tuple(activity.parity),
        )

    async def _record_failure(self, failure: Failure) -> None:
        """Report to the active job, at the first start, the second, the fourth, and so on."""
        job = await self.service.exchange.active()
        is_power_of_two = self.starts & (self.starts - 1) == 0
        if job is None or not is_power_of_two:
            return
        problem = f"{self.service.display_name} does not start: {failure.words}"
        event = JobEvent(
            id=f"start:{self.service.exchange.me}",
            job_id=job.job_id,
            level="warn",
            message=f"{problem}; attempt {self.starts}; see its log",
            data=Notice(details={"service": self.service.name, "attempt": self.starts}),
        )
        await self.service.exchange.record_event(event)


def summarize_error(error: BaseException) -> Failure:
    """Return the message of an error, or of the first of a group, on one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    words = " ".join(str(error).split()) or type(error).__name__
    if len(words) > _MAX_FAILURE_CHARS:
        words = words[: _MAX_FAILURE_CHARS - 1] + "…"
    return Failure(words=words, job_id=error.job_id if isinstance(error, StartupFailed) else None)


def _log_tasks() -> None:
    """Log where every coroutine waits, on SIGUSR1."""
    for task in asyncio.all_tasks():
        places = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack()]
        log.info("waits", extra={"task": repr(task.get_coro()), "places": places})


@dataclass
class ObservableApp:
    """The ASGI application that answers the chassis's paths, and passes on all others.

    /healthz: the process answers. /startupz: it has started, though it may wait for something, as
    a rollout does for its first policy. /readyz: it can do its work, or the reason why not.
    """

    service: Service
    inner: Asgi | None
    serves_metrics: bool

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        path = scope["path"] if scope["method"] in {"GET", "HEAD"} else None
        readiness = self.service.readiness
        if path == "/healthz":
            await _respond(send, 200, "ok\n")
        elif path == "/startupz":
            await _respond_if(send, readiness.started, "started", readiness.why)
        elif path == "/readyz":
            await _respond_if(send, readiness.ready, "ready", readiness.why)
        elif path == "/metrics" and self.serves_metrics:
            metrics.BACKPRESSURE.set(self.service.exchange.backpressure_seconds)
            await _respond(send, 200, generate_latest(), CONTENT_TYPE_LATEST)
        elif self.inner is not None:
            await self.inner(scope, receive, send)
        else:
            await _respond(send, 404, f"this service serves {_PATHS}\n")


async def _respond_if(send: Any, is_true: bool, state: str, reason: str) -> None:
    await _respond(send, 200 if is_true else 503, f"{state if is_true else reason}\n")


async def _respond(
    send: Any, status: int, body: str | bytes, content_type: str = "text/plain; charset=utf-8"
) -> None:
    raw = body.encode() if isinstance(body, str) else body
    headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(raw))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    async def main_loop(self) -> None:
        """Renew the date of responses every second; uvicorn would wake up ten times as often."""
        await self.on_tick(0)
        while not await wait_until_set(self.ended, 1.0):
            await self.on_tick(0)

    def capture_signals(self) -> Any:
        """The service handles signals itself."""
        return nullcontext()


class _LimitedProtocol(H11Protocol):
    """HTTP/1.1 that closes connections without a whole request: uvicorn has no such limit.

    It also closes the oldest of too many anonymous connections, so that they cannot use up the
    process's open files. An application that has admitted a request puts a ``key`` in its scope.
    """

    _anonymous: ClassVar[dict[_LimitedProtocol, None]] = {}  # oldest first, perhaps some with a key
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._anonymous[self] = None
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        while len(self._anonymous) > min(_MAX_ANONYMOUS_CONNECTIONS, files // 2):
            oldest = next(iter(self._anonymous))
            del self._anonymous[oldest]
            if "key" not in (oldest.scope or ()):
                oldest.transport.abort()  # closing would wait for a client that does not read
        self._limit_time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._anonymous.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_time()

    def _limit_time(self) -> None:
        awaits_headers = self.conn.their_state is h11.IDLE
        if awaits_headers and self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_TIMEOUT_S, self.transport.close)
        elif not awaits_headers and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


@asynccontextmanager
async def _serving(service: Service, inner: Asgi | None) -> AsyncIterator[list[_Server]]:
    """Serve a service on its port while the body runs, and its metrics there or on theirs."""
    port = service.deployment.port
    metrics_port = service.deployment.metrics_port
    servers = [_make_server(ObservableApp(service, inner, metrics_port == port), service, port)]
    if metrics_port != port:
        servers.append(_make_server(ObservableApp(service, None, True), service, metrics_port))
    tasks = [asyncio.create_task(server.serve()) for server in servers]
    try:
        yield servers
    finally:
        for server in servers:
            server.ended.set()
        await asyncio.gather(*tasks)


def _make_server(app: Asgi, service: Service, port: int) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            host=service.deployment.host,
            port=port,
            http=_LimitedProtocol,
            h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
            ws="none",
            headers=[("X-Content-Type-Options", "nosniff")],
            forwarded_allow_ips=list(service.deployment.trusted_proxies),
            log_config=None,
            lifespan="off",
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
    )
