"""The desk asks calls of rollouts, and asks again where one falls silent, until all has come."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from protocol.calls import Call, Piece, Pieces, Refusal, Served, Token
from protocol.exchange import Disconnected, Exchange
from protocol.exchange.connection import MemoryFull
from protocol.messages import FinishReason, VersionSpan

from services.chassis.service import Service, set_within
from services.gateway.errors import Problem, in_time, own_fault

log = logging.getLogger(__name__)
_EVERY_S = 2.0
_LOOK_S = 1.0
_PAUSE_S = 0.5  # after a refusal, before the call is asked again
_PATIENCE_S = 300.0  # with rollouts that do not take a call
_MOST = 1000
_MOST_LOSSES = 3
_LOST = Refusal(status=503, code="rollout_lost", message="the rollout fell silent", again=True)


@dataclass(eq=False)
class Answer:
    """What has come of a call, in all its tries."""

    call: Call  # as it was asked last
    resolve: Callable[[], Awaitable[Served]]  # the weights for the next try
    news: asyncio.Event = field(default_factory=asyncio.Event)  # set whenever something has come
    asked_at: float = field(default_factory=time.time)
    prompt_ids: tuple[int, ...] = ()
    tokens: list[Token] = field(default_factory=list)
    text: str = ""
    spans: tuple[VersionSpan, ...] = ()
    rollouts: tuple[str, ...] = ()
    doing: str = ""  # what the call waits for
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    problem: Problem | None = None  # for which no more will come
    is_done: bool = False
    alive_at: float = field(default_factory=time.monotonic)  # when it last waited or was held
    held_at: float = field(default_factory=time.monotonic)
    losses: int = 0
    _refusal: Refusal | None = None
    _earlier: tuple[VersionSpan, ...] = ()  # of the tries before
    _try_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, piece: Piece, rollout: str) -> None:
        """Add what a rollout has sent, unless it is of an earlier try."""
        if piece.tries != self.call.tries or self._try_ended.is_set():
            return
        before = len(self.call.so_far)
        if piece.spans and before + piece.spans[-1].end != len(self.tokens) + len(piece.tokens):
            return self.end_try(_LOST)  # a piece is missing, which went with the server's memory
        self.prompt_ids = self.prompt_ids or piece.prompt_ids or ()
        self.tokens += piece.tokens
        self.text += piece.text
        self.spans = _joined(self._earlier, piece.spans, before) if piece.spans else self.spans
        self.rollouts = tuple(dict.fromkeys((*self.rollouts, rollout)))
        self.stop_reason, self.finish_reason = piece.stop_reason, piece.finish_reason
        if piece.is_last:
            self.end_try(piece.refusal)
        self.news.set()

    def end_try(self, refusal: Refusal | None) -> None:
        self._refusal = refusal
        self._try_ended.set()

    async def refusal(self) -> Refusal | None:
        """Why the try ended, None if all has come."""
        await self._try_ended.wait()
        return self._refusal

    def begin_again(self, served: Served) -> None:
        so_far = tuple(token.id for token in self.tokens)
        changes = {"tries": self.call.tries + 1, "served": served, "so_far": so_far}
        self.call = self.call.model_copy(update=changes)
        self._earlier, self.doing = self.spans, ""
        self._try_ended.clear()


def _joined(
    earlier: Sequence[VersionSpan], spans: Iterable[VersionSpan], before: int
) -> tuple[VersionSpan, ...]:
    """The spans of a response whose first tokens are those of earlier tries."""
    joined = list(earlier)
    for span in spans:
        moved = {"start": span.start + before, "end": span.end + before}
        if joined and (joined[-1].attempt, joined[-1].version) == (span.attempt, span.version):
            moved["start"] = joined.pop().start
        joined.append(span.model_copy(update=moved))
    return tuple(joined)


class Desk:
    """Holds the calls that clients of this gateway wait for.

    Args:
        rollouts: tells the living rollouts, in words, each with what it does.
    """

    def __init__(
        self,
        exchange: Exchange,
        dead_after_s: float,
        rollouts: Callable[[], Sequence[str]],
        most: int = _MOST,
    ) -> None:
        self.exchange, self.dead_after_s, self.rollouts = exchange, dead_after_s, rollouts
        self.most = most
        self._waiting: dict[str, Answer] = {}
        self._heard_at = float("-inf")  # of any rollout
        # What is kept is a whole, so nothing may be asked between its list and the server.
        self._turn = asyncio.Lock()

    async def answering(
        self,
        answers: Sequence[Answer],
        then: Callable[[Answer], None] | None = None,
    ) -> AsyncGenerator[None, None]:
        """Ask for answers, which share their ``news``, until all are done; or withdraw them.

        Yields when something has come, and every second. ``then`` is told of each that is done, in
        a thread.
        """
        tasks = [asyncio.create_task(self._follow(answer, then)) for answer in answers]
        is_over = False
        try:
            while not is_over:
                await set_within(answers[0].news, _LOOK_S)
                answers[0].news.clear()
                is_over = all(answer.is_done for answer in answers)
                yield
        finally:
            for task in tasks:
                task.cancel()

    async def _follow(self, answer: Answer, then: Callable[[Answer], None] | None) -> None:
        self._waiting[answer.call.id] = answer
        try:
            await self._until_all_has_come(answer)
        except asyncio.CancelledError:
            answer.problem = Problem(499, "the client left", code="client_left")
        except Problem as problem:
            answer.problem = problem
        except Exception as error:
            log.exception("a call failed")
            answer.problem = own_fault(error)
        del self._waiting[answer.call.id]
        if answer.problem is not None:
            with suppress(Problem):
                await in_time(self.exchange.withdraw_call(answer.call.id))
        try:
            if then is not None:
                await asyncio.to_thread(then, answer)
        except OSError as error:
            answer.problem = own_fault(error)
        answer.is_done = True
        answer.news.set()

    async def _until_all_has_come(self, answer: Answer) -> None:
        if not self.rollouts() and time.monotonic() - self._heard_at > self.dead_after_s:
            raise _unavailable("no rollout shows life: see that one runs", "no_rollout")
        await self._ask(answer)
        while (refusal := await answer.refusal()) is not None:
            if not refusal.again:
                raise Problem(refusal.status, refusal.message, code=refusal.code)
            await self._ask_again(answer, is_lost=refusal is _LOST)

    async def _ask_again(self, answer: Answer, is_lost: bool) -> None:
        answer.losses += is_lost
        if answer.losses == _MOST_LOSSES:
            raise _unavailable(f"{_MOST_LOSSES} rollouts fell silent over it", "rollout_lost")
        if not is_lost:
            await asyncio.sleep(_PAUSE_S)
        answer.begin_again(await answer.resolve())
        await self._ask(answer)

    async def _ask(self, answer: Answer) -> None:
        async with self._turn:
            answer.alive_at = time.monotonic()
            try:
                has_room = await in_time(self.exchange.ask_call(answer.call, self.most))
            except MemoryFull as error:
                raise _unavailable("the memory of Redis is full", "memory_full") from error
        if not has_room:
            raise _unavailable(f"{self.most:,} calls wait already", "too_many_calls")

    async def read_forever(self, service: Service) -> None:
        """Consumes what rollouts send; produces answers.

        Waits for: the next pieces. Unblocked by: pieces, time, or the service stopping.
        """
        while not service.stopping.is_set():
            try:
                for sent in await self.exchange.pieces(_LOOK_S):
                    self._hear(sent)
            except Disconnected:  # as /readyz says
                pass
            except Exception:  # what is lost is asked again
                log.exception("cannot read what rollouts send")
                await service.pause(_LOOK_S)

    def _hear(self, sent: Pieces) -> None:
        now = self._heard_at = time.monotonic()
        for call_id in {*sent.held, *(piece.call_id for piece in sent.pieces)}:
            if answer := self._waiting.get(call_id):
                answer.alive_at = answer.held_at = now
                answer.doing = sent.doing
        for piece in sent.pieces:
            if answer := self._waiting.get(piece.call_id):
                answer.take(piece, sent.rollout)

    async def keep_forever(self, service: Service) -> None:
        """Consumes the calls that wait; produces signs that they do, and ends the tries of others.

        Waits for: the next look. Unblocked by: time, or the service stopping, which ends all.
        """
        while not await service.pause(_EVERY_S):
            try:
                await self.keep()
            except Problem:  # no rollout is to blame for a Redis that is away
                for answer in self._waiting.values():
                    answer.alive_at = time.monotonic()
            except Exception:
                log.exception("cannot keep calls")
        for answer in self._waiting.values():
            answer.end_try(Refusal(status=503, code="stopping", message="the gateway stops"))

    async def keep(self) -> None:
        async with self._turn:
            tries = {call_id: answer.call.tries for call_id, answer in self._waiting.items()}
            untaken = await in_time(self.exchange.keep_calls(tries))
        now = time.monotonic()
        for call_id, answer in self._waiting.items():
            if call_id in untaken:
                answer.alive_at = now
                answer.doing = "; ".join(self.rollouts())
            if now - answer.held_at > _PATIENCE_S:
                message = f"no rollout took it for {_PATIENCE_S:g} s; {answer.doing}"
                answer.end_try(Refusal(status=503, code="not_taken", message=message))
            elif now - answer.alive_at > self.dead_after_s:
                answer.end_try(_LOST)


def _unavailable(why: str, code: str) -> Problem:
    message = f"{why}; the request may be repeated"
    return Problem(503, message, code=code, headers={"Retry-After": "2"})
