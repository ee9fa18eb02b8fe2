"""What every process is doing, told by itself with each heartbeat."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import cast

from pydantic import ValidationError

from protocol import streams
from protocol.exchange.connection import Connection
from protocol.messages import Status


class Statuses(Connection):
    """One status per seat: a process that is started again takes the place of its last life."""

    async def show_status(self, status: Status) -> None:
        """Say what this process is doing. This works when memory is full."""
        args = [status.seat, status.model_dump_json()]
        await self.run("show_status", [streams.STATUS], args, client=self.pulse)

    async def statuses(self) -> dict[str, Status]:
        """What each process said last, by seat; what this release cannot read is left out."""
        stored = await cast(Awaitable[dict[bytes, bytes]], self.writer.hgetall(streams.STATUS))
        found: dict[str, Status] = {}
        for seat, text in stored.items():
            try:
                found[seat.decode()] = Status.model_validate_json(text)
            except ValidationError:
                continue
        return found

    async def forget_status(self, seat: str) -> None:
        """The process in this seat has left, or has shown no life for long."""
        await cast(Awaitable[int], self.pulse.hdel(streams.STATUS, seat))
