"""Control: what the user or the supervisor wants of the job, obeyed wherever the learner waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

from protocol.messages import ErrorKind, JobError, Requested

from services.chassis.service import Service

T = TypeVar("T")


class Wish(Exception):
    """What the user or the supervisor wants, which ends the attempt."""


class CancelRequested(Wish):
    """The user wants the job to end."""


class PauseRequested(Wish):
    """The job is to pause; ``error`` says why, and is None if the user wants it."""

    def __init__(self, error: JobError | None = None) -> None:
        super().__init__(error or "")
        self.error = error


class StopRequested(Wish):
    """The process is stopped; the job continues in its next attempt."""


class Control:
    def __init__(self, service: Service, job_id: str) -> None:
        self.service = service
        self.job_id = job_id
        self.requested = Requested.RUN
        self.pause_error: JobError | None = None  # None if the user wants the pause
        self.doing = service.activity.during
        self._interrupted = asyncio.Event()

    async def watch_forever(self) -> None:
        """Consumes the requested state; produces an interruption of whatever waits.

        Waits for: the next heartbeat; in the end, to be cancelled. Unblocked by: time, the service
        stopping.
        """
        while not await self.service.pause(self.service.deployment.heartbeat_s):
            await self.refresh()
        self._interrupted.set()
        await asyncio.Event().wait()

    async def end_preparation(self) -> NoReturn:
        """Consumes the requested state; produces the `Wish` to which the preparation gives way.

        Waits for: the next heartbeat. Unblocked by: time, the service stopping.
        """
        while True:
            await self.refresh()
            self.obey()
            await self.service.pause(self.service.deployment.heartbeat_s)

    async def refresh(self) -> None:
        requested = await self.service.exchange.requested_state(self.job_id)
        self.requested = requested or Requested.CANCEL
        if self.requested is Requested.RUN:
            self._interrupted.clear()
        else:
            self._interrupted.set()

    def obey(self) -> None:
        if self.service.stopping.is_set():
            raise StopRequested
        if self.requested is Requested.CANCEL:
            raise CancelRequested
        if self.requested is Requested.PAUSE:
            raise PauseRequested(self.pause_error)

    async def pause(self, message: str, kind: ErrorKind = ErrorKind.PROBLEM) -> None:
        """Have the job pause where it may, and show people the message."""
        self.pause_error = JobError(message=message, kind=kind)  # before anything may obey
        await self.service.exchange.request_state(self.job_id, Requested.PAUSE)
        await self.refresh()

    async def unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of something that only waits, given up when anything but running is wanted."""
        waiting = asyncio.ensure_future(work)
        interrupted = asyncio.ensure_future(self._interrupted.wait())
        try:
            await asyncio.wait({waiting, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                self.obey()
            return await waiting
        finally:
            interrupted.cancel()
            waiting.cancel()


async def first_to_end(*coroutines: Coroutine[Any, Any, T]) -> T:
    """Run side by side until one ends or raises; then stop the others, and return its result."""
    tasks = {asyncio.create_task(coroutine) for coroutine in coroutines}
    for task in tasks:  # several may fail at once, or while this is being cancelled itself
        task.add_done_callback(_retrieve_error)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        results = [task.result() for task in done]
        return results[0]
    finally:
        # A library may take one cancellation for a timeout of its own.
        while running := {task for task in tasks if not task.done()}:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=1.0)


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's error, so that asyncio does not report it as never retrieved."""
    if not task.cancelled():
        task.exception()
