"""A client that sends calls to rollouts and receives their pieces, as a gateway does."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from protocol.calls import Call, CallSampling, Piece, Pieces, Refusal, Served, Token
from protocol.exchange import Exchange
from protocol.recipe import Model

JOB = Served(name="job", job_id="job", model=Model(path="p"))


def a_call(
    call_id: str = "call-0",
    *,
    served: Served = JOB,
    **changes: Any,
) -> Call:
    values = {"id": call_id, "gateway": "gateway-1", "served": served}
    if not changes.keys() & {"messages", "token_ids"}:
        values["text"] = "1+1="
    values["sampling"] = CallSampling(**changes.pop("sampling", {}))
    return Call.model_validate(values | changes)


@dataclass
class CallClient:
    """The gateway ``gateway-1``: sends calls, and renews them until they have ended."""

    exchange: Exchange
    messages: list[Pieces] = field(default_factory=list)
    pieces: dict[str, list[Piece]] = field(default_factory=lambda: defaultdict(list))
    waiting: dict[str, int] = field(default_factory=dict)

    async def ask(self, *calls: Call) -> None:
        for call in calls:
            self.waiting[call.id] = call.tries
            assert await self.exchange.ask_call(call, limit=100)

    async def listen(self) -> None:
        await self.exchange.keep_calls(self.waiting)
        for message in await self.exchange.pieces(0.05):
            self.messages.append(message)
            for piece in message.pieces:
                self.pieces[piece.call_id].append(piece)
                if piece.is_last:
                    self.waiting.pop(piece.call_id, None)

    async def until_over(self, call: Call) -> list[Piece]:
        """All pieces of the call's last try."""
        async with asyncio.timeout(120):
            while call.id in self.waiting:
                await self.listen()
        return [piece for piece in self.pieces[call.id] if piece.tries == call.tries]

    async def until_begun(self, call: Call) -> None:
        async with asyncio.timeout(120):
            while not self.tokens(call):
                await self.listen()

    def tokens(self, call: Call) -> list[Token]:
        return [token for piece in self.pieces[call.id] for token in piece.tokens]

    async def answered(self, call: Call) -> list[Piece]:
        await self.ask(call)
        return await self.until_over(call)

    async def refusal(self, call: Call) -> Refusal:
        """Why a call, which may have been sent before, is not answered."""
        if call.id not in self.waiting and not self.pieces[call.id]:
            await self.ask(call)
        *_, last = await self.until_over(call)
        assert last.refusal is not None
        return last.refusal
