"""The pool's end of a worker's pipe: a call goes out, its answer comes in.

It is driven by the event loop's readiness callbacks: no task per worker, one system call each way.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum, auto

from services.grader.pool_worker import PART_BYTES, FrameError, payload_of


class NoAnswer(Enum):
    """Why a call was not answered."""

    LATE = auto()  # the deadline passed
    CLOSED = auto()  # the worker closed its end during the call, most likely by dying
    GARBLED = auto()  # what came is no answer
    GONE = auto()  # the worker had been dead or unusable before the call


class Pipe:
    """One call at a time. Once something went wrong it is not `usable` any more."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.usable = True
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[bytes | NoAnswer] | None = None
        self._unsent = memoryview(b"")
        self._received = bytearray()
        self._loop.add_reader(end, self._receive)

    async def ask(self, frame: bytes, deadline_s: float) -> bytes | NoAnswer:
        """Send a call; returns the JSON of its answer, or why there is none.

        An answer that is there when the deadline is noticed counts, however late this process is.
        """
        if not self.usable:
            return NoAnswer.GONE
        self._answer = self._loop.create_future()
        self._unsent, self._received = memoryview(frame), bytearray()
        deadline = self._loop.call_later(deadline_s, self._give_up, NoAnswer.LATE)
        self._send(NoAnswer.GONE)
        if self._unsent and self.usable:
            self._loop.add_writer(self._end, self._send_more)
        try:
            return await self._answer
        finally:
            deadline.cancel()
            self._answer = None

    def close(self) -> None:
        """Close this end, which ends an idle worker."""
        self._give_up(NoAnswer.CLOSED)
        self._end.close()

    def _send(self, if_closed: NoAnswer) -> None:
        try:
            self._unsent = self._unsent[self._end.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._give_up(if_closed)

    def _send_more(self) -> None:
        self._send(NoAnswer.CLOSED)
        if not self._unsent:
            self._loop.remove_writer(self._end)

    def _receive(self) -> None:
        try:
            part = self._end.recv(PART_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._give_up(NoAnswer.CLOSED)
        elif self._answer is None or self._answer.done() or self._unsent:
            self._give_up(NoAnswer.GARBLED)  # nobody asked
        else:
            self._take(part)

    def _take(self, part: bytes) -> None:
        self._received += part
        try:
            payload = payload_of(self._received)
        except FrameError:
            self._give_up(NoAnswer.GARBLED)
            return
        if payload is not None:
            self._settle(payload)

    def _give_up(self, why: NoAnswer) -> None:
        if self.usable:
            self.usable = False
            self._loop.remove_reader(self._end)
            self._loop.remove_writer(self._end)
        self._settle(why)

    def _settle(self, answer: bytes | NoAnswer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)
