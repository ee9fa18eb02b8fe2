"""The model door over HTTP: a session for each try of an episode, and the trace it leaves."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from protocol.calls import Terms
from protocol.messages import VersionSpan
from pydantic import BaseModel, Field

from services.chassis.faults import Busy

MODEL = "policy"  # what agents may call it: the session's terms say which weights answer
_OPEN_S = 60.0
_OF_CALL = {"engine_error", "rollout_lost"}
_TOO_LONG = "context_length_exceeded"
_QUIET_S = 600.0  # of a call's answer, after which nobody is thought to give it
_OURS = 500  # statuses from here on are no fault of who asks


class DoorShut(Busy):
    """The model does not answer, through no fault of an environment; the text says why."""


class ContextFull(Exception):
    """The context leaves no room for another turn."""


class CallFailed(RuntimeError):
    """A call failed in the engine, perhaps of itself; counted as a failure of its group."""


class Failed(BaseModel):
    code: str
    message: str
    status: int = 0


class AskedCall(BaseModel):
    created_at: float = 0.0
    seconds: float


class WaitingCall(AskedCall):
    """A call of a session that is under way."""

    quiet_seconds: float  # in which nothing of its answer came


class RecordedCall(AskedCall):
    """A call of a session, answered or failed."""

    id: str
    finish_reason: str | None = None
    error: Failed | None = None
    messages: list[dict[str, Any]] | None = None  # of a chat
    text: str = ""  # of the reply


class Branch(BaseModel):
    """Tokens of turns that go on from each other."""

    token_ids: list[int]
    logprobs: list[float | None]
    own: list[bool]
    weight_versions: list[VersionSpan]
    calls: list[str]


class Trace(BaseModel):
    calls: list[RecordedCall] = Field(default_factory=list)
    under_way: list[WaitingCall] = Field(default_factory=list)
    branches: list[Branch] = Field(default_factory=list)

    @property
    def answered(self) -> list[RecordedCall]:
        return [call for call in self.calls if call.error is None]

    @property
    def seconds(self) -> float:
        """In which calls were answered or waited; of several at a time once."""
        total = until = 0.0
        for call in sorted([*self.calls, *self.under_way], key=lambda call: call.created_at):
            end = call.created_at + call.seconds
            total += max(0.0, end - max(call.created_at, until))
            until = max(until, end)
        return total

    @property
    def is_full(self) -> bool:
        """Whether the context left no room for the last call."""
        error = self.calls[-1].error if self.calls else None
        return error is not None and error.code == _TOO_LONG

    def refuse_if_the_model_failed(self) -> None:
        """Raise the reason if a call failed by one of the server's own and no retry succeeded."""
        for place, call in enumerate(self.calls):
            if call.error is None or call.error.status < _OURS or self._is_answered(call, place):
                continue
            why = f"a call failed: {call.error.code}: {call.error.message}"
            raise CallFailed(why) if call.error.code in _OF_CALL else DoorShut(why)

    def refuse_if_nobody_answers(self) -> None:
        if any(call.quiet_seconds > _QUIET_S for call in self.under_way):
            raise DoorShut(f"nothing of a call's answer has come for {_QUIET_S:g} s")

    def _is_answered(self, call: RecordedCall, place: int) -> bool:
        """Whether a call from this place on was given the same chat, and was answered."""
        later = (each.messages for each in self.calls[place:] if each.error is None)
        return call.messages is not None and call.messages in later


@dataclass(frozen=True)
class Session:
    url: str  # that agents call, without /v1
    key: str  # for calls of this session alone
    http: httpx.AsyncClient | None = None  # by which `chat` asks

    async def chat(self, messages: list[dict[str, str]]) -> str:
        """What the policy answers.

        Raises:
            ContextFull: if there is no room for it.
            DoorShut: if the model does not answer.
            httpx.HTTPStatusError: if the call is wrong.
        """
        assert self.http is not None
        body, url = {"model": MODEL, "messages": messages}, f"{self.url}/v1/chat/completions"
        headers = {"Authorization": f"Bearer {self.key}"}
        try:
            reply = await self.http.post(url, json=body, headers=headers, timeout=None)
        except httpx.HTTPError as error:
            raise DoorShut(f"a call has no answer: {type(error).__name__}: {error}") from error
        if reply.status_code == 400 and _TOO_LONG in reply.text:
            raise ContextFull
        if reply.status_code >= _OURS:
            raise DoorShut(f"a call failed: {reply.text[:200]}")
        reply.raise_for_status()
        return reply.json()["choices"][0]["message"]["content"]


@dataclass(frozen=True)
class Door:
    url: str
    http: httpx.AsyncClient

    async def open(self, name: str, terms: Terms) -> Session:
        """A session of this name; `DoorShut` if there is none to be had."""
        url = f"{self.url}/rollout/{name}-{secrets.token_hex(4)}"
        told = json.loads(await self._ask("PUT", url, terms.model_dump(mode="json")))
        return Session(url, told["key"], self.http)

    async def look(self, session: Session) -> Trace:
        return Trace.model_validate_json(await self._ask("GET", session.url))

    async def close(self, session: Session) -> Trace:
        return Trace.model_validate_json(await self._ask("DELETE", session.url))

    async def _ask(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> bytes:
        try:
            reply = await self.http.request(method, url, json=body, timeout=_OPEN_S)
        except httpx.HTTPError as error:
            why = f"the gateway at {self.url} does not answer: {type(error).__name__}: {error}"
            raise DoorShut(f"{why}; see WEIR_GATEWAY_URL") from error
        if reply.is_error:
            hint = "; see WEIR_ENVIRONMENT_KEY" if reply.status_code in (401, 403) else ""
            raise DoorShut(f"the gateway answers {reply.status_code}: {reply.text[:200]}{hint}")
        return reply.content


def client_of(key: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(headers=headers, limits=limits, trust_env=False)
