"""Control: requests of the user and the supervisor, obeyed wherever the learner waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

from protocol.messages import ErrorKind, JobError, Requested

from services.chassis.service import Service

T = TypeVar("T")


class Interruption(Exception):
    """A request of the user or the supervisor ends the attempt."""


class CancelRequested(Interruption):
    """The user ends the job."""


class PauseRequested(Interruption):
    """The job is to pause; ``error`` says why, and is None if the user pauses it."""

    def __init__(self, error: JobError | None = None) -> None:
        super().__init__(error or "")
        self.error = error


class StopRequested(Interruption):
    """The process stops; the job continues in its next attempt."""


class Control:
    def __init__(self, service: Service, job_id: str) -> None:
        self.service = service
        self.job_id = job_id
        self.requested = Requested.RUN
        self.pause_error: JobError | None = None  # None if the user pauses the job
        self.during = service.activity.during
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
        """Consumes the requested state; produces the `Interruption` of the preparation.

        Waits for: the next heartbeat. Unblocked by: time, the service stopping.
        """
        while True:
            await self.refresh()
            self.obey()
            await self.service.pause(self.service.deployment.heartbeat_s)

    async def refresh(self) -> None:
        requested = await self.service.exchange.requested_state(self.job_id)
        requested = requested or Requested.CANCEL
        if requested is Requested.RUN and self.requested is Requested.PAUSE:
            self.pause_error = None
        self.requested = requested
        if self.requested is Requested.RUN:
            self._interrupted.clear()
        else:
            self._interrupted.set()

    def obey(self) -> None:
        """Raise the `Interruption` that is requested, if any."""
        if self.service.stopping.is_set():
            raise StopRequested
        if self.requested is Requested.CANCEL:
            raise CancelRequested
        if self.requested is Requested.PAUSE:
            raise PauseRequested(self.pause_error)

    async def pause(self, message: str, kind: ErrorKind = ErrorKind.PROBLEM) -> None:
        """Request that the job pauses, with a message for its user."""
        # Set it first: another coroutine may obey during the request.
        self.pause_error = JobError(message=message, kind=kind)
        await self.service.exchange.request_state(self.job_id, Requested.PAUSE)
        await self.refresh()

    async def wait_interruptibly(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine that only waits; cancel it at an interruption."""
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
