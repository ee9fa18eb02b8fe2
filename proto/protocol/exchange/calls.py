"""Calls: gateways queue them, and rollouts take them and answer in pieces.

The gateway of a call stores it. Every few seconds it renews the calls that clients wait for, and
queues those again that no rollout has. So all keys expire, and the server may lose them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import cast

from protocol import streams
from protocol.calls import Call, Pieces
from protocol.exchange.connection import Connection, block_ms, pairs
from protocol.exchange.rows import readable

_EXPIRY_S = 20  # gateways renew their calls every few seconds
_MAX_PIECES = 100  # in one read


class Calls(Connection):
    async def ask_call(self, call: Call, limit: int) -> bool:
        """Queue a call for a rollout; False if ``limit`` calls wait already."""
        keys = [streams.CALLS, streams.CALL_BODIES, streams.waited_for_key(self.me)]
        args = [call.key, call.id, call.model_dump_json(), limit, _EXPIRY_S, call.tries]
        return bool(await self.run("ask_call", [*keys, streams.NEW_CALL], args))

    async def keep_calls(self, tries: Mapping[str, int]) -> set[str]:
        """Renew this gateway's calls, given by id; return those that no rollout has taken.

        A rollout drops a call that its gateway does not renew every few seconds.
        """
        keys = [streams.waited_for_key(self.me), streams.CALL_BODIES, streams.CALLS]
        args: list[str | int] = [_EXPIRY_S]
        for call_id, number in tries.items():
            args += [call_id, number]
        call_ids: list[bytes] = await self.run("keep_calls", keys, args)
        return {call_id.decode() for call_id in call_ids}

    async def withdraw_call(self, call_id: str) -> None:
        """Take back a waiting call; the rollout that has taken it drops it soon after."""
        keys = [streams.CALL_BODIES, streams.waited_for_key(self.me)]
        await self.run("withdraw_call", keys, [call_id])

    async def take_calls(
        self, served: str | None, count: int, patience_s: float = 5.0
    ) -> list[Call]:
        """Take up to ``count`` calls for the weights of a key, oldest first.

        It takes none while the oldest call of all has waited ``patience_s`` for other weights.
        Without a key it takes the oldest calls for any weights.
        """
        keys = [streams.CALLS, streams.CALL_BODIES]
        bodies = await self.run("take_calls", keys, [served or "", count, patience_s])
        # The gateway of an unreadable call gets no answer, and gives up.
        return list(readable(streams.CALL_BODIES, bodies, Call.model_validate_json))

    async def waiting_calls(self) -> dict[str, int]:
        """Count the 256 oldest calls by the key of their weights, the oldest call's key first."""
        keys = [streams.CALLS, streams.CALL_BODIES]
        reply = await self.run("take_calls", keys, ["", 0, 0])
        counts = pairs(reply).items()
        return dict(readable(streams.CALLS, counts, lambda row: (row[0].decode(), row[1])))

    async def wanted_calls(self, gateway: str, calls: Iterable[Call]) -> set[str]:
        """Return the ids of the calls that their gateway still waits for, in the same try."""
        tries = {call.id: call.tries for call in calls}
        if not tries:
            return set()
        reply = self.writer.hmget(streams.waited_for_key(gateway), [*tries])
        stored = await cast(Awaitable[list[bytes | None]], reply)
        return {
            call_id
            for (call_id, number), value in zip(tries.items(), stored, strict=True)
            if value == b"%d" % number
        }

    async def send_pieces(self, gateway: str, pieces: Pieces) -> None:
        text = pieces.model_dump_json(exclude_defaults=True)
        await self.run("push", [streams.answers_key(gateway)], [text, _EXPIRY_S])

    async def pieces(self, wait_s: float) -> list[Pieces]:
        """Return the pieces for this gateway in order; none if none arrive in ``wait_s``."""
        key = streams.answers_key(self.me)
        popped = self.reader.blmpop(
            block_ms(wait_s) / 1000, 1, key, direction="LEFT", count=_MAX_PIECES
        )
        reply = await cast(Awaitable[tuple[bytes, list[bytes]] | None], popped)
        texts = reply[1] if reply else ()
        return list(readable(key, texts, Pieces.model_validate_json))
