"""The pool's side of the nursery: start it, have workers forked, talk to them, have them killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from services.grader.nursery_process import MAX_MESSAGE_BYTES
from services.grader.pool_worker import LENGTH

NURSERY_ENDED = "the nursery ended"
_EXIT_S = 5.0
_EPITAPH_S = 1.0


class NurseryError(RuntimeError):
    """The nursery process did not come up; its traceback is on standard error."""


@dataclass(eq=False)
class Worker:
    """One forked process, reached over its own pipe."""

    number: int
    pipe: socket.socket
    died: asyncio.Future[str]  # how, in words
    calls: int = 0

    async def ask(self, call: bytes) -> dict[str, Any]:
        """Send one framed call and read its answer.

        Raises:
            EOFError, OSError: if the worker dies meanwhile.
        """
        self.calls += 1
        await asyncio.get_running_loop().sock_sendall(self.pipe, call)
        (size,) = LENGTH.unpack(await self._read_exactly(LENGTH.size))
        return json.loads(await self._read_exactly(size))

    async def epitaph(self) -> str:
        """How this dead worker died, for example ``"SIGSEGV"``."""
        done, _ = await asyncio.wait({self.died}, timeout=_EPITAPH_S)
        return self.died.result() if done else "unknown"

    async def _read_exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = await asyncio.get_running_loop().sock_recv(self.pipe, size - len(parts))
            if not part:
                raise EOFError(f"worker {self.number} closed its pipe")
            parts += part
        return bytes(parts)


@dataclass(eq=False)
class Nursery:
    """A running nursery process. ``alive`` turns False when it is gone, and its workers with it."""

    process: asyncio.subprocess.Process
    control: socket.socket
    alive: bool = True
    workers: dict[int, Worker] = field(default_factory=dict)
    born: int = 0

    @classmethod
    async def start(cls, warm_ups: Sequence[str], memory_bytes: int) -> Nursery:
        """Start the process and wait until it has imported and called every ``module:function``.

        Raises:
            NurseryError: if it ends before it is ready.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            process = await _spawn(theirs.fileno(), memory_bytes, warm_ups)
        nursery = cls(process, ours)
        try:
            ready = await asyncio.get_running_loop().sock_recv(ours, MAX_MESSAGE_BYTES)
            if not ready:
                raise NurseryError(f"the nursery ended while it loaded {', '.join(warm_ups)}")
        except BaseException:
            await nursery.close()
            raise
        asyncio.get_running_loop().add_reader(ours, nursery._hear)
        return nursery

    def fork(self) -> Worker:
        """A new worker, to be asked at once: its pipe holds the call. Dead without a nursery."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.born += 1
        worker = Worker(self.born, ours, asyncio.get_running_loop().create_future())
        self.workers[worker.number] = worker
        with theirs:
            self._order({"fork": worker.number}, [theirs.fileno()])
        if not self.alive:
            self._lost()
        return worker

    def kill(self, worker: Worker) -> None:
        """End a worker whatever it does, and close its pipe."""
        worker.pipe.close()
        if self.workers.get(worker.number) is worker:
            self._order({"kill": worker.number}, [])

    async def close(self) -> None:
        """Kill all workers, end the process, and wait until it is gone."""
        self._lost()
        try:
            await asyncio.wait_for(self.process.wait(), _EXIT_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    def _order(self, order: dict[str, int], fds: list[int]) -> None:
        if not self.alive:
            return
        try:
            socket.send_fds(self.control, [json.dumps(order).encode()], fds)
        except BlockingIOError:
            self.process.kill()  # it obeys no more, and its workers die with it
            self._lost()
        except OSError:
            self._lost()

    def _hear(self) -> None:
        try:
            message = self.control.recv(MAX_MESSAGE_BYTES)
        except OSError:
            message = b""
        if not message:
            self._lost()
            return
        death = json.loads(message)
        _bury(self.workers.pop(death["died"]), _in_words(death["status"]))

    def _lost(self) -> None:
        if self.alive:
            self.alive = False
            asyncio.get_running_loop().remove_reader(self.control)
            self.control.close()
        for worker in self.workers.values():
            _bury(worker, NURSERY_ENDED)
        self.workers.clear()


async def _spawn(fd: int, memory_bytes: int, warm_ups: Sequence[str]) -> asyncio.subprocess.Process:
    settings = [str(fd), str(os.getpid()), str(memory_bytes)]
    return await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "services.grader.nursery_process", *settings, *warm_ups],
        pass_fds=[fd],
        stdin=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
    )


def _bury(worker: Worker, how: str) -> None:
    if not worker.died.done():
        worker.died.set_result(how)


def _in_words(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"
