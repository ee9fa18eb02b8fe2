"""Calls of the model door: taken from the queue, answered by the engine, sent piece by piece."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import (
    AbstractContextManager,
    aclosing,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from protocol.calls import Call, Piece, Pieces, Refusal, Served
from protocol.exchange import Disconnected
from protocol.exchange.connection import Refused
from protocol.messages import Doing, Task
from protocol.weights import WeightsError
from pydantic import ValidationError

from services.chassis.faults import Busy, StartupFailed, Unworkable
from services.chassis.prompts import PromptError
from services.chassis.renderer import PromptRenderer
from services.chassis.service import summarize_error
from services.rollout.policy_sync import PolicyFollower
from services.rollout.samples import TOKENS, EngineDied, EngineError, EngineUnfit, ParityError

if TYPE_CHECKING:
    from services.rollout.engine import Engine

log = logging.getLogger(__name__)
_LOOK_S = 0.05
_SOON_S = 0.01  # while calls wait or are answered
_LIFE_S = 1.0  # between two signs of life, and two looks at what is wanted
_PARTING_S = 2.0
_SHARE = 8  # one of so many places is for calls while a job trains
_AT_FIRST = 64  # calls that weights are loaded for
_LET_OTHERS_S = 0.5  # take calls, who have their weights
_ALL = 1000
_FOREVER_S = 1e9
_MOVED = Refusal(
    status=409, code="moved", message="other weights are in the engine now", again=True
)


class CallRefused(Unworkable):
    """A call that no rollout can answer; the text says what to change."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(eq=False)
class _Held:
    call: Call
    task: asyncio.Task[None] | None = None
    piece: Piece | None = None  # yet to be sent

    def add(self, piece: Piece) -> None:
        if (last := self.piece) is not None:
            joined = {"tokens": last.tokens + piece.tokens, "text": last.text + piece.text}
            of_both = ("prompt_ids", "prompt_logprobs")  # which come once
            joined |= {name: getattr(last, name) or getattr(piece, name) for name in of_both}
            joined["spans"] = piece.spans or last.spans
            piece = piece.model_copy(update=joined)
        self.piece = piece

    @property
    def is_due(self) -> bool:
        """Whether what there is to be sent is waited for."""
        return self.piece is not None and (self.call.streams or self.piece.is_last)

    def refuse(self, refusal: Refusal) -> None:
        own = {"call_id": self.call.id, "tries": self.call.tries}
        self.add(Piece(**own, refusal=refusal))
        if self.task is not None:
            self.task.cancel()


@dataclass
class Answering:
    """Answers calls: of the active job a few beside its groups, or as many as the engine takes."""

    follower: PolicyFollower
    held: list[_Held] = field(default_factory=list)
    _told: dict[str, float] = field(default_factory=dict)  # gateways, and when they were told last
    _looked_at: float = 0.0
    _followed_at: float = 0.0
    _waiting: dict[str, int] = field(default_factory=dict)  # calls, by what they are for
    _next: tuple[str, float] = ("", 0.0)  # the weights that the oldest call is for, and since when
    _bringing: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.service = self.follower.service
        self.exchange = self.service.exchange

    @property
    def of_episodes(self) -> int:
        return sum(held.call.terms is not None for held in self.held)

    async def answer_forever(self) -> None:
        """Consumes calls; produces their answers.

        Waits for: calls that the weights in the engine answer. Unblocked by: gateways.

        Raises:
            EngineUnfit: if calls are for weights that need another engine.
            EngineDied: if the engine dies of loading some.
        """
        try:
            while not await self.service.pause(_SOON_S if self.held or self._waiting else _LOOK_S):
                if self._bringing is not None and self._bringing.done():
                    self._bringing = self._bringing.result()
                await self._look()
                if not self._next[0] and not self.held:
                    continue
                if time.monotonic() > self._followed_at + _LOOK_S:
                    await self.follower.look()
                    self._followed_at = time.monotonic()
                self._cut()
                await self._take()
                await self._send()
                await self._drop_unwanted()
        finally:
            await self._give_back()

    def _cut(self) -> None:
        """A job that begins has the engine at once, and one that ends takes its weights along."""
        for held in self.held:
            if not self.follower.may_answer(held.call.key) and not _is_over(held):
                held.refuse(_MOVED)

    async def _look(self) -> None:
        self._waiting = await self.exchange.waiting_calls()
        wanted = next(iter(self._waiting), "")
        if wanted != self._next[0]:
            self._next = wanted, time.monotonic()

    async def _take(self) -> None:
        wanted = self._next[0]
        key = self.follower.answers
        job = self.follower.active
        if not wanted:
            return
        if job is not None and self.follower.serves(job):
            await self._take_work(job.job_id)
        if key and self._room > 0:
            self._begin(await self.exchange.take_calls(key, self._room))
        if job is None and wanted.startswith("folder:"):
            await self._turn_to(wanted)
        elif job is None or wanted.partition(":")[2] != job.job_id:
            await self._leave(wanted)

    async def _take_work(self, job_id: str) -> None:
        """Calls of the job's own episodes, which may have all places."""
        engine = self.follower.engine
        (place, replicas) = self.service.position
        for key in self.follower.demand.calls_taken(job_id, place, replicas):
            room = engine.places - len(self.held) if engine and not engine.sleeps else 0
            if (count := min(room, math.ceil(self._waiting.get(key, 0) / replicas))) > 0:
                self._begin(await self.exchange.take_calls(key, count, _FOREVER_S))

    async def _turn_to(self, key: str) -> None:
        """Load other weights if nothing is answered, and no rollout that has them takes calls."""
        is_free = not self.held and self._bringing is None and key != self.follower.answers
        _, replicas = self.service.position
        let_s = _LET_OTHERS_S if replicas > 1 else 0.0
        if not is_free or time.monotonic() < self._next[1] + let_s:
            return
        if calls := await self.exchange.take_calls(key, _AT_FIRST, _FOREVER_S):
            self._begin(calls)
            self._bringing = asyncio.create_task(self._bring(calls[0].served))

    async def _bring(self, served: Served) -> None:
        try:
            await self.follower.serve(served)
        except (EngineUnfit, EngineDied):
            raise
        except (
            EngineError,
            StartupFailed,
            WeightsError,
            OSError,
            ValueError,
            LookupError,
        ) as error:
            log.warning("a model is not served", extra={"model": served.name, "why": str(error)})
            words = f"model {served.name} cannot be served: {summarize_error(error).words}"
            message = self.exchange.redact(words)
            code = "parity" if isinstance(error, ParityError) else "model_not_served"
            refusal = Refusal(status=500, code=code, message=message)
            for held in self.held:
                if held.call.served.key == served.key:
                    held.refuse(refusal)

    async def _leave(self, key: str) -> None:
        """Have the gateways look again where these weights are."""
        for call in await self.exchange.take_calls(key, _ALL, _FOREVER_S):
            (held := _Held(call)).refuse(_MOVED)
            self.held.append(held)

    @property
    def _room(self) -> int:
        engine = self.follower.engine
        if engine is None or engine.sleeps:
            return 0
        if self.follower.active is None:
            return engine.places - len(self.held)
        return max(1, engine.places // _SHARE) - sum(held.call.terms is None for held in self.held)

    def _begin(self, calls: Iterable[Call]) -> None:
        for call in calls:
            for earlier in [each for each in self.held if each.call.id == call.id]:
                self._drop(earlier)  # a try from before this process was stopped
            held = _Held(call)
            held.task = asyncio.create_task(self._answer(held))
            self.held.append(held)

    async def _answer(self, held: _Held) -> None:
        try:
            await self._sample(held)
        except EngineDied:
            pass  # which ends this process: the call may have killed it, so nobody is told
        except Busy:
            held.refuse(_MOVED)
        except Unworkable as error:
            code = error.code if isinstance(error, CallRefused) else "invalid_request"
            held.refuse(Refusal(status=400, code=code, message=str(error)))
        except Exception as error:
            log.exception("a call failed", extra={"call": held.call.id})
            held.refuse(Refusal(status=500, code="engine_error", message=str(error)))

    def _said(self, call: Call) -> AbstractContextManager[None]:
        """Beside training a few calls of clients are not what the rollout does."""
        if self.follower.active is not None and call.terms is None:
            return nullcontext()
        return self.service.activity.during(Doing.ANSWERS, timed="sampling")

    @asynccontextmanager
    async def _engine_for(
        self, call: Call
    ) -> AsyncIterator[tuple[Engine, Callable[[], Awaitable[object]]]]:
        """The engine that may answer a call, and how to wait until what it samples may leave."""
        if call.terms is not None:
            async with self.follower.engine_for(call.terms) as engine:
                yield engine, self.follower.proven
        else:
            answers = partial(self.follower.engine_that_answers, call.served.key)
            yield await answers(), answers

    async def _sample(self, held: _Held) -> None:
        call = held.call
        async with self._engine_for(call) as (engine, may_leave):
            ids = await prompt_of(call, engine.prompts)
            left = tokens_left(call, len(ids), engine.settings.max_context)
            await may_leave()
            with self._said(call):
                async with aclosing(engine.answer(call, ids, left)) as pieces:
                    async for piece in pieces:
                        await may_leave()
                        held.add(piece)
                        if call.terms is not None:
                            TOKENS.inc(len(piece.tokens))

    async def _send(self) -> None:
        """Tell each gateway what came, or else at times that its calls are held."""
        now = time.monotonic()
        for gateway, those in groupby(sorted(self.held, key=_gateway), _gateway):
            own = list(those)
            is_late = now >= self._told.get(gateway, 0.0) + _LIFE_S
            sent = [held for held in own if is_late or held.is_due]
            if not sent:
                continue
            pieces = tuple(held.piece for held in sent if held.piece is not None)
            over = {held for held in sent if _is_over(held)}
            self.held = [held for held in self.held if held not in over]
            for held in sent:
                held.piece = None
            ids = tuple(held.call.id for held in own)
            self._told[gateway] = now
            told = {"rollout": self.service.display_name, "doing": self._doing, "held": ids}
            await self.exchange.send_pieces(gateway, Pieces(**told, pieces=pieces))

    @property
    def _doing(self) -> str:
        """What the calls wait for, if they do."""
        if self.follower.answers:
            return ""
        if self.follower.coming is not None:
            return f"loads {self.follower.coming.name}"
        work = self.service.activity.now
        words = work.doing.replace("_", " ")
        return words if work.number is None else f"{words} {work.number}"

    async def _drop_unwanted(self) -> None:
        if time.monotonic() < self._looked_at + _LIFE_S:
            return
        self._looked_at = time.monotonic()
        for gateway, those in groupby(sorted(self.held, key=_gateway), _gateway):
            own = list(those)
            wanted = await self.exchange.wanted_calls(gateway, [held.call for held in own])
            for held in own:
                if held.call.id not in wanted:
                    self._drop(held)

    def _drop(self, held: _Held) -> None:
        if held.task is not None:
            held.task.cancel()
        self.held = [each for each in self.held if each is not held]

    async def _give_back(self) -> None:
        """Have others answer what is held, unless it may have killed the engine."""
        if self._bringing is not None:
            self._bringing.cancel()
        if self.follower.has_died():
            return
        for held in self.held:
            if not _is_over(held):
                held.refuse(_MOVED)
        with suppress(TimeoutError, Refused, *Disconnected):
            async with asyncio.timeout(_PARTING_S):
                await self._send()


def _gateway(held: _Held) -> str:
    return held.call.gateway


def _is_over(held: _Held) -> bool:
    return held.piece is not None and held.piece.is_last


async def prompt_of(call: Call, prompts: PromptRenderer) -> list[int]:
    """The token ids of a call's prompt, as those of a task are made, but for those that are known.

    Raises:
        CallRefused: if the messages are none of this model.
        Unworkable: if the model's tokenizer or template fails.
    """
    model = call.served.model
    if call.token_ids is not None:
        return list(call.token_ids)
    if call.text is not None or model.prompt_template is not None:
        text = call.text
        if text is None:
            text = str(model.prompt_template).replace("{prompt}", _problem(call))
        return await prompts.encode(text)
    options = {**model.chat_template_options, **call.chat_template_options}
    begun = (call.begun.token_ids, call.begun.num_messages) if call.begun else None
    try:
        return await prompts.chat(call.messages or (), options, call.tools, begun)
    except PromptError as error:
        raise CallRefused("invalid_messages", f"messages: {error}") from error


def _problem(call: Call) -> str:
    """What takes the place of {prompt}, as in a task with these messages."""
    if call.tools:
        raise CallRefused("invalid_messages", "tools: the model's prompt_template has no place")
    try:
        return Task.model_validate({"id": call.id, "messages": call.messages}).problem
    except ValidationError as error:
        raise CallRefused("invalid_messages", f"messages: {error.errors()[0]['msg']}") from error


def tokens_left(call: Call, num_prompt_tokens: int, max_context: int) -> int:
    """How many tokens may follow those so far; of an episode's turn, as many as the context leaves.

    Raises:
        CallRefused: if the context leaves fewer than the call asks for, or none.
    """
    asked = call.sampling.max_tokens
    left = max_context - num_prompt_tokens
    if asked is not None and call.terms is not None:
        asked = max(1, min(asked, left))
    if left < (asked or 1):
        raise CallRefused(
            "context_length_exceeded",
            f"the prompt has {num_prompt_tokens} of the context's {max_context} tokens, so it "
            f"leaves {max(0, left)}, but max_tokens is {asked or 1}; lower one of them",
        )
    return (asked or left) - len(call.so_far)
