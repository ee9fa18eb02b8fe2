"""A rollout without an engine, on the real exchange: its model counts, "0 1 2 …"."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

from protocol.calls import Call, Piece, Pieces, Refusal, Token
from protocol.exchange import Exchange, connect
from protocol.messages import FinishReason, VersionSpan

from tests.builders import a_status
from tests.contract.gateway.stack import Stack, beside

COUNTED = 1000  # the id of the token "0 "
_UNTIL = 5


def parse_tokens(text: str) -> tuple[int, ...]:
    """Numbers are tokens, and so is every other character."""
    parts = re.findall(r"(\d+) |(.)", text, re.DOTALL)
    return tuple(COUNTED + int(number) if number else ord(other) for number, other in parts)


def a_token(number: int, num_alternatives: int) -> Token:
    alternatives = [
        (COUNTED + number + place, f"{number + place} ", -1.0 - place)
        for place in range(num_alternatives)
    ]
    return Token(
        id=COUNTED + number,
        text=f"{number} ",
        logprob=-0.5,
        top=tuple(alternatives),
    )


@dataclass
class FakeRollout:
    url: str
    name: str = "rollout-1"
    version: int = 7
    room: int = 100
    max_tokens: float = float("inf")  # tokens in all, after which it falls silent
    refuse: Callable[[Call], Refusal | None] = lambda _: None
    begins: Callable[[Call], bool] = lambda _: True
    calls: list[Call] = field(default_factory=list)
    pending: dict[str, Call] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    is_up: Event = field(default_factory=Event)

    async def run(self, stopping: Event) -> None:
        async with connect(self.url, me=f"{self.name}.1") as exchange:
            beats = 0
            while not stopping.is_set():
                beats += 1
                if self.max_tokens > 0:
                    await self._work(exchange, beats)
                self.is_up.set()
                await asyncio.sleep(0.02)
            await exchange.forget_status(self.name)

    async def _work(self, exchange: Exchange, beats: int) -> None:
        status = a_status(
            "rollout",
            name=self.name,
            replica=self.name,
            beats=beats,
        )
        await exchange.show_status(status)
        for call in await exchange.take_calls(None, self.room) if self.room else ():
            self.calls.append(call)
            self.pending[call.id] = call
            self.counts[call.id] = len(call.so_far)
        for gateway in {call.gateway for call in self.pending.values()}:
            calls = [call for call in self.pending.values() if call.gateway == gateway]
            if beats % 10 == 0:
                wanted = await exchange.wanted_calls(gateway, calls)
                self.dropped |= {call.id for call in calls} - wanted
            await exchange.send_pieces(gateway, self._continue(calls))

    def _continue(self, calls: list[Call]) -> Pieces:
        pieces = [piece for call in calls if (piece := self._piece(call)) is not None]
        for call_id in self.dropped | {piece.call_id for piece in pieces if piece.is_last}:
            self.pending.pop(call_id, None)
        return Pieces(
            rollout=self.name,
            doing="counts",
            held=tuple(call.id for call in calls),
            pieces=tuple(pieces),
        )

    def _piece(self, call: Call) -> Piece | None:
        if refusal := self.refuse(call):
            return Piece(call_id=call.id, tries=call.tries, refusal=refusal)
        if not self.begins(call) or self.max_tokens <= 0 or call.id in self.dropped:
            return None
        self.max_tokens -= 1
        number = self.counts[call.id]
        self.counts[call.id] = end = number + 1
        token = a_token(number, call.sampling.top_logprobs)
        stop = next((text for text in call.sampling.stop if text in token.text), None)
        finish = FinishReason.STOP if stop or end == _UNTIL else None
        if end == call.sampling.max_tokens:
            finish = FinishReason.LENGTH
        before = len(call.so_far)
        return Piece(
            call_id=call.id,
            tries=call.tries,
            prompt_ids=_prompt_ids(call) if number == before else None,
            tokens=(token,),
            text="" if stop else token.text,
            spans=(
                VersionSpan(
                    attempt=1,
                    version=self.version,
                    start=0,
                    end=end - before,
                ),
            ),
            finish_reason=finish,
            stop_reason=stop,
        )


def _prompt_ids(call: Call) -> tuple[int, ...]:
    if call.token_ids:
        return call.token_ids
    known = call.begun.num_messages if call.begun else 0
    new_text = "".join(str(turn["content"]) for turn in (call.messages or ())[known:])
    new_ids = parse_tokens(call.text or json.dumps(call.tools)[2:-2] + new_text)
    return (call.begun.token_ids if call.begun else ()) + new_ids


@contextmanager
def a_rollout(stack: Stack, **behaviour: object) -> Iterator[FakeRollout]:
    """One that takes calls; they wait until the gateway has seen its status."""
    rollout = FakeRollout(stack.server.url, **behaviour)  # type: ignore[arg-type]
    with beside(lambda stopping: asyncio.run(rollout.run(stopping))):
        assert rollout.is_up.wait(60)
        yield rollout
