"""Pending calls: submitted to rollouts, and again if a rollout is lost, until all has come."""

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
from services.gateway.errors import Problem, await_exchange, internal_problem

log = logging.getLogger(__name__)
RENEW_EVERY_S = 2.0  # calls that are not renewed expire in Redis
POLL_S = 1.0
RETRY_PAUSE_S = 0.5  # after a refusal, before the call is submitted again
STARTUP_GRACE_S = 30.0  # a rollout, or this gateway, may have just started
QUEUE_TIMEOUT_S = 300.0  # a rollout takes a call within this time
PIECE_TIMEOUT_S = 600.0  # a rollout that holds a call sends a piece within this time
MAX_WAITING_CALLS = 1000
MAX_LOSSES = 3
MAX_CHARS_PER_TOKEN = 16  # of a prompt, so that an endless one needs no tokenizer
_UNLIMITED = 2**31
_RETRY_SOON = {"Retry-After": "2"}
_LOST = Refusal(status=503, code="rollout_lost", message="the rollout is lost", again=True)


@dataclass(eq=False)
class PendingCall:
    """A call that a client waits for, and the response so far, over all tries."""

    call: Call  # of the current try
    resolve: Callable[[], Awaitable[Served]]  # finds the weights of the next try
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    created_at: float = field(default_factory=time.time)
    prompt_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[float | None, ...] = ()
    tokens: list[Token] = field(default_factory=list)
    text: str = ""
    spans: tuple[VersionSpan, ...] = ()
    rollouts: tuple[str, ...] = ()
    activity: str = ""  # of the rollout that holds the call, or of all of them
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    problem: Problem | None = None
    is_done: bool = False
    # When the call was last in the queue or held by a rollout, and when the last piece came.
    confirmed_at: float = field(default_factory=time.monotonic)
    received_at: float = field(default_factory=time.monotonic)
    losses: int = 0
    _refusal: Refusal | None = None
    _earlier_spans: tuple[VersionSpan, ...] = ()
    _try_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def receive(self, piece: Piece, rollout: str) -> None:
        """Add a piece of the current try."""
        if piece.tries != self.call.tries or self._try_ended.is_set():
            return
        if piece.refusal is None:
            self.received_at = time.monotonic()
        if piece.spans:
            spans = _join_spans(self._earlier_spans, piece.spans, len(self.call.so_far))
            if spans[-1].end != len(self.tokens) + len(piece.tokens):
                # A piece is missing: the server has lost its memory.
                self.end_try(_LOST)
                return
            self.spans = spans
        self.prompt_ids = self.prompt_ids or piece.prompt_ids or ()
        self.prompt_logprobs = self.prompt_logprobs or piece.prompt_logprobs or ()
        self.tokens += piece.tokens
        self.text += piece.text
        self.rollouts = tuple(dict.fromkeys((*self.rollouts, rollout)))
        self.stop_reason = piece.stop_reason
        self.finish_reason = piece.finish_reason
        if piece.is_last:
            self.end_try(piece.refusal)
        self.changed.set()

    def end_try(self, refusal: Refusal | None) -> None:
        """End the try; a final refusal also replaces one that allows another try."""
        if not self._try_ended.is_set() or (self._refusal and self._refusal.again):
            self._refusal = refusal
            self._try_ended.set()

    async def end_of_try(self) -> Refusal | None:
        """Wait for the end of the try; returns None if the response is complete."""
        await self._try_ended.wait()
        return self._refusal

    async def ends_within(self, timeout_s: float) -> bool:
        return await wait_until_set(self._try_ended, timeout_s)

    def finish(self) -> None:
        self.is_done = True
        self.changed.set()

    def begin_try(self, served: Served) -> None:
        token_ids = tuple(token.id for token in self.tokens)
        changes = {"tries": self.call.tries + 1, "served": served, "so_far": token_ids}
        self.call = self.call.model_copy(update=changes)
        self._earlier_spans = self.spans
        self.activity = ""
        self.confirmed_at = time.monotonic()
        if self._refusal and self._refusal.again:
            self._try_ended.clear()


def _join_spans(
    earlier: Iterable[VersionSpan], later: Iterable[VersionSpan], offset: int
) -> tuple[VersionSpan, ...]:
    """Append spans that count from token ``offset`` of the response."""
    spans = [*earlier]
    for later_span in later:
        span = later_span.shift(offset)
        if spans and (spans[-1].attempt, spans[-1].version) == (span.attempt, span.version):
            span = span.model_copy(update={"start": spans.pop().start})
        spans.append(span)
    return tuple(spans)


@dataclass
class PendingCalls:
    """The calls that clients of this gateway wait for."""

    exchange: Exchange
    dead_after_s: float
    living_rollouts: Callable[[], Sequence[str]]  # one description each
    max_waiting: int = MAX_WAITING_CALLS
    _calls: dict[str, PendingCall] = field(default_factory=dict)
    _heard_at: float = float("-inf")  # from any rollout, since its status may be late
    # A renewal lists all calls, so none may be submitted meanwhile.
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def follow(
        self, calls: Sequence[PendingCall], on_done: Callable[[PendingCall], None] | None = None
    ) -> AsyncGenerator[None, None]:
        """Submit calls that share their ``changed``, and withdraw them if the caller stops.

        Yields on each change and every second until all are done. ``on_done`` runs in a thread
        for each call.

        Raises:
            Problem: of the first call that has one.
        """
        tasks = [self._start(call, on_done) for call in calls]
        changed = calls[0].changed
        is_over = False
        try:
            while not is_over:
                await wait_until_set(changed, POLL_S)
                changed.clear()
                for call in calls:
                    if call.is_done and call.problem is not None:
                        raise call.problem
                is_over = all(call.is_done for call in calls)
                yield
        finally:
            for task in tasks:
                task.cancel()

    def _start(
        self, pending: PendingCall, on_done: Callable[[PendingCall], None] | None
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self._run(pending, on_done))
        # A callback, since a task that is cancelled early never runs.
        task.add_done_callback(lambda _: pending.finish())
        return task

    async def _run(
        self, pending: PendingCall, on_done: Callable[[PendingCall], None] | None
    ) -> None:
        pending.problem = await self._complete_or_withdraw(pending)
        try:
            if on_done is not None:
                await asyncio.to_thread(on_done, pending)
        except Exception as error:
            pending.problem = _to_problem(error)

    async def _complete_or_withdraw(self, pending: PendingCall) -> Problem | None:
        self._calls[pending.call.id] = pending
        try:
            await self._complete(pending)
            return None
        except asyncio.CancelledError:
            problem = Problem(499, "the client left", code="client_left")
        except Exception as error:
            problem = _to_problem(error)
        finally:
            del self._calls[pending.call.id]
        with suppress(Exception):  # a call that is not renewed expires
            await await_exchange(self.exchange.withdraw_call(pending.call.id))
        return problem

    async def _complete(self, pending: PendingCall) -> None:
        _refuse_long_prompt(pending.call)
        await self._wait_for_rollout(pending)
        await self._submit(pending)
        while (refusal := await pending.end_of_try()) is not None:
            if not refusal.again:
                headers = _RETRY_SOON if refusal.status == 503 else None
                raise Problem(refusal.status, refusal.message, code=refusal.code, headers=headers)
            if refusal is _LOST:
                pending.losses += 1
            else:
                await asyncio.sleep(RETRY_PAUSE_S)
            if pending.losses == MAX_LOSSES:
                raise _unavailable(f"{MAX_LOSSES} rollouts with this call were lost", _LOST.code)
            pending.begin_try(await pending.resolve())
            await self._submit(pending)

    async def _wait_for_rollout(self, pending: PendingCall) -> None:
        deadline = time.monotonic() + STARTUP_GRACE_S
        while not self.living_rollouts() and time.monotonic() - self._heard_at > self.dead_after_s:
            pending.confirmed_at = time.monotonic()
            if await pending.ends_within(RETRY_PAUSE_S) or time.monotonic() > deadline:
                raise _unavailable("no rollout is alive; start one", "no_rollout")

    async def _submit(self, pending: PendingCall) -> None:
        call = pending.call
        max_waiting = _UNLIMITED if call.tries or call.terms else self.max_waiting
        async with self._lock:
            pending.confirmed_at = time.monotonic()
            try:
                has_room = await await_exchange(self.exchange.ask_call(call, max_waiting))
            except MemoryFull as error:
                raise _unavailable("the memory of Redis is full", "memory_full") from error
        if not has_room:
            raise _unavailable(f"{self.max_waiting:,} calls wait already", "too_many_calls")

    async def read_forever(self, service: Service) -> None:
        """Consumes pieces from rollouts; produces responses.

        Waits for: the next pieces. Unblocked by: pieces, time, or the service stopping.
        """
        while not service.stopping.is_set():
            try:
                for pieces in await self.exchange.pieces(POLL_S):
                    self._receive(pieces)
            except Disconnected:  # /readyz reports it
                pass
            except Exception:  # a call with a lost piece is submitted again
                log.exception("cannot read the pieces of calls")
                await service.pause(POLL_S)

    def _receive(self, pieces: Pieces) -> None:
        now = time.monotonic()
        self._heard_at = now
        for call_id in {*pieces.held, *(piece.call_id for piece in pieces.pieces)}:
            if pending := self._calls.get(call_id):
                pending.confirmed_at = now
                pending.activity = pieces.doing
        for piece in pieces.pieces:
            if pending := self._calls.get(piece.call_id):
                pending.receive(piece, pieces.rollout)

    async def renew_forever(self, service: Service) -> None:
        """Consumes the calls that wait; produces their renewals, and ends tries that do not move.

        Waits for: the next renewal. Unblocked by: time, or the service stopping, which ends all.
        """
        while not await service.pause(RENEW_EVERY_S):
            try:
                if self._calls:
                    await self.renew()
            except Problem:  # Redis is away: rollouts cannot send anything
                for pending in self._calls.values():
                    pending.confirmed_at = time.monotonic()
            except Exception:
                log.exception("cannot renew calls")
        for pending in self._calls.values():
            pending.end_try(Refusal(status=503, code="stopping", message="the gateway stops"))

    async def renew(self) -> None:
        async with self._lock:
            tries = {call_id: pending.call.tries for call_id, pending in self._calls.items()}
            queued = await await_exchange(self.exchange.keep_calls(tries))
        now = time.monotonic()
        rollouts = "; ".join(self.living_rollouts())
        for call_id, pending in self._calls.items():
            timeout_s = PIECE_TIMEOUT_S
            code = "not_answered"
            if call_id in queued:
                pending.confirmed_at = now
                pending.activity = rollouts
                timeout_s = QUEUE_TIMEOUT_S
                code = "not_taken"
            is_late = now - pending.received_at > timeout_s
            if is_late and pending.call.terms is None:
                reason = rollouts or "no rollout is alive"
                message = f"nothing came for {timeout_s:g} s; {reason}"
                pending.end_try(Refusal(status=503, code=code, message=message))
            elif now - pending.confirmed_at > self.dead_after_s:
                pending.end_try(_LOST)


def _refuse_long_prompt(call: Call) -> None:
    """Raise 400 for a prompt that exceeds the context whatever the tokenizer does."""
    max_context = call.served.model.max_context
    size = len(call.token_ids or ())
    max_size = max_context
    unit = "tokens"
    if call.token_ids is None:
        size = len(call.text or str((call.messages, call.tools)))
        max_size = max_context * MAX_CHARS_PER_TOKEN
        unit = "characters"
    if size > max_size:
        reason = f"the prompt has {size:,} {unit}, but the context {max_context:,} tokens"
        raise Problem(400, f"{reason}; shorten it", code="context_length_exceeded")


def _to_problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    log.exception("a call failed")
    return internal_problem(error)


def _unavailable(reason: str, code: str) -> Problem:
    message = f"{reason}; the request may be repeated"
    return Problem(503, message, code=code, headers=_RETRY_SOON)
