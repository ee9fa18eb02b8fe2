"""How much of a connection a service takes before it knows whose it is: uvicorn has no such limits.

Anyone may connect, also who has no key.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD_BYTES = 2**15
MAX_CONNECTIONS = 800  # with a file for each, 1,600 of those that a process may have open
MAX_OF_ADDRESS = 200  # not where proxies are trusted: many clients have the address of one
_THIS_MACHINE = {"127.0.0.1", "::1"}
_REQUEST_S = 10.0  # from its first byte to the end of its headers
_TAKING_S = 30.0  # within which a client takes something of an answer
_LINGER_S, _MOST_LINGERING = 0.5, 50  # refused ones
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\n\r\ntoo many connections\n"
)


class LimitedConnection(H11Protocol):
    """HTTP/1.1 with limits on the number of connections, and on the size and time of headers.

    What is left of a body after its answer has the same time: the client may still be sending. A
    client that takes nothing of its answer for a while is cut off.
    """

    _deadline: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None
    _is_refused = False
    _lingering = 0  # of all refused ones

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept it, unless there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # `pause_writing` as soon as anything waits
        if len(self.connections) > MAX_CONNECTIONS or self._has_too_many():
            self._refuse()
        self._limit_time()

    def data_received(self, data: bytes) -> None:
        """Read on, in pieces: a limit on what is not yet whole says nothing about a large piece."""
        if self._is_refused:
            return
        for begin in range(0, len(data), MAX_HEAD_BYTES):
            if not self.transport.is_closing():
                super().data_received(data[begin : begin + MAX_HEAD_BYTES])
        self._limit_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._unset_deadline()
        if self._taking is not None:
            self._taking.cancel()

    def pause_writing(self) -> None:
        """Wait for the client to take what is written, as long as it takes something."""
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        """Go on writing."""
        if self._taking is not None:
            self._taking.cancel()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; headers that are too large are told so."""
        error = sys.exception()
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            msg = f"The headers are larger than {MAX_HEAD_BYTES} bytes."
        super().send_400_response(msg)

    def _refuse(self) -> None:
        """Say so, and close it soon: closed with unread bytes, it would be reset, unanswered."""
        self._is_refused = True
        self.connections.discard(self)  # type: ignore[arg-type]
        self.transport.write(_FULL)
        if LimitedConnection._lingering >= _MOST_LINGERING:
            return self.transport.close()
        with suppress(OSError):  # it may be gone already
            self.transport.write_eof()
        LimitedConnection._lingering += 1
        self.loop.call_later(_LINGER_S, self._close_refused)

    def _close_refused(self) -> None:
        LimitedConnection._lingering -= 1
        self.transport.close()

    def _look_later(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._taking = self.loop.call_later(_TAKING_S, self._look, waiting)

    def _look(self, waited: int) -> None:
        if self.transport.get_write_buffer_size() < waited:
            self._look_later()
        else:
            self.transport.abort()

    def _has_too_many(self) -> bool:
        if self.config.forwarded_allow_ips or _host(self) in _THIS_MACHINE:
            return False
        return sum(_host(other) == _host(self) for other in self.connections) > MAX_OF_ADDRESS

    def _limit_time(self) -> None:
        is_worked_on = self.conn.their_state is not h11.IDLE and self.conn.our_state is not h11.DONE
        if is_worked_on:
            self._unset_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_REQUEST_S, self.transport.close)

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _host(connection: Any) -> str | None:
    return connection.client[0] if connection.client else None
