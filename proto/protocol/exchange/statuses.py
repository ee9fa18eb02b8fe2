"""What every process is doing, told by itself with each heartbeat."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import cast

from pydantic import ValidationError

from protocol import streams
from protocol.exchange.connection import Connection
from protocol.messages import Status


class Statuses(Connection):
    """One status per replica: a process that is started again takes the place of its last life."""

    async def show_status(self, status: Status) -> None:
        """Say what this process is doing. This works when memory is full."""
        args = [status.replica, status.model_dump_json()]
        await self.run("show_status", [streams.STATUS], args, client=self.pulse)

    async def statuses(self) -> dict[str, Status]:
        """What each process said last, by replica; what this release cannot read is left out."""
        stored = await cast(Awaitable[dict[bytes, bytes]], self.writer.hgetall(streams.STATUS))
        found: dict[str, Status] = {}
        for replica, text in stored.items():
            try:
                found[replica.decode()] = Status.model_validate_json(text)
            except ValidationError:
                continue
        return found

    async def forget_status(self, replica: str) -> None:
        """The process on this replica has left, or has shown no life for long."""
        await cast(Awaitable[int], self.pulse.hdel(streams.STATUS, replica))
