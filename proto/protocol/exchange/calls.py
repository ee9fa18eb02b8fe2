"""Calls on their way: asked by gateways, taken by rollouts, answered piece by piece.

No call is kept for long: its gateway holds it, says every few seconds that somebody still waits for
it, and asks again for what no rollout has. So all of it may be lost with the server, and expires.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import cast

from protocol import streams
from protocol.calls import Call, Pieces
from protocol.exchange.connection import Connection, block_ms
from protocol.exchange.rows import readable

_KEPT_S = 20
_PIECES_AT_ONCE = 100


class Calls(Connection):
    async def ask_call(self, call: Call, most: int) -> bool:
        """Have a call wait for a rollout, unless ``most`` wait already; False if so."""
        keys = [streams.CALLS, streams.CALL_BODIES, streams.waited_for_key(self.me)]
        args = [call.key, call.id, call.model_dump_json(), most, _KEPT_S, call.tries]
        return bool(await self.run("ask_call", keys, args))

    async def keep_calls(self, tries: Mapping[str, int]) -> set[str]:
        """Say that this gateway waits for these calls, by id; returns those that nobody has taken.

        To be said every few seconds: what is not is dropped by those that hold it.
        """
        keys = [streams.waited_for_key(self.me), streams.CALL_BODIES, streams.CALLS]
        args = [_KEPT_S, *(part for pair in tries.items() for part in pair)]
        return {call_id.decode() for call_id in await self.run("keep_calls", keys, args)}

    async def withdraw_call(self, call_id: str) -> None:
        """Take back a call that waits; one that was taken is dropped soon after."""
        keys = [streams.CALL_BODIES, streams.waited_for_key(self.me)]
        await self.run("withdraw_call", keys, [call_id])

    async def take_calls(
        self, served: str | None, count: int, patience_s: float = 5.0
    ) -> list[Call]:
        """Take up to ``count`` calls that wait for the weights of a key, oldest first.

        None are taken while the oldest of all has waited ``patience_s`` for other weights. Without
        a key: the oldest, whatever it is for.
        """
        keys = [streams.CALLS, streams.CALL_BODIES]
        found = await self.run("take_calls", keys, [served or "", count, patience_s])
        # The gateway of one that cannot be read hears nothing, and gives up.
        return list(readable(streams.CALL_BODIES, found, Call.model_validate_json))

    async def waiting_calls(self) -> dict[str, int]:
        """How many of the 256 oldest calls wait for what, by its key, the oldest's first."""
        found = await self.run("take_calls", [streams.CALLS, streams.CALL_BODIES], ["", 0, 0])
        pairs = zip(found[::2], found[1::2], strict=True)
        return dict(readable(streams.CALLS, pairs, lambda pair: (pair[0].decode(), pair[1])))

    async def wanted_calls(self, gateway: str, calls: Iterable[Call]) -> set[str]:
        """Those that their gateway still waits for, in the same try."""
        held = list(calls)
        if not held:
            return set()
        told = self.writer.hmget(streams.waited_for_key(gateway), [call.id for call in held])
        tries = await cast(Awaitable[list[bytes | None]], told)
        pairs = zip(held, tries, strict=True)
        return {call.id for call, found in pairs if found == b"%d" % call.tries}

    async def send_pieces(self, gateway: str, pieces: Pieces) -> None:
        args = [pieces.model_dump_json(exclude_defaults=True), _KEPT_S]
        await self.run("push", [streams.answers_key(gateway)], args)

    async def pieces(self, wait_s: float) -> list[Pieces]:
        """What rollouts have sent to this gateway, in order; nothing if none has in ``wait_s``."""
        popped = self.reader.blmpop(
            block_ms(wait_s) / 1000,
            1,
            streams.answers_key(self.me),
            direction="LEFT",
            count=_PIECES_AT_ONCE,
        )
        found = await cast(Awaitable[tuple[bytes, list[bytes]] | None], popped)
        texts = found[1] if found else ()
        return list(readable(streams.answers_key(self.me), texts, Pieces.model_validate_json))
