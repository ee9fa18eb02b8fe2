"""A rollout without an engine, on the real exchange: its model counts, "0 1 2 …"."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

from protocol.calls import Call, Piece, Pieces, Refusal, Token
from protocol.exchange import Exchange, connect
from protocol.messages import Doing, FinishReason, Status, VersionSpan

from tests.contract.gateway.stack import Stack

COUNTED = 1000  # the id of the token "0 "
_UNTIL = 5
_EVERY_S = 0.02


def parse_tokens(text: str) -> tuple[int, ...]:
    """Numbers are tokens, and so is every other character."""
    parts = re.findall(r"\d+ |.", text, re.DOTALL)
    return tuple(
        COUNTED + int(part) if part[0].isdigit() and part[-1] == " " else ord(part[0])
        for part in parts
    )


def the_token(number: int, top: int) -> Token:
    alternatives = (
        (COUNTED + number + place, f"{number + place} ", -1.0 - place) for place in range(top)
    )
    return Token(id=COUNTED + number, text=f"{number} ", logprob=-0.5, top=tuple(alternatives))


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
    dropped: set[str] = field(default_factory=set)
    stopping: Event = field(default_factory=Event)
    is_up: Event = field(default_factory=Event)

    async def run(self) -> None:
        async with connect(self.url, me=f"{self.name}.1") as exchange:
            beats = 0
            counts = dict[str, int]()
            while not self.stopping.is_set():
                beats += 1
                if self.max_tokens > 0:
                    await self._work(exchange, counts, beats)
                self.is_up.set()
                await asyncio.sleep(_EVERY_S)
            await exchange.forget_status(self.name)

    async def _work(self, exchange: Exchange, counts: dict[str, int], beats: int) -> None:
        await exchange.show_status(
            Status(
                name=self.name,
                service="rollout",
                replica=self.name,
                beats=beats,
                ready=True,
                doing=Doing.IDLE,
                for_s=0,
            )
        )
        for call in await exchange.take_calls(None, self.room) if self.room else ():
            self.calls.append(call)
            self.pending[call.id] = call
            counts[call.id] = len(call.so_far)
        for gateway in {call.gateway for call in self.pending.values()}:
            await self._continue(exchange, gateway, counts, looks=beats % 10 == 0)

    async def _continue(
        self, exchange: Exchange, gateway: str, counts: dict[str, int], looks: bool
    ) -> None:
        calls = [call for call in self.pending.values() if call.gateway == gateway]
        if looks:
            self.dropped |= {call.id for call in calls} - await exchange.wanted_calls(
                gateway, calls
            )
        pieces = [piece for call in calls if (piece := self._piece(call, counts)) is not None]
        for call_id in self.dropped | {piece.call_id for piece in pieces if piece.is_last}:
            self.pending.pop(call_id, None)
        header = {"rollout": self.name, "doing": "counts", "held": tuple(call.id for call in calls)}
        await exchange.send_pieces(gateway, Pieces(**header, pieces=tuple(pieces)))

    def _piece(self, call: Call, counts: dict[str, int]) -> Piece | None:
        if refusal := self.refuse(call):
            return Piece(call_id=call.id, tries=call.tries, refusal=refusal)
        if not self.begins(call) or self.max_tokens <= 0 or call.id in self.dropped:
            return None
        self.max_tokens -= 1
        number = counts[call.id]
        before = len(call.so_far)
        counts[call.id] = end = number + 1
        token = the_token(number, call.sampling.top_logprobs)
        stop = next((text for text in call.sampling.stop if text in token.text), None)
        finish = FinishReason.STOP if stop or end == _UNTIL else None
        if end == call.sampling.max_tokens:
            finish = FinishReason.LENGTH
        span = VersionSpan(attempt=1, version=self.version, start=0, end=end - before)
        num_messages, known_ids = (
            (call.begun.num_messages, call.begun.token_ids) if call.begun else (0, ())
        )
        new_text = "".join(str(turn["content"]) for turn in (call.messages or ())[num_messages:])
        text = call.text or json.dumps(call.tools)[2:-2] + new_text
        prompt = call.token_ids or (*known_ids, *parse_tokens(text))
        return Piece(
            call_id=call.id,
            tries=call.tries,
            prompt_ids=prompt if number == before else None,
            tokens=(token,),
            text="" if stop else token.text,
            spans=(span,),
            finish_reason=finish,
            stop_reason=stop,
        )


@contextmanager
def a_rollout(stack: Stack, **behaviour: object) -> Iterator[FakeRollout]:
    """One that takes calls; whether the gateway sees its status yet is open."""
    rollout = FakeRollout(stack.server.url, **behaviour)  # type: ignore[arg-type]
    thread = Thread(target=lambda: asyncio.run(rollout.run()))
    thread.start()
    try:
        assert rollout.is_up.wait(60)
        yield rollout
    finally:
        rollout.stopping.set()
        thread.join()


@contextmanager
def a_seen_rollout(stack: Stack, **behaviour: object) -> Iterator[FakeRollout]:
    """One by which the gateway has answered a call, which is forgotten."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Are you there?"}]}
    with a_rollout(stack, **behaviour) as rollout, stack.http() as http:
        deadline = time.monotonic() + 60
        while http.post("/v1/chat/completions", json=body).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        rollout.calls.clear()
        yield rollout
