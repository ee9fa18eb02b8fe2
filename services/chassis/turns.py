"""Turns on the GPUs that a learner shares with engines, which sleep while it computes.

Each of these GPUs has two files in the memory folder, locked with `flock`, so that the kernel ends
the turn of a process that dies. The learner locks ``wanted``, then ``used``. Every engine that is
awake has a shared lock on ``used``, and releases it when ``wanted`` is locked. A process that fails
in its turn keeps the lock until it ends, since only then its memory is free.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from protocol.messages import Doing

from services.chassis.service import Service
from services.chassis.timeouts import LOCK_POLL_S


class Turns:
    """The turns of one process; without shared GPUs no turn has to wait."""

    def __init__(self, service: Service) -> None:
        self.service = service
        folder = service.deployment.memory_dir / ".turns"
        gpus = dict.fromkeys(service.deployment.turns)
        self._wanted = [folder / f"{gpu}.wanted" for gpu in gpus]
        self._used = [folder / f"{gpu}.used" for gpu in gpus]
        for path in (*self._wanted, *self._used):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    @property
    def is_shared(self) -> bool:
        return bool(self._used)

    @asynccontextmanager
    async def learner_turn(self) -> AsyncIterator[None]:
        """Use the GPUs, once every engine on them sleeps."""
        async with AsyncExitStack() as locks:
            with self.service.activity.during(Doing.WAITS_FOR_GPU, timed="wait_for_gpu"):
                for path in (*self._wanted, *self._used):
                    await locks.enter_async_context(_locked(path, fcntl.LOCK_EX))
            self._hold_gpus(locks)
            yield

    @asynccontextmanager
    async def engine_turn(self) -> AsyncIterator[None]:
        """Use the GPUs, with other engines, once the learner does not want them."""
        async with AsyncExitStack() as locks:
            for path in self._wanted:
                async with _locked(path, fcntl.LOCK_SH):
                    pass
            for path in self._used:
                await locks.enter_async_context(_locked(path, fcntl.LOCK_SH))
            self._hold_gpus(locks)
            yield

    def _hold_gpus(self, locks: AsyncExitStack) -> None:
        """Count the GPUs for this process until the locks are released."""
        locks.callback(setattr, self.service, "held_gpus", self.service.held_gpus)
        self.service.held_gpus = self.service.deployment.num_gpus

    async def wait_until_wanted(self) -> None:
        """Wait until the learner wants a GPU."""
        while all(_is_free(path) for path in self._wanted):
            await asyncio.sleep(LOCK_POLL_S)


@asynccontextmanager
async def _locked(path: Path, kind: int) -> AsyncIterator[None]:
    with _open_file(path) as file:
        while not _lock(file, kind):
            await asyncio.sleep(LOCK_POLL_S)
        yield


def _is_free(path: Path) -> bool:
    with _open_file(path) as file:
        return _lock(file, fcntl.LOCK_SH)


@contextmanager
def _open_file(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o660)
    try:
        yield file
    finally:
        os.close(file)


def _lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
