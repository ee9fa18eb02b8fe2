"""The stack of one run: a server, a supervised process per replica, and a proxy between them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from protocol.exchange import Exchange, connect
from protocol.messages import JobRecord
from protocol.recipe import Recipe
from protocol.streams import WORK_STREAMS

from tests.chaos.job import JOB, write_tasks
from tests.chaos.places import REPLICAS, ROLLOUTS, Place, Replica, Switches
from tests.chaos.processes import live
from tests.contract.lossy_proxy import LossyProxy, lossy_proxy
from tests.contract.valkey_server import Server

ELSEWHERE = ROLLOUTS[0]  # begins on another machine than the learner
_BACK_OFF_S = 0.05
_PARTING_S = 60.0
_FORKS = multiprocessing.get_context("forkserver")


def prepare_forks() -> None:
    """Start the process that the others are forked from, which imports all that they need."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    _FORKS.set_forkserver_preload(["pytest", "tests.chaos.processes", "tests.forks"])
    first = _FORKS.Process(target=int)
    first.start()
    first.join()


class Life:
    """A process on a replica, from its fork to its end."""

    def __init__(self, place: Place) -> None:
        self.ended = asyncio.Event()
        # Since it has ended, or another is to take its place.
        self.replica_is_free = asyncio.Event()
        self.process = _FORKS.Process(
            target=live,
            args=(place,),
            daemon=True,
        )
        self.process.start()
        asyncio.get_running_loop().add_reader(self.process.sentinel, self._ends)

    def send(self, signum: signal.Signals) -> None:
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.process.ident or 0, signum)

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        await self.ended.wait()

    def _ends(self) -> None:
        asyncio.get_running_loop().remove_reader(self.process.sentinel)
        self.process.join()
        self.ended.set()
        self.replica_is_free.set()


@dataclass
class Clock:
    """The server's wall clock, which can be set, if there is a C compiler."""

    folder: Path
    offset_s: int = 0

    def environment(self) -> Mapping[str, str]:
        """For the process that is to have it."""
        if shutil.which("cc") is None:
            return {}
        source = Path(__file__).with_name("clock.c")
        library = self.folder / "clock.so"
        command = ["cc", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        self.turn(0)
        return {"LD_PRELOAD": str(library), "CLOCK_FILE": str(self.folder / "clock")}

    def turn(self, seconds: int) -> None:
        """Set it forward, or back; it is a file that the server has mapped."""
        self.offset_s += seconds
        with os.fdopen(os.open(self.folder / "clock", os.O_CREAT | os.O_WRONLY), "wb") as file:
            file.write(struct.pack("<q", self.offset_s))


@dataclass
class Stack:
    """Everything that a fault can reach."""

    folder: Path
    server: Server
    clock: Clock
    user: Exchange
    lines: Mapping[Replica, LossyProxy]
    machines: dict[Replica, int] = field(
        default_factory=lambda: dict.fromkeys(REPLICAS, 0) | {ELSEWHERE: 1}
    )
    lives: dict[Replica, Life] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)  # of the learner, by what was under way
    _supervising: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def switches(self) -> Switches:
        return Switches(self.folder / "switches")

    @property
    def checkpoints(self) -> set[str]:
        """The names of all that are there now."""
        folder = self.folder / "data" / "jobs" / JOB / "checkpoints"
        return {path.name for path in folder.glob("step-*")}

    def place(self, replica: Replica) -> Place:
        return Place(replica, self.machines[replica], self.lines[replica].url, self.folder)

    def start(self) -> None:
        """Fill the replicas, and fill them anew from now on."""
        for replica in REPLICAS:
            self.lives[replica] = Life(self.place(replica))
            self._supervising.append(asyncio.create_task(self._supervise_forever(replica)))

    def vacate(self, replica: Replica, machine: int) -> Life:
        """Let the supervisor fill a replica anew, on a machine, beside the life that sits there."""
        life = self.lives[replica]
        self.machines[replica] = machine
        life.replica_is_free.set()
        return life

    async def record(self) -> JobRecord:
        record = await self.user.job(JOB)
        assert record is not None
        return record

    async def situation(self) -> str:
        """Where the job is stuck, in words."""
        record = await self.record()
        backlogs = {s.name: await self.user.backlog(s, JOB) for s in WORK_STREAMS}
        return f"{record.state} at step {record.step}, {record.error}, {backlogs}"

    async def stop(self) -> dict[str, int | None]:
        """Ask everybody to leave; returns the exit status of each replica, None if it did not."""
        await self._stop_supervising()
        for life in self.lives.values():
            life.send(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PARTING_S):
                for life in self.lives.values():
                    await life.ended.wait()
        return {replica.name: life.process.exitcode for replica, life in self.lives.items()}

    async def end(self) -> None:
        """Kill whoever is left."""
        await self._stop_supervising()
        for life in self.lives.values():
            await life.kill()

    async def _stop_supervising(self) -> None:
        for task in self._supervising:
            task.cancel()
        await asyncio.gather(*self._supervising, return_exceptions=True)

    async def _supervise_forever(self, replica: Replica) -> None:
        while True:
            await self.lives[replica].replica_is_free.wait()
            await asyncio.sleep(_BACK_OFF_S)
            self.lives[replica] = Life(self.place(replica))


@asynccontextmanager
async def stack_with_job(folder: Path, recipe: Recipe) -> AsyncIterator[Stack]:
    """A stack that will work on one job; nothing of it is left when the body ends."""
    for name in ("server", "switches", "logs"):
        (folder / name).mkdir(parents=True)
    write_tasks(folder / "data" / "files")
    async with AsyncExitStack() as opened:
        clock = Clock(folder)
        server = Server(folder / "server")
        server.environment = dict(clock.environment())
        opened.enter_context(server)
        user = await opened.enter_async_context(connect(server.url, me="user"))
        lines = {
            replica: await opened.enter_async_context(lossy_proxy(server)) for replica in REPLICAS
        }
        stack = Stack(folder, server, clock, user, lines)
        opened.push_async_callback(stack.end)
        await user.submit(
            JobRecord(
                id=JOB,
                created_at=time.time(),
                recipe=recipe,
            )
        )
        yield stack
