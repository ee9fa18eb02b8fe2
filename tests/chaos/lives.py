"""The processes of a run, from their fork to their end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.chaos.seats import Place

_MODULES = {"learner": "learner_seat", "rollout": "worker_seats", "grader": "worker_seats"}


class Life:
    """One life on a seat."""

    def __init__(self, zygote: _Zygote, number: int) -> None:
        self.zygote = zygote
        self.number = number
        self.ended = asyncio.Event()
        self.seat_is_free = asyncio.Event()  # since it has ended, or another is to take its place
        self.exit_status: int | None = None  # negative: the signal that ended it

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def ask_to_stop(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, signum: signal.Signals) -> None:
        """It goes by the zygote, who knows whether the process is still there."""
        self.zygote.say(f"signal {self.number} {int(signum)}")


@dataclass
class _Zygote:
    process: asyncio.subprocess.Process
    lives: list[Life] = field(default_factory=list)

    def start(self, place: Place) -> Life:
        life = Life(self, len(self.lives))
        self.lives.append(life)
        self.say(f"start {life.number} {place.to_json()}")
        return life

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    async def listen_forever(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            _, number, status = line.split()
            life = self.lives[int(number)]
            life.exit_status = int(status)
            life.ended.set()
            life.seat_is_free.set()


@dataclass(frozen=True)
class Zygotes:
    """Who starts the processes: one with the learner's imports, one with those of the others."""

    by_module: dict[str, _Zygote]

    def start(self, place: Place) -> Life:
        """Begin a life; it does not wait for it."""
        return self.by_module[_MODULES[place.seat.role]].start(place)


@asynccontextmanager
async def zygotes() -> AsyncIterator[Zygotes]:
    """Zygotes for as long as the body runs; none of their children outlives them."""
    started = {module: await _start(module) for module in set(_MODULES.values())}
    listening = [asyncio.create_task(zygote.listen_forever()) for zygote in started.values()]
    try:
        yield Zygotes(started)
    finally:
        for zygote in started.values():
            zygote.process.kill()
            await zygote.process.wait()
        await asyncio.gather(*listening)


async def _start(module: str) -> _Zygote:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.chaos.zygote", f"tests.chaos.{module}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    return _Zygote(process)
