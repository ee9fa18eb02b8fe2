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

from services.chassis.service import Service, wait_until_set
from services.gateway.errors import Problem, in_time, own_fault

log = logging.getLogger(__name__)
_EVERY_S = 2.0
_LOOK_S = 1.0
_PAUSE_S = 0.5  # after a refusal, before the call is asked again
_FIRST_SIGN_S = 30.0  # for a rollout, or this gateway, that begins
_UNTAKEN_S = 300.0  # for a rollout to take a call
_HELD_S = 600.0  # for rollouts that hold it, or refuse it for now, to send a piece
_MOST = 1000
_ALL = 2**31
_MOST_LOSSES = 3
_MOST_CHARS = 16  # of a prompt, for each token of the context
_LATER = {"Retry-After": "2"}
_LOST = Refusal(status=503, code="rollout_lost", message="the rollout fell silent", again=True)


@dataclass(eq=False)
class Answer:
    """What has come of a call, in all its tries."""

    call: Call  # as it was asked last
    resolve: Callable[[], Awaitable[Served]]  # the weights for the next try
    news: asyncio.Event = field(default_factory=asyncio.Event)  # set whenever something has come
    asked_at: float = field(default_factory=time.time)
    prompt_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[float | None, ...] = ()
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
    came_at: float = field(default_factory=time.monotonic)  # when the last piece came
    losses: int = 0
    _refusal: Refusal | None = None
    _earlier: tuple[VersionSpan, ...] = ()  # of the tries before
    _try_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, piece: Piece, rollout: str) -> None:
        """Add what a rollout has sent, unless it is of an earlier try."""
        if piece.tries != self.call.tries or self._try_ended.is_set():
            return
        before = len(self.call.so_far)
        if piece.refusal is None:
            self.came_at = time.monotonic()
        if piece.spans and before + piece.spans[-1].end != len(self.tokens) + len(piece.tokens):
            return self.end_try(_LOST)  # a piece is missing, which went with the server's memory
        self.prompt_ids = self.prompt_ids or piece.prompt_ids or ()
        self.prompt_logprobs = self.prompt_logprobs or piece.prompt_logprobs or ()
        self.tokens += piece.tokens
        self.text += piece.text
        self.spans = _joined(self._earlier, piece.spans, before) if piece.spans else self.spans
        self.rollouts = tuple(dict.fromkeys((*self.rollouts, rollout)))
        self.stop_reason, self.finish_reason = piece.stop_reason, piece.finish_reason
        if piece.is_last:
            self.end_try(piece.refusal)
        self.news.set()

    def end_try(self, refusal: Refusal | None) -> None:
        """End it, unless it has; a refusal for good ends one that is about to begin, too."""
        if not self._try_ended.is_set() or (self._refusal and self._refusal.again):
            self._refusal = refusal
            self._try_ended.set()

    async def refusal(self) -> Refusal | None:
        """Why the try ended, None if all has come."""
        await self._try_ended.wait()
        return self._refusal

    def end(self) -> None:
        self.is_done = True
        self.news.set()

    async def has_ended_within(self, seconds: float) -> bool:
        return await wait_until_set(self._try_ended, seconds)

    def begin_again(self, served: Served) -> None:
        so_far = tuple(token.id for token in self.tokens)
        changes = {"tries": self.call.tries + 1, "served": served, "so_far": so_far}
        self.call = self.call.model_copy(update=changes)
        self._earlier, self.doing, self.alive_at = self.spans, "", time.monotonic()
        if self._refusal and self._refusal.again:
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


@dataclass
class Desk:
    """Holds the calls that clients of this gateway wait for."""

    exchange: Exchange
    dead_after_s: float
    rollouts: Callable[[], Sequence[str]]  # the living ones, in words, each with what it does
    most: int = _MOST
    _waiting: dict[str, Answer] = field(default_factory=dict)
    _heard_at: float = float("-inf")  # from any rollout, whose status may be late
    # What is kept is a whole, so nothing may be asked between its list and the server.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answering(
        self, answers: Sequence[Answer], then: Callable[[Answer], None] | None = None
    ) -> AsyncGenerator[None, None]:
        """Ask for answers, which share their ``news``, until all are done; or withdraw them.

        Yields when something has come, and every second. ``then`` is told of each that is done, in
        a thread.

        Raises:
            Problem: of the first answer that has one.
        """
        tasks = [self._begin(answer, then) for answer in answers]
        is_over = False
        try:
            while not is_over:
                await wait_until_set(answers[0].news, _LOOK_S)
                answers[0].news.clear()
                for answer in answers:
                    if answer.is_done and answer.problem is not None:
                        raise answer.problem
                is_over = all(answer.is_done for answer in answers)
                yield
        finally:
            for task in tasks:
                task.cancel()

    def _begin(self, answer: Answer, then: Callable[[Answer], None] | None) -> asyncio.Task[None]:
        task = asyncio.create_task(self._follow(answer, then))
        task.add_done_callback(lambda _: answer.end())  # also if it is cancelled before it begins
        return task

    async def _follow(self, answer: Answer, then: Callable[[Answer], None] | None) -> None:
        try:
            answer.problem = await self._problem_of(answer)
            if then is not None:
                await asyncio.to_thread(then, answer)
        except Problem as problem:
            answer.problem = problem
        except Exception as error:
            log.exception("what has come of a call cannot be kept")
            answer.problem = own_fault(error)

    async def _problem_of(self, answer: Answer) -> Problem | None:
        """Why the rest of an answer will not come; None once all has."""
        self._waiting[answer.call.id] = answer
        try:
            return await self._until_all_has_come(answer)
        except asyncio.CancelledError:
            problem = Problem(499, "the client left", code="client_left")
        except Problem as known:
            problem = known
        except Exception as error:
            log.exception("a call failed")
            problem = own_fault(error)
        finally:
            del self._waiting[answer.call.id]
        with suppress(Exception):  # what nobody keeps expires
            await in_time(self.exchange.withdraw_call(answer.call.id))
        return problem

    async def _until_all_has_come(self, answer: Answer) -> None:
        _refuse_too_long(answer.call)
        deadline = time.monotonic() + _FIRST_SIGN_S
        while not self.rollouts() and time.monotonic() - self._heard_at > self.dead_after_s:
            answer.alive_at = time.monotonic()
            if await answer.has_ended_within(_PAUSE_S) or time.monotonic() > deadline:
                raise _unavailable("no rollout shows life: see that one runs", "no_rollout")
        await self._ask(answer)
        while (refusal := await answer.refusal()) is not None:
            if not refusal.again:
                later = _LATER if refusal.status == 503 else None
                raise Problem(refusal.status, refusal.message, code=refusal.code, headers=later)
            answer.losses += refusal is _LOST
            if answer.losses == _MOST_LOSSES:
                raise _unavailable(f"rollouts lost it {answer.losses} times", "rollout_lost")
            if refusal is not _LOST:
                await asyncio.sleep(_PAUSE_S)
            answer.begin_again(await answer.resolve())
            await self._ask(answer)

    async def _ask(self, answer: Answer) -> None:
        async with self._turn:
            answer.alive_at = time.monotonic()
            most = _ALL if answer.call.tries or answer.call.terms else self.most
            try:
                has_room = await in_time(self.exchange.ask_call(answer.call, most))
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
                answer.alive_at, answer.doing = now, sent.doing
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
        now, doing = time.monotonic(), "; ".join(self.rollouts())
        for call_id, answer in self._waiting.items():
            patience_s, code = _HELD_S, "not_answered"
            if call_id in untaken:
                answer.alive_at, answer.doing = now, doing
                patience_s, code = _UNTAKEN_S, "not_taken"
            if now - answer.came_at > patience_s and answer.call.terms is None:
                message = f"nothing came for {patience_s:g} s; {doing or 'no rollout shows life'}"
                answer.end_try(Refusal(status=503, code=code, message=message))
            elif now - answer.alive_at > self.dead_after_s:
                answer.end_try(_LOST)


def _refuse_too_long(call: Call) -> None:
    """Refuse a prompt that no tokenizer would bring into the context; its session records that."""
    context = call.served.model.max_context
    size, most, unit = len(call.token_ids or ()), context, "tokens"
    if not size:
        given = call.text or str((call.messages, call.tools))
        size, most, unit = len(given), context * _MOST_CHARS, "characters"
    if size > most:
        why = f"the prompt has {size:,} {unit}, but the context {context:,} tokens; shorten it"
        raise Problem(400, why, code="context_length_exceeded")


def _unavailable(why: str, code: str) -> Problem:
    message = f"{why}; the request may be repeated"
    return Problem(503, message, code=code, headers=_LATER)
