"""Answer calls: take them from the queue, sample with the engine, and send the pieces."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
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
from protocol.streams import NEW_CALL
from protocol.weights import WeightsError
from pydantic import ValidationError

from services.chassis.faults import Busy, StartupFailed, Unworkable
from services.chassis.prompts import PromptError
from services.chassis.renderer import PromptRenderer
from services.chassis.service import summarize_error
from services.rollout.policy_sync import PolicyFollower
from services.rollout.samples import (
    TOKENS,
    EngineDied,
    EngineError,
    IncompatibleEngine,
    ParityError,
)

if TYPE_CHECKING:
    from services.rollout.engine import Engine

log = logging.getLogger(__name__)
# The intervals of looks for the active job and for calls, while calls wait or are answered.
_JOB_POLL_S = 0.05
_POLL_S = 0.01
# The interval of reports to gateways, and of checks for cancelled calls.
_REPORT_S = 1.0
_SHUT_DOWN_S = 2.0
# During training, clients' calls have at most this fraction of the engine's places.
_CLIENT_FRACTION = 8
# Calls to take when their weights are loaded.
_FIRST_CALLS = 64
# Rollouts that already have the weights may take the calls within this time.
_LOAD_DELAY_S = 0.5
_ALL_CALLS = 1000
_FOREVER_S = 1e9
_MOVED = Refusal(
    status=409, code="moved", message="other weights are in the engine now", again=True
)


class CallRefused(Unworkable):
    """No rollout can answer the call; the text says what to change."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(eq=False)
class _OpenCall:
    call: Call
    task: asyncio.Task[None] | None = None
    # The piece to send next.
    piece: Piece | None = None

    def add(self, piece: Piece) -> None:
        last = self.piece
        if last is not None:
            piece = piece.model_copy(
                update={
                    "tokens": last.tokens + piece.tokens,
                    "text": last.text + piece.text,
                    "prompt_ids": last.prompt_ids or piece.prompt_ids,
                    "prompt_logprobs": last.prompt_logprobs or piece.prompt_logprobs,
                    "spans": piece.spans or last.spans,
                }
            )
        self.piece = piece

    @property
    def is_over(self) -> bool:
        return self.piece is not None and self.piece.is_last

    @property
    def is_due(self) -> bool:
        """Whether the piece must be sent at once."""
        return self.is_over or (self.piece is not None and self.call.streams)

    def refuse(self, refusal: Refusal) -> None:
        self.add(Piece(call_id=self.call.id, tries=self.call.tries, refusal=refusal))
        self.cancel()

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


@dataclass
class CallServer:
    """Answers calls: as many as the engine takes, or a few while it samples a job's groups."""

    follower: PolicyFollower
    open_calls: list[_OpenCall] = field(default_factory=list)
    # The time of the last report, by gateway.
    _reported_at: dict[str, float] = field(default_factory=dict)
    _checked_at: float = 0.0
    _refreshed_at: float = 0.0
    # The number of waiting calls by key.
    _waiting: dict[str, int] = field(default_factory=dict)
    # The key of the oldest waiting call, and since when it is that.
    _next_key: str = ""
    _next_since: float = 0.0
    _loading: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.service = self.follower.service
        self.exchange = self.service.exchange

    @property
    def num_episode_calls(self) -> int:
        return sum(entry.call.terms is not None for entry in self.open_calls)

    async def answer_forever(self) -> None:
        """Consumes calls; produces their answers.

        Waits for: calls for the weights in the engine. Unblocked by: gateways.

        Raises:
            IncompatibleEngine: if calls are for weights that need another engine.
            EngineDied: if the engine dies while it loads weights.
        """
        try:
            while not await self._wait():
                if self._loading is not None and self._loading.done():
                    self._loading = self._loading.result()
                await self._count_waiting()
                if not self._next_key and not self.open_calls:
                    continue
                if time.monotonic() > self._refreshed_at + _JOB_POLL_S:
                    await self.follower.refresh_job()
                    self._refreshed_at = time.monotonic()
                self._refuse_moved()
                await self._take()
                await self._send()
                await self._drop_unwanted()
        finally:
            await self._shut_down()

    async def _wait(self) -> bool:
        """Wait for the next look at the calls; return whether the service stops."""
        if self.open_calls or self._waiting:
            return await self.service.pause(_POLL_S)
        return await self.service.await_event(self.exchange.wait_for_new(NEW_CALL))

    def _refuse_moved(self) -> None:
        """Refuse calls whose weights leave the engine because a job begins or ends."""
        for entry in self.open_calls:
            if not self.follower.may_answer(entry.call.key) and not entry.is_over:
                entry.refuse(_MOVED)

    async def _count_waiting(self) -> None:
        self._waiting = await self.exchange.waiting_calls()
        oldest_key = next(iter(self._waiting), "")
        if oldest_key != self._next_key:
            self._next_key = oldest_key
            self._next_since = time.monotonic()

    async def _take(self) -> None:
        next_key = self._next_key
        call_key = self.follower.call_key
        job = self.follower.active
        if not next_key:
            return
        if job is not None and self.follower.serves(job):
            await self._take_job_calls(job.job_id)
        if call_key and self._room > 0:
            self._begin(await self.exchange.take_calls(call_key, self._room))
        if job is None and next_key.startswith("folder:"):
            await self._switch_weights(next_key)
        elif job is None or next_key.partition(":")[2] != job.job_id:
            await self._refuse_waiting(next_key)

    async def _take_job_calls(self, job_id: str) -> None:
        """Take calls of the job's own episodes, which may have all places."""
        place, replicas = self.service.position
        for key in self.follower.demand.call_keys(job_id, place, replicas):
            share = math.ceil(self._waiting.get(key, 0) / replicas)
            count = min(self._places - len(self.open_calls), share)
            if count > 0:
                self._begin(await self.exchange.take_calls(key, count, _FOREVER_S))

    async def _switch_weights(self, key: str) -> None:
        """Load other weights if the engine is idle, and no other rollout takes the calls."""
        if self.open_calls or self._loading is not None or key == self.follower.call_key:
            return
        _, replicas = self.service.position
        delay_s = _LOAD_DELAY_S if replicas > 1 else 0.0
        if time.monotonic() < self._next_since + delay_s:
            return
        calls = await self.exchange.take_calls(key, _FIRST_CALLS, _FOREVER_S)
        if calls:
            self._begin(calls)
            self._loading = asyncio.create_task(self._load(calls[0].served))

    async def _load(self, served: Served) -> None:
        try:
            await self.follower.serve(served)
        except (IncompatibleEngine, EngineDied):
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
            code = "parity" if isinstance(error, ParityError) else "model_not_served"
            refusal = Refusal(status=500, code=code, message=self.exchange.redact(words))
            for entry in self.open_calls:
                if entry.call.served.key == served.key:
                    entry.refuse(refusal)

    async def _refuse_waiting(self, key: str) -> None:
        """Refuse waiting calls, so that the gateways look up these weights again."""
        for call in await self.exchange.take_calls(key, _ALL_CALLS, _FOREVER_S):
            entry = _OpenCall(call)
            entry.refuse(_MOVED)
            self.open_calls.append(entry)

    @property
    def _places(self) -> int:
        engine = self.follower.engine
        return engine.places if engine is not None and not engine.sleeps else 0

    @property
    def _room(self) -> int:
        places = self._places
        num_calls = len(self.open_calls)
        if places and self.follower.active is not None:
            places = max(1, places // _CLIENT_FRACTION)
            num_calls -= self.num_episode_calls
        return places - num_calls

    def _begin(self, calls: Iterable[Call]) -> None:
        for call in calls:
            # An earlier try is from before this process was suspended.
            for entry in [entry for entry in self.open_calls if entry.call.id == call.id]:
                self._drop(entry)
            entry = _OpenCall(call)
            entry.task = asyncio.create_task(self._answer(entry))
            self.open_calls.append(entry)

    async def _answer(self, entry: _OpenCall) -> None:
        try:
            await self._sample(entry)
        except EngineDied:
            # This process ends. No refusal is sent, since the call may have killed the engine.
            pass
        except Busy:
            entry.refuse(_MOVED)
        except Unworkable as error:
            code = error.code if isinstance(error, CallRefused) else "invalid_request"
            entry.refuse(Refusal(status=400, code=code, message=str(error)))
        except Exception as error:
            log.exception("a call failed", extra={"call": entry.call.id})
            entry.refuse(Refusal(status=500, code="engine_error", message=str(error)))

    def _activity(self, call: Call) -> AbstractContextManager[None]:
        """Return the activity to report: none for clients' calls during training."""
        if self.follower.active is not None and call.terms is None:
            return nullcontext()
        return self.service.activity.during(Doing.ANSWERS, timed="sampling")

    @asynccontextmanager
    async def _acquire_engine(
        self, call: Call
    ) -> AsyncIterator[tuple[Engine, Callable[[], Awaitable[object]]]]:
        """Yield the engine for a call, and a function that waits until its pieces may be sent."""
        if call.terms is not None:
            async with self.follower.acquire_engine(call.terms) as engine:
                yield engine, self.follower.wait_for_probes
        else:
            wait = partial(self.follower.answering_engine, call.served.key)
            yield await wait(), wait

    async def _sample(self, entry: _OpenCall) -> None:
        call = entry.call
        async with self._acquire_engine(call) as (engine, wait):
            ids = await render_prompt(call, engine.prompts)
            max_tokens = remaining_tokens(call, len(ids), engine.settings.max_context)
            await wait()
            answer = engine.answer(call, ids, max_tokens)
            with self._activity(call):
                async with aclosing(answer) as pieces:
                    async for piece in pieces:
                        await wait()
                        entry.add(piece)
                        if call.terms is not None:
                            TOKENS.inc(len(piece.tokens))

    def _group_by_gateway(self) -> Iterator[tuple[str, list[_OpenCall]]]:
        entries = sorted(self.open_calls, key=_gateway)
        for gateway, group in groupby(entries, _gateway):
            yield gateway, list(group)

    async def _send(self) -> None:
        """Send each gateway the pieces that are due, and at intervals the ids of its open calls."""
        now = time.monotonic()
        for gateway, entries in self._group_by_gateway():
            is_late = now >= self._reported_at.get(gateway, 0.0) + _REPORT_S
            due = [entry for entry in entries if is_late or entry.is_due]
            if not due:
                continue
            pieces = tuple(entry.piece for entry in due if entry.piece is not None)
            over = {entry for entry in due if entry.is_over}
            self.open_calls = [entry for entry in self.open_calls if entry not in over]
            for entry in due:
                entry.piece = None
            self._reported_at[gateway] = now
            message = Pieces(
                rollout=self.service.display_name,
                doing=self._doing,
                held=tuple(entry.call.id for entry in entries),
                pieces=pieces,
            )
            await self.exchange.send_pieces(gateway, message)

    @property
    def _doing(self) -> str:
        """The activity that calls wait for; empty if they do not wait."""
        if self.follower.call_key:
            return ""
        if self.follower.loading_folder is not None:
            return f"loads {self.follower.loading_folder.name}"
        work = self.service.activity.now
        words = work.doing.replace("_", " ")
        return words if work.number is None else f"{words} {work.number}"

    async def _drop_unwanted(self) -> None:
        if time.monotonic() < self._checked_at + _REPORT_S:
            return
        self._checked_at = time.monotonic()
        for gateway, entries in self._group_by_gateway():
            calls = [entry.call for entry in entries]
            wanted_ids = await self.exchange.wanted_calls(gateway, calls)
            for entry in entries:
                if entry.call.id not in wanted_ids:
                    self._drop(entry)

    def _drop(self, dropped: _OpenCall) -> None:
        dropped.cancel()
        self.open_calls = [entry for entry in self.open_calls if entry is not dropped]

    async def _shut_down(self) -> None:
        """Leave the calls to other rollouts, unless one may have killed the engine."""
        if self._loading is not None:
            self._loading.cancel()
        if self.follower.has_died():
            return
        for entry in self.open_calls:
            if not entry.is_over:
                entry.refuse(_MOVED)
        with suppress(TimeoutError, Refused, *Disconnected):
            async with asyncio.timeout(_SHUT_DOWN_S):
                await self._send()


def _gateway(entry: _OpenCall) -> str:
    return entry.call.gateway


async def render_prompt(call: Call, prompts: PromptRenderer) -> list[int]:
    """Return the token ids of a call's prompt, rendered as for a task unless the call has them.

    Raises:
        CallRefused: if the model cannot render the messages.
        Unworkable: if the model's tokenizer or template fails.
    """
    model = call.served.model
    if call.token_ids is not None:
        return list(call.token_ids)
    if call.text is not None:
        return await prompts.encode(call.text)
    if model.prompt_template is not None:
        return await prompts.encode(model.prompt_template.replace("{prompt}", _problem(call)))
    options = {**model.chat_template_options, **call.chat_template_options}
    begun = (call.begun.token_ids, call.begun.num_messages) if call.begun else None
    try:
        return await prompts.chat(call.messages or (), options, call.tools, begun)
    except PromptError as error:
        raise CallRefused("invalid_messages", f"messages: {error}") from error


def _problem(call: Call) -> str:
    """Return the text for {prompt}, as of a task with these messages."""
    if call.tools:
        raise CallRefused(
            "invalid_messages", "tools: the model's prompt_template has no place for them"
        )
    try:
        return Task.model_validate({"id": call.id, "messages": call.messages}).problem
    except ValidationError as error:
        raise CallRefused("invalid_messages", f"messages: {error.errors()[0]['msg']}") from error


def remaining_tokens(call: Call, num_prompt_tokens: int, max_context: int) -> int:
    """Return how many tokens may follow those so far; an episode's turn may fill the context.

    Raises:
        CallRefused: if the context has no room for one token, or for ``max_tokens``.
    """
    room = max_context - num_prompt_tokens
    max_tokens = call.sampling.max_tokens
    if max_tokens is not None and call.terms is not None:
        max_tokens = max(1, min(max_tokens, room))
    if room < (max_tokens or 1):
        raise CallRefused(
            "context_length_exceeded",
            f"the prompt has {num_prompt_tokens} of the context's {max_context} tokens, so it "
            f"leaves {max(0, room)}, but max_tokens is {max_tokens or 1}; lower one of them",
        )
    return (max_tokens or room) - len(call.so_far)
