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

from prometheus_client import Gauge

from services.chassis.faults import WorkerFault
from services.grader.confinement import bare_environment
from services.grader.nursery_process import MAX_MESSAGE_BYTES
from services.grader.pool_pipe import Pipe

ALIVE = Gauge("weir_pool_workers_alive", "Worker processes of the pool that live")

_EXIT_S = 5.0


class NurseryError(WorkerFault):
    """No worker can be had; what the nursery process died of is on standard error."""


@dataclass(frozen=True)
class Death:
    """How a worker ended, in words, and the CPU time of its whole life, if anybody could tell."""

    how: str
    cpu_s: float | None = None


LOST_WITH_NURSERY = Death("the nursery ended")


@dataclass(eq=False)
class Worker:
    """One forked process, reached over its own pipe."""

    number: int
    pipe: Pipe
    died: asyncio.Future[Death]
    calls: int = 0
    cpu_s: float = 0.0  # spent until its last answer

    @property
    def fit(self) -> bool:
        """Whether it can be asked."""
        return self.pipe.usable and not self.died.done()

    async def epitaph(self, within_s: float) -> Death | None:
        """How this worker died, or None if it lives on."""
        done, _ = await asyncio.wait({self.died}, timeout=within_s)
        return self.died.result() if done else None


@dataclass(eq=False)
class Nursery:
    """A running nursery process. ``alive`` turns False when it is gone, and its workers with it."""

    process: asyncio.subprocess.Process
    control: socket.socket
    alive: bool = True
    workers: dict[int, Worker] = field(default_factory=dict)
    born: int = 0

    @classmethod
    async def start(
        cls, warm_ups: Sequence[str], memory_bytes: int, *, confined: bool = False
    ) -> Nursery:
        """Start the process and wait until it has imported and called every ``module:function``.

        Raises:
            NurseryError: if it ends before it is ready.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            process = await _spawn(theirs.fileno(), memory_bytes, warm_ups, confined)
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
        self.born += 1
        worker = Worker(self.born, Pipe(ours), asyncio.get_running_loop().create_future())
        self.workers[worker.number] = worker
        ALIVE.inc()
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

    def give_up(self, worker: Worker) -> None:
        """End a nursery that does not obey: this worker of it should have been dead long ago."""
        if self.workers.get(worker.number) is worker:
            self._end()

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
            self._end()
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
        told = json.loads(message)
        death = Death(_in_words(told["status"]), told["cpu_s"])
        _bury(self.workers.pop(told["died"]), death)

    def _end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()  # its workers die with it
        self._lost()

    def _lost(self) -> None:
        if self.alive:
            self.alive = False
            asyncio.get_running_loop().remove_reader(self.control)
            self.control.close()
        for worker in self.workers.values():
            _bury(worker, LOST_WITH_NURSERY)
        self.workers.clear()


async def _spawn(
    fd: int, memory_bytes: int, warm_ups: Sequence[str], confined: bool
) -> asyncio.subprocess.Process:
    settings = [str(fd), str(os.getpid()), str(memory_bytes), "confined" if confined else "free"]
    # No worker needs what the deployment says: its keys and passwords are for the service.
    free = {name: text for name, text in os.environ.items() if not name.startswith("WEIR_")}
    environment = bare_environment() if confined else free
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "services.grader.nursery_process", *settings, *warm_ups],
        pass_fds=[fd],
        stdin=asyncio.subprocess.DEVNULL,
        env=environment | {"PYTHONPATH": path},
    )


def _bury(worker: Worker, death: Death) -> None:
    ALIVE.dec()
    worker.died.set_result(death)


def _in_words(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"
