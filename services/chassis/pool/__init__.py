"""A pool of killable worker processes, for code that may hang, crash or exhaust memory.

If a computer algebra system hangs inside a C call, only a forked worker is lost: the caller gets
`Failed` on time, and the next call gets a new worker. Deadlines are CPU time, measured and enforced
by the kernel, so a busy machine fails no call.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from enum import StrEnum
from typing import NamedTuple, Self

from prometheus_client import Counter, Gauge, Histogram
from pydantic import JsonValue

from services.chassis.faults import WorkerFault
from services.chassis.metrics import start_at_zero
from services.chassis.timeouts import FORK_TIMEOUT_S, STALL_GRACE_S

MAX_LINE_BYTES = 16 << 20  # of a call, and of its answer

# A worker is replaced after this many calls, which frees leaked memory.
_CALLS_PER_WORKER = 2000
# A call is given up after it lost this many workers through no fault of its own.
_WORKERS_PER_CALL = 3
# Clients' code sees only these environment variables.
_CONFINED_VARIABLES = ("PATH", "LANG", "LD_LIBRARY_PATH")
_ENCODER = json.JSONEncoder(allow_nan=False)


class Cause(StrEnum):
    TIMEOUT = "timeout"  # it used up its CPU time
    STALL = "stall"  # it neither ended nor used up its CPU time: it sleeps, or is starved
    CRASH = "crash"
    MEMORY = "memory"
    KILLED = "killed"  # from outside, for example by the kernel when memory is short
    ERROR = "error"  # the function raised, or call or value are no JSON; the worker is unharmed


_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ALIVE = Gauge("weir_pool_workers_alive", "Worker processes of the pool that are alive")
BACKLOG = Gauge("weir_pool_backlog_calls", "Calls that wait for a worker of the pool", ["suspect"])
WAITED = Histogram(
    "weir_pool_wait_seconds", "Time that a call waited for a worker", ["suspect"], buckets=_SECONDS
)
_METERS = [(BACKLOG.labels(suspect), WAITED.labels(suspect)) for suspect in ("no", "yes")]
WORKED = Histogram(
    "weir_pool_call_seconds", "Time from asking a worker to its answer or end", buckets=_SECONDS
)
FAILED = start_at_zero(
    Counter("weir_pool_calls_failed_total", "Calls that ended without a value", ["cause"]), *Cause
)
KILLED = start_at_zero(
    Counter("weir_pool_workers_killed_total", "Workers of the pool replaced", ["why"]),
    *("timeout", "stall", "crash", "memory", "killed", "died", "cancelled"),
)


class NoWorkerError(WorkerFault):
    """No worker is available: the pool is closed, or its forkserver died; see standard error."""


class SetUp(NamedTuple):
    """A call of ``module:function`` before the workers of a pool are forked."""

    function: str
    args: Sequence[JsonValue]
    deadline_s: float  # CPU time; the set-up may sleep for 10 s more


class SetUpError(NoWorkerError):
    """The set-up of a pool ended without success."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(f"the set-up of its workers failed: {failed.cause}, {failed.detail}")
        self.failed = failed


class Value(NamedTuple):
    value: JsonValue


class Failed(NamedTuple):
    cause: Cause
    detail: str = ""

    @property
    def is_machine_fault(self) -> bool:
        """Whether the call may be innocent: its worker was killed, or hardly ran."""
        return self.cause in {Cause.KILLED, Cause.STALL}


def encode_line(content: object) -> bytes:
    """Encode JSON in one line; `TypeError`, `ValueError` or `RecursionError` if it is none."""
    line = _ENCODER.encode(content).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"{len(line)} bytes of JSON, over the limit of {MAX_LINE_BYTES}")
    return line


class Pool:
    """``size`` workers for any number of callers, served in order of arrival.

    ``warm_ups`` are names ``module:function``, called once, before workers are forked. A
    ``confined`` pool is for untrusted code: a worker may do next to nothing, and serves one call,
    unless a ``set_up`` loads the data that all calls share.
    """

    set_up: SetUp | None = None  # may be set until the first call

    def __init__(self, size: int, *, warm_ups: Sequence[str] = (), confined: bool = False) -> None:
        if size < 1:
            raise ValueError(f"size={size}: a pool needs at least one worker")
        self._size = size
        self._warm_ups = warm_ups
        self._confined = confined
        self._places = asyncio.Semaphore(size)
        self._suspects = asyncio.Semaphore(max(1, size // 2))
        self._idle: list[_Worker] = []
        self._numbers = itertools.count()  # an answer repeats the number of its call
        self._forking = asyncio.Lock()
        self._server: subprocess.Popen[bytes] | None = None  # forks workers, which die with it
        self._has_forked = False  # this server has made a worker
        self._is_set_up = False  # this server was sent the set-up
        self._closed = False

    async def __aenter__(self) -> Self:
        try:
            self._idle = [await self._fork() for _ in range(self._size)]
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Kill all workers. Waiting and active calls raise `NoWorkerError`."""
        self._closed = True
        if self._server is not None:
            _end(self._server)
            self._orders.close()

    async def run(
        self, function: str, *args: JsonValue, deadline_s: float, suspect: bool = False
    ) -> Value | Failed:
        """Call ``"module:function"`` in a worker, with ``deadline_s`` of CPU time.

        A call that sleeps stalls after twice that and 10 s. A ``suspect`` call hung or crashed
        before: it gets a new worker of its own, and at most half of the active calls are suspects.
        Arguments and value are JSON. Cancelling the caller kills its worker.

        Raises:
            NoWorkerError: if no worker is available, for example because the pool is closed.
        """
        number = next(self._numbers)
        line = encode_line([number, deadline_s, function, args])
        backlog, waited = _METERS[suspect]
        async with AsyncExitStack() as stack:
            with backlog.track_inprogress(), waited.time():
                if suspect:
                    await stack.enter_async_context(self._suspects)
                await stack.enter_async_context(self._places)
            for _ in range(_WORKERS_PER_CALL):
                worker = await self._take_worker(suspect)
                outcome = await self._call(worker, number, line, deadline_s, suspect)
                if outcome is not None:
                    return outcome
        raise NoWorkerError(f"{_WORKERS_PER_CALL} workers were lost before they could answer")

    async def _take_worker(self, suspect: bool) -> _Worker:
        while self._idle and not suspect:
            worker = self._idle.pop()
            if worker.usable:
                return worker
            KILLED.labels("died").inc()
            worker.kill()
        return await self._fork()

    async def _call(
        self, worker: _Worker, number: int, line: bytes, deadline_s: float, suspect: bool
    ) -> Value | Failed | None:
        """Return the outcome, or None if the worker was lost through no fault of the call."""
        harm = "cancelled"
        try:
            with WORKED.time():
                outcome = await worker.call(number, line, deadline_s)
            harm = "" if outcome else "died"
            if isinstance(outcome, Failed):
                FAILED.labels(outcome.cause).inc()
                harm = "" if outcome.cause is Cause.ERROR else outcome.cause
            return outcome
        finally:
            if harm:
                KILLED.labels(harm).inc()
            max_calls = 1 if self._confined and self.set_up is None else _CALLS_PER_WORKER
            if harm or suspect or worker.calls >= max_calls:
                worker.kill()
            else:
                self._idle.append(worker)

    async def _fork(self) -> _Worker:
        """Fork a worker, which may already be lost; `NoWorkerError` if that is impossible."""
        async with self._forking:
            if self._closed:
                raise NoWorkerError("the pool was closed")
            if self._server is None or self._server.poll() is not None:
                self.start()
            assert self._server is not None
            server = self._server
            if self.set_up is not None and not self._is_set_up:
                self._is_set_up = True
                with suppress(OSError):
                    self._orders.send(encode_line(self.set_up))
            ours, theirs = socket.socketpair()
            with theirs:
                _, worker = await asyncio.get_running_loop().create_unix_connection(
                    lambda: _Worker(server), sock=ours
                )
                with suppress(OSError):  # the worker's end is closed then
                    socket.send_fds(self._orders, [b"w"], [theirs.fileno()])
            if await worker.is_ready():
                self._has_forked = True
            elif not self._has_forked:
                raise self._fork_error(worker, server.poll())
        return worker

    def _fork_error(self, worker: _Worker, code: int | None) -> NoWorkerError:
        if self._closed or self.set_up is None:
            reason = "the pool was closed" if self._closed else "the process that forks them ended"
            return NoWorkerError(f"no workers with {', '.join(self._warm_ups)}: {reason}")
        return SetUpError(worker.set_up_failure or _explain_exit(code or 0, self.set_up.deadline_s))

    def start(self) -> None:
        """Start the forkserver and its warm-ups, perhaps before the pool is opened."""
        if self._server is not None:
            self._orders.close()
        variables = {
            name: text
            for name, text in os.environ.items()
            if (name in _CONFINED_VARIABLES if self._confined else not name.startswith("WEIR_"))
        }
        variables["OMP_NUM_THREADS"] = "1"  # a process that forks should have one thread
        variables["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        command = [sys.executable, "-m", "services.chassis.pool.forkserver"]
        self._has_forked = False
        self._is_set_up = False
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.setblocking(False)
        confined = "confined" if self._confined else ""
        with theirs:
            self._server = subprocess.Popen(
                [*command, str(theirs.fileno()), confined, *self._warm_ups],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=variables,
            )


class _Worker(asyncio.Protocol):
    """A connection to one forked process, for one call at a time."""

    def __init__(self, parent: subprocess.Popen[bytes]) -> None:
        self.calls = 0
        self.set_up_failure: Failed | None = None
        self._parent = parent
        self._pidfd: int | None = None
        self._listen()

    @property
    def usable(self) -> bool:
        return not self._received and not self._line_end.done() and self._parent.poll() is None

    async def is_ready(self) -> bool:
        try:
            await asyncio.wait({self._line_end}, timeout=FORK_TIMEOUT_S)
            self._pidfd = os.pidfd_open(int(self._received))
        except asyncio.CancelledError:
            self.kill()
            raise
        except (ValueError, OSError):
            if not self._received:  # the forkserver itself ends, or hangs
                _end(self._parent)
            elif self._received.startswith(b"{") and b'"failed"' in self._received:
                reply = json.loads(self._received)
                self.set_up_failure = Failed(Cause(reply["failed"]), reply["detail"])
            return False
        self._listen()
        return True

    async def call(self, number: int, line: bytes, deadline_s: float) -> Value | Failed | None:
        """Return None if the worker was lost through no fault of the call."""
        if not self.usable:
            return None
        self.calls += 1
        self._transport.write(line)
        limit_s = 2 * deadline_s + STALL_GRACE_S
        await asyncio.wait({self._line_end}, timeout=limit_s)
        if not self._line_end.done():
            return Failed(Cause.STALL, f"not done after {limit_s:g} s")
        try:
            *earlier_lines, last_line = self._received.splitlines() or [b""]
            reply = json.loads(last_line)
            if "died" in reply:
                return _explain_exit(reply["died"], deadline_s)
            if earlier_lines or reply["number"] != number:
                raise ValueError("no answer to this call")
            if "failed" in reply:
                outcome = Failed(Cause(reply["failed"]), reply["detail"])
            else:
                outcome = Value(reply["value"])
        except (ValueError, TypeError, KeyError, RecursionError):  # a process may write anything
            if self._transport.is_closing() and self._parent.poll() is not None:
                return None
            return Failed(Cause.CRASH, "its answer cannot be read")
        self._listen()
        return outcome

    def kill(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        ALIVE.inc()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > MAX_LINE_BYTES:
            self._transport.abort()
        elif data.endswith(b"\n") and not self._line_end.done():
            self._line_end.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        ALIVE.dec()
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
        if not self._line_end.done():
            self._line_end.set_result(None)

    def _listen(self) -> None:
        self._received = bytearray()
        self._line_end: asyncio.Future[None] = asyncio.get_running_loop().create_future()


def _explain_exit(code: int, deadline_s: float) -> Failed:
    if code == -signal.SIGPROF:
        return Failed(Cause.TIMEOUT, f"not done after {deadline_s:g} s of CPU time")
    if code == -signal.SIGALRM:
        return Failed(Cause.STALL, f"not done {STALL_GRACE_S:g} s after its {deadline_s:g} s")
    detail = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return Failed(Cause.KILLED if code == -signal.SIGKILL else Cause.CRASH, detail)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
