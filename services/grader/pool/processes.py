"""The pool's side of its processes: the one that forks workers, and a connection to each worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from prometheus_client import Gauge

from services.chassis.faults import WorkerFault
from services.grader.pool.outcome import Cause, Failed, Value
from services.grader.pool.worker import MAX_LINE_BYTES, READY

ALIVE = Gauge("weir_pool_workers_alive", "Worker processes of the pool that live")

_FORKING_S = 300.0  # from the order to fork a worker until it is ready, warm-ups and all
_DYING_S = 5.0  # from the order to kill a worker to its death
_OF_CONFINED = ("PATH", "LANG", "LD_LIBRARY_PATH")  # the variables of clients' code


class NoWorkerError(WorkerFault):
    """No worker can be had: the pool is closed, or what forks them died, as standard error says."""


class WorkerProcess(asyncio.Protocol):
    """A connection to one forked process, which is asked one call at a time.

    Its first line says that it is ready; the last one, from its parent, how it ended.
    """

    def __init__(self, parent: subprocess.Popen[bytes]) -> None:
        self.calls = 0
        self._parent = parent
        self._cpu_s = 0.0  # spent until its last answer
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listen()

    @property
    def usable(self) -> bool:
        """Whether it can be asked: it lives, and has said nothing that nobody asked for."""
        return not self._received and not self._ended.done() and self._parent.poll() is None

    async def is_ready(self) -> bool:
        """Whether it came to life, for which this waits."""
        try:
            await asyncio.wait({self._said}, timeout=_FORKING_S)
        except asyncio.CancelledError:
            self.kill()
            raise
        is_ready = self._received == READY
        if is_ready:
            self._listen()
        elif not self._received:  # not even how it ended: its parent ends, or hangs
            _end(self._parent)
        return is_ready

    async def call(self, number: int, line: bytes, deadline_s: float) -> Value | Failed | None:
        """What became of a call; None if the worker was lost through no fault of it.

        An answer that is there when the deadline is noticed counts, however late this process is.
        """
        if not self.usable:
            return None
        self.calls += 1
        self._transport.write(line)
        await asyncio.wait({self._said}, timeout=deadline_s)
        if not self._said.done():
            return await self._killed(Cause.TIMEOUT, f"not done after {deadline_s:g} s")
        if outcome := self._answer(number):
            return outcome
        if death := self._death():
            how, cpu_s = death
            return Failed(Cause.KILLED if how == "SIGKILL" else Cause.CRASH, how, cpu_s)
        if self._ended.done() and self._parent.poll() is not None:
            return None
        return await self._killed(Cause.CRASH, "its answer cannot be read")

    def kill(self) -> None:
        """End it whatever it does: its parent sees that nobody listens."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It will be forked."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        ALIVE.inc()

    def data_received(self, data: bytes) -> None:
        """A part of a line."""
        self._received += data
        if len(self._received) > MAX_LINE_BYTES:
            self._transport.abort()
        elif data.endswith(b"\n") and not self._said.done():
            self._said.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, or is to end."""
        ALIVE.dec()
        self._ended.set_result(None)
        if not self._said.done():
            self._said.set_result(None)

    def _listen(self) -> None:
        """Wait for a line."""
        self._received = bytearray()
        self._said: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _answer(self, number: int) -> Value | Failed | None:
        try:
            told = json.loads(self._received)
            if told["number"] != number:
                return None
            spent_s, self._cpu_s = told["cpu_s"] - self._cpu_s, told["cpu_s"]
            self._listen()
            if "failed" in told:
                return Failed(Cause(told["failed"]), told["detail"], spent_s)
            return Value(told["value"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return None  # whatever a broken process may write

    def _death(self) -> tuple[str, float] | None:
        """How it ended, in words, and the CPU time since its last answer, if its parent told."""
        try:
            code, cpu_s = json.loads(self._received.splitlines()[-1])
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            return how, cpu_s - self._cpu_s
        except (ValueError, TypeError, IndexError, RecursionError):
            return None

    async def _killed(self, cause: Cause, detail: str) -> Failed:
        with suppress(OSError):  # it is closed
            self._transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
        await asyncio.wait({self._ended}, timeout=_DYING_S)
        if not self._ended.done():
            _end(self._parent)  # it does not obey
        death = self._death()
        return Failed(cause, detail, death[1] if death else None)


class ForkServer:
    """The process that forks workers; started anew when it has ended, and its workers with it."""

    def __init__(self, warm_ups: Sequence[str], *, confined: bool) -> None:
        self._warm_ups = warm_ups
        self._confined = "confined" if confined else ""
        self._one_at_a_time = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    async def fork(self) -> WorkerProcess:
        """A new worker, which may be lost already.

        Raises:
            NoWorkerError: after `close`, or if the process ends while it warms up.
        """
        async with self._one_at_a_time:
            if self._closed:
                raise NoWorkerError("the pool was closed")
            process, is_new = self._process, False
            if process is None or process.poll() is not None:
                process, is_new = self._start(), True
            worker = await self._order(process)
            if not await worker.is_ready() and is_new:
                why = "the pool was closed" if self._closed else "the process that forks them ended"
                raise NoWorkerError(f"no workers with {', '.join(self._warm_ups)}: {why}")
        return worker

    def close(self) -> None:
        """End the process for good: its workers die with it."""
        self._closed = True
        if self._process is not None:
            _end(self._process)
            self._orders.close()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            self._orders.close()
        kept = {
            name: text
            for name, text in os.environ.items()
            if (name in _OF_CONFINED if self._confined else not name.startswith("WEIR_"))
        }
        kept |= {"OMP_NUM_THREADS": "1"}  # NumPy's; who forks should have no other
        path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        command = [sys.executable, "-m", "services.grader.pool.forkserver"]
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), self._confined, *self._warm_ups],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=kept | {"PYTHONPATH": path},
            )
        return self._process

    async def _order(self, process: subprocess.Popen[bytes]) -> WorkerProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            _, worker = await asyncio.get_running_loop().create_unix_connection(
                lambda: WorkerProcess(process), sock=ours
            )
            with suppress(OSError):  # then nobody holds the other end
                socket.send_fds(self._orders, [b"w"], [theirs.fileno()])
        return worker


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
