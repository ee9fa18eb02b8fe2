"""Who gets a worker of the pool next: calls in the order in which they came, suspects last."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

SeatT = TypeVar("SeatT")


class Seats(Generic[SeatT]):
    """The places of the pool, handed out first come, first served.

    A suspect gets a seat only while nobody else waits and suspects hold less than half of all
    seats (with one seat: less than that one), so that calls that hang never shut out the others.
    Suspects are not forgotten for ever: their callers wait with them, and callers are limited.
    """

    def __init__(self, seats: Iterable[SeatT]) -> None:
        self._free = deque(seats)
        self._size = len(self._free)
        self._most_suspects = max(1, self._size // 2)
        self._suspects_seated = 0
        self._waiting: deque[asyncio.Future[SeatT]] = deque()
        self._suspects_waiting: deque[asyncio.Future[SeatT]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    async def take(self, *, suspect: bool) -> SeatT:
        """Wait for a seat; whoever is cancelled while waiting has none."""
        turn: asyncio.Future[SeatT] = asyncio.get_running_loop().create_future()
        (self._suspects_waiting if suspect else self._waiting).append(turn)
        self._hand_out()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came in the moment of the cancellation
                self.give_back(turn.result(), suspect=suspect)
            raise

    def give_back(self, seat: SeatT, *, suspect: bool) -> None:
        """Let the next one sit down."""
        self._free.append(seat)
        self._suspects_seated -= suspect
        self._hand_out()

    async def all_free(self) -> list[SeatT]:
        """Wait until every seat is free and nobody waits for one; returns the seats."""
        await self._idle.wait()
        return list(self._free)

    def _hand_out(self) -> None:
        while self._free and (turn := self._next_turn()):
            turn.set_result(self._free.popleft())
        if len(self._free) == self._size:
            self._idle.set()
        else:
            self._idle.clear()

    def _next_turn(self) -> asyncio.Future[SeatT] | None:
        turn = _first_alive(self._waiting)
        if turn is None and self._suspects_seated < self._most_suspects:
            turn = _first_alive(self._suspects_waiting)
            self._suspects_seated += turn is not None
        return turn


def _first_alive(turns: deque[asyncio.Future[SeatT]]) -> asyncio.Future[SeatT] | None:
    while turns:
        turn = turns.popleft()
        if not turn.done():
            return turn
    return None
